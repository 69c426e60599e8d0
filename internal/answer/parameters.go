package answer

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// several are the parameters that may be given more than once.
var several = []string{"key", "count"}

// Parameters returns the parameters of a query that names none but those of known, each once and with a value. A filter
// with a typo or without a value would otherwise apply to everything.
func Parameters(r *http.Request, known ...string) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, errors.New("the query is malformed")
	}
	for name, values := range q {
		switch {
		case !slices.Contains(known, name):
			return nil, fmt.Errorf("unknown parameter %.100q, want %s", name, strings.Join(known, ", "))
		case len(values) > 1 && !slices.Contains(several, name):
			return nil, fmt.Errorf("%s is given twice", name)
		case slices.Contains(values, ""):
			return nil, fmt.Errorf("%s has no value: leave it out, or give it one", name)
		}
	}
	return q, nil
}
