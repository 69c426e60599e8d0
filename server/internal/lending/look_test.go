package lending

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/gen/leasepb"
)

// Who has, wants and gets what; and figures by limit, without keys.
func TestLook(t *testing.T) {
	r := start(t, Options{lease: time.Minute}) // nothing ends while a busy machine goes on
	a, b := r.open("a", 1), r.open("b", 2)
	d := demand(1, "shared", 300)
	d.Weight, d.Band = 4, 2
	a.report(d, demand(2, "per-user", 1, "u", "192.0.2.7"), demand(3, "nobody", 1))
	a.share(1) // before b, which would have all of the burst, and gives nothing back in this test
	b.report(&leasepb.Demand{Handle: 1, Silent: true, Resource: &leasepb.Resource{Limit: "shared"}})
	b.share(1)
	var p Page
	r.eventually("it is full and a has its part", func() bool {
		p = r.page("?limit=shared")
		return len(p.Resources) == 1 && p.Resources[0].Saturated && slices.ContainsFunc(p.Resources[0].Leases, func(l Lease) bool {
			return l.Instance == "a" && l.Granted > 0
		})
	})
	l := p.Resources[0]
	if p.Epoch != 5 || p.Instances != 2 || p.Total != 1 || p.Truncated || l.Capacity != 100 || l.Burst != 10 || l.Demand < 300 ||
		l.Lent+l.Free > 100 || l.Allocation != "max_min" || l.Key != "" || len(l.Leases) != 2 {
		t.Errorf("%+v", p)
	}
	one, two := l.Leases[0], l.Leases[1]
	if one.Instance != "a" {
		one, two = two, one
	}
	if one.Demand != 300 || one.Weight != 4 || one.Band != 2 || one.Version != 1 || one.ExpiresIn <= 0 || one.ExpiresIn > 61 || one.Granted <= 0 || !two.Silent {
		t.Errorf("%+v", l.Leases)
	}
	r.eventually("the figures are there", func() bool {
		f := r.figures.Load()
		return f.Streams == 2 && f.Instances == 2 && f.Resources == 2 && f.Reports >= 2 && f.Grants >= 2 && f.Refused["unknown_limit"] == 1 &&
			len(f.Limits) == 2 && f.Limits[0].Limit == "per-user" && f.Limits[0].Capacity == 10 && !f.Limits[0].Saturated &&
			f.Limits[1].Capacity == 100 && f.Limits[1].Saturated && f.Limits[1].SaturatedSeconds > 0 && f.Limits[1].Wanted >= 300
	})
	w := httptest.NewRecorder()
	single(r.shard).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/leases?limit=nobody", nil))
	if w.Code != http.StatusNotFound {
		t.Errorf("an unknown limit answers %d", w.Code)
	}
	r.stop()
	w = httptest.NewRecorder()
	single(r.shard).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/leases", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("after the end: %d", w.Code)
	}
}

func TestLookIsBounded(t *testing.T) {
	r := start(t, Options{lease: time.Minute})
	a := r.open("a", 1)
	demands := make([]*leasepb.Demand, maxPageResources+5)
	for i := range demands {
		demands[i] = demand(uint32(i), "per-user", 0, fmt.Sprint(i), "x")
	}
	a.report(demands...)
	a.share(maxPageResources)
	if p := r.page(""); !p.Truncated || len(p.Resources) != maxPageResources || p.Total != len(demands) {
		t.Errorf("%d of %d resources, truncated %v", len(p.Resources), p.Total, p.Truncated)
	}
}

// TestPageOfAllKinds: of a semaphore the permits are shown, of a suppressed limit no allocation;
// what is lent adds up over the keys of a limit; the limits stand in their order.
func TestPageOfAllKinds(t *testing.T) {
	r := start(t, Options{Limits: limits(t, config+"  - {name: beyond, rate: 10/s, sharing: suppressed}\n")})
	a := r.open("a", 1)
	places := demand(1, "places", 0)
	places.Shortfall = 3
	a.report(places, demand(2, "beyond", 5), demand(3, "per-user", 500, "u", "192.0.2.7"), demand(4, "per-user", 500, "v", "192.0.2.7"), demand(5, "exact", 1))
	if s := a.share(5); s.GetStatus() != leasepb.Status_STATUS_NOT_LEASED {
		t.Errorf("a limit that is not shared is lent: %v", s)
	}
	byName := func() map[string]LimitFigures {
		m := map[string]LimitFigures{}
		f := r.figures.Load()
		for i := range f.Limits {
			if i > 0 && f.Limits[i-1].Limit >= f.Limits[i].Limit {
				t.Errorf("%s stands before %s", f.Limits[i-1].Limit, f.Limits[i].Limit)
			}
			m[f.Limits[i].Limit] = f.Limits[i]
		}
		return m
	}
	r.eventually("the figures are there", func() bool {
		m := byName()
		users, held := m["per-user"], m["places"]
		return len(m) == 3 && users.Resources == 2 && users.SaturatedResources == 2 && users.Saturated && users.Capacity == 20 && users.Lent > 18 && users.Lent+users.Free <= 20.001 &&
			held.Capacity == 4 && held.Lent >= 3 && held.Lent+held.Free == 4 && !held.Saturated && held.SaturatedResources == 0 && m["beyond"].Suppressed && !users.Suppressed
	})
	for _, l := range r.page("").Resources {
		gets := 0.0
		for _, one := range l.Leases {
			gets += one.Granted
		}
		switch l.Limit {
		case "places":
			if !l.Semaphore || l.Capacity != 4 || gets < 3 || gets > 4 {
				t.Errorf("%+v", l)
			}
		case "beyond":
			if l.Allocation != "" || l.Sharing != "suppressed" {
				t.Errorf("%+v", l)
			}
		default:
			if l.Allocation != "max_min" || l.Sharing != "leased" || l.Semaphore {
				t.Errorf("%+v", l)
			}
		}
	}
	w := httptest.NewRecorder()
	single(r.shard).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/leases", nil))
	if w.Header().Get("Cache-Control") != "no-store" || w.Header().Get("Content-Type") != "application/json" {
		t.Errorf("it may be kept by others: %v", w.Header())
	}
}
