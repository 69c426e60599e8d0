package rest_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rest"
	"github.com/stint-io/stint/store/memory"
)

// TestMisspelledAttribute: an attribute that no limit reads is logged once where its name is close to one that the request lacks,
// and however many names callers make up.
func TestMisspelledAttribute(t *testing.T) {
	var log bytes.Buffer
	set, err := rules.Parse("l.yaml", []byte("limits: [{name: a, key: [user], match: {path: /x}, rate: 5/s}]"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	h := rest.New(e, rest.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ask := func(attributes string) string {
		log.Reset()
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/take", strings.NewReader(`{"attributes":{`+attributes+`}}`)))
		return log.String()
	}
	for _, quiet := range []string{`"user":"u","path":"/x"`, `"user":"u","users":"u"`, `"method":"GET","tenant":"t"`} {
		if got := ask(quiet); got != "" {
			t.Errorf("%s: %s", quiet, got)
		}
	}
	if got := ask(`"User":"u"`); !strings.Contains(got, `attribute=User hint="did you mean user?"`) {
		t.Errorf("User: %q", got)
	}
	if got := ask(`"User":"v"`); got != "" {
		t.Errorf("User is logged again: %s", got)
	}
	for i := range 1000 {
		ask(fmt.Sprintf(`"n%d":"u"`, i))
	}
	if got := ask(`"pat":"u"`); got != "" {
		t.Errorf("more names are looked at than are kept: %s", got)
	}
}
