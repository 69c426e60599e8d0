package envoyenv

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// reader takes an environment apart.
type reader struct {
	values map[string]string
	used   map[string]bool // that somebody has asked for
	out    Translation
	errs   []error
}

func (r *reader) bad(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("environment: "+format, args...))
}

func (r *reader) note(format string, args ...any) {
	r.out.Notes = append(r.out.Notes, fmt.Sprintf(format, args...))
}

// flag sets one, unless value is empty.
func (r *reader) flag(name, value, from string) {
	if value != "" {
		r.out.Flags = append(r.out.Flags, Flag{name, value, from})
	}
}

// refused notes that a variable, if it is set, is not honoured.
func (r *reader) refused(name, why string) {
	r.used[name] = true
	if r.values[name] != "" {
		r.note("%s is not honoured: %s", name, why)
	}
}

func (r *reader) text(name, without string) string {
	r.used[name] = true
	if v := r.values[name]; v != "" {
		return v
	}
	return without
}

func (r *reader) truth(name string, without bool) bool {
	v := r.text(name, "")
	if v == "" {
		return without
	}
	b, err := strconv.ParseBool(v)
	if err != nil {
		r.bad("%s is %q, want true or false", name, v)
	}
	return b
}

func (r *reader) port(name, without string) string {
	v := r.text(name, without)
	if n, err := strconv.ParseUint(v, 10, 16); err != nil {
		// Kubernetes sets variables such as GRPC_PORT for a service of that name.
		r.bad("%s is %q, want a port, which is a number from 0 to 65535; if Kubernetes has set it for a service of that name, set enableServiceLinks: false in the pod", name, v)
	} else {
		v = strconv.FormatUint(n, 10)
	}
	return v
}

func (r *reader) number(name string) int64 {
	v := r.text(name, "")
	if v == "" {
		return 0
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil || n < 0 {
		r.bad("%s is %q, want a whole number, not negative, such as 10", name, v)
	}
	return n
}

// duration returns a duration as it is written, or "".
func (r *reader) duration(name string) string {
	v := r.text(name, "")
	if v == "" {
		return ""
	}
	if d, err := time.ParseDuration(v); err != nil || d < 0 {
		r.bad("%s is %q, want a duration, such as 500ms or 10s", name, v)
		return ""
	}
	return v
}

// share returns a number above 0 and at most 1 as it is written, or "".
func (r *reader) share(name string) string {
	v := r.text(name, "")
	if v == "" {
		return ""
	}
	if f, err := strconv.ParseFloat(v, 64); err != nil || !(f > 0 && f <= 1) || math.IsNaN(f) {
		r.bad("%s is %q, want a number above 0 and at most 1, such as 0.8", name, v)
		return ""
	}
	return v
}

// pairs reads "a:b,c:d".
func (r *reader) pairs(name string) (list [][2]string) {
	v := r.text(name, "")
	if v == "" {
		return nil
	}
	for pair := range strings.SplitSeq(v, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), ":")
		if !ok || key == "" {
			r.bad("%s is not a list such as name:value,other:value", name)
			return nil
		}
		list = append(list, [2]string{key, value})
	}
	return list
}

// kinds are how the image's variables begin.
var kinds = []string{
	"CONFIG_GRPC_", "XDS_CLIENT_", "RUNTIME_", "REDIS_", "GRPC_SERVER_", "GRPC_CLIENT_", "GRPC_MAX_", "LIMIT_", "STATSD_", "PROMETHEUS_", "USE_STATSD", "USE_PROMETHEUS", "DEBUG_",
}

// link is a variable that Kubernetes sets for a service which is called redis or the like.
var link = regexp.MustCompile(`_(SERVICE_(HOST|PORT)(_.*)?|PORT(_\d+_.*)?)$`)

// unknown notes what begins as the image's variables do and is none.
func (r *reader) unknown() {
	for name := range r.values {
		if r.used[name] || link.MatchString(name) || !slices.ContainsFunc(kinds, func(k string) bool { return strings.HasPrefix(name, k) }) {
			continue
		}
		text := fmt.Sprintf("%s is no variable of the image, and is ignored", name)
		if near := r.meant(name); near != "" {
			text += ": did you mean " + near + "?"
		}
		r.note("%s", text)
	}
}

// meant is the variable whose name is nearest, at most two letters away; "" = none.
func (r *reader) meant(name string) (best string) {
	least := 3
	for known := range r.used {
		if d := distance(name, known); d < least || d == least && known < best {
			best, least = known, d
		}
	}
	if least > 2 {
		return ""
	}
	return best
}

// distance is how many letters have to be changed, added or taken away.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := before
			if a[i] != b[j] {
				cost++
			}
			before, row[j+1] = row[j+1], min(cost, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
