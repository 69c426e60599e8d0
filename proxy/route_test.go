package proxy

import (
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/rules"
)

// A route is remembered with its prediction, so a stranger's path is not kept whole.
func TestRouteIsBounded(t *testing.T) {
	g := &gate{of: &throttled{trusted: forwarded.TrustPrefixes(nil)}, rules: &rules.Throttle{}, plan: identify.NewPlan(nil)}
	for _, path := range []string{"/" + strings.Repeat("a", 60_000), "/a/" + strings.Repeat("b", 60_000)} {
		if n := len(g.request(httptest.NewRequest("GET", path, nil)).Route); n > identify.MaxValue {
			t.Errorf("a route of %d bytes", n)
		}
	}
}
