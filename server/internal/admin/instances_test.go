package admin

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// What each instance has is on a page of its own, with nothing else; where it is not known the
// page is an error, not empty, and a service without it has no such page.
func TestMetricsOfInstances(t *testing.T) {
	all, others, known := []Instance{{Instance: "one", Limit: "a", Wanted: 7, Lent: 5.5, Admitted: 3, Refused: 4}}, 2, true
	c := NewInstanceCollector(func() ([]Instance, int, bool) { return all, others, known })
	var lines []string
	for _, line := range scrape(t, c) {
		if !strings.HasPrefix(line, "#") && line != "" {
			lines = append(lines, line)
		}
	}
	want := []string{
		`stint_lease_instance_decided_total{instance="one",limit="a",outcome="allowed"} 3`,
		`stint_lease_instance_decided_total{instance="one",limit="a",outcome="refused"} 4`,
		`stint_lease_instance_demand{instance="one",limit="a"} 7`,
		`stint_lease_instance_lent{instance="one",limit="a"} 5.5`,
		`stint_lease_instances_not_shown 2`,
	}
	if slices.Sort(lines); !slices.Equal(lines, want) {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	status := func(o Options) int {
		w := httptest.NewRecorder()
		o.Metrics = prometheus.NewPedanticRegistry()
		New(o).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost/metrics/instances", nil))
		return w.Code
	}
	if got := status(Options{Instances: registry}); got != http.StatusOK {
		t.Errorf("the page answers %d", got)
	}
	known = false
	if got := status(Options{Instances: registry}); got != http.StatusInternalServerError {
		t.Errorf("without a coordinator the page answers %d", got)
	}
	if got := status(Options{}); got != http.StatusNotFound {
		t.Errorf("a service without the page answers %d", got)
	}
}
