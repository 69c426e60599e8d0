package estimate_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/estimate"
	"github.com/stint-io/stint/internal/records"
)

func exchange(t *testing.T, list ...*estimate.Estimator) {
	t.Helper()
	for _, e := range list {
		if err := e.Exchange(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// What is learned is kept for a process that comes later, and for one that shares the records.
func TestExchange(t *testing.T) {
	ctx := context.Background()
	kept := records.New(nil, 0)
	a, _ := newEstimator(t, estimate.Options{Records: kept})
	b, _ := newEstimator(t, estimate.Options{Records: kept})
	exchange := func(list ...*estimate.Estimator) { exchange(t, list...) }
	acme := of("m", `a"c me`, 4096)
	r := seeding.Rand(t)
	for range 500 {
		a.Settle(acme, 0, int64(200+400*r.Float64()))
	}
	a.Settle(of("m", "stranger", 4096), 0, 9)
	exchange(a, b)
	if got := b.Estimate(acme); got.From != estimate.Own || !near(got.Cost, 560) || got.Settled != 500 {
		t.Errorf("the other process: %+v", got)
	}
	if got := b.Estimate(of("m", "stranger", 4096)); got.From != estimate.Model || !near(got.Cost, 560) {
		t.Errorf("one who came once: %+v", got)
	}
	for range 300 { // it goes on from there, and what it learns is the same
		b.Settle(acme, 0, int64(200+400*r.Float64()))
		if got := b.Estimate(acme); math.Abs(float64(got.Cost-560)) > 60 {
			t.Fatalf("%+v", got)
		}
	}
	count := func() (n int, all string) {
		for _, table := range []string{"estimates", "modelestimates"} {
			list, err := kept.Range(ctx, table, "", "", 100)
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range list {
				n++
				all += string(r.Value)
			}
		}
		return n, all
	}
	n, before := count()
	if n != 2 {
		t.Errorf("%d records, want one of the tenant and one of the model", n)
	}
	for range 50 {
		a.Settle(acme, 0, a.Estimate(acme).Cost)
	}
	exchange(a, a)
	if _, after := count(); after != before {
		t.Errorf("what has hardly changed was written again:\n%s\n%s", before, after)
	}
	for range 50 {
		b.Settle(acme, 0, 3000)
	}
	exchange(b, a)
	if got := a.Estimate(acme); !near(got.Cost, 3000) {
		t.Errorf("what another has learned meanwhile: %+v", got)
	}
}

// What is in the records and cannot be is passed over, another quantile begins anew, and records take no room that there
// is not.
func TestExchangeOfOthers(t *testing.T) {
	ctx := context.Background()
	kept := records.New(nil, 0)
	a, _ := newEstimator(t, estimate.Options{Records: kept})
	for i := range 3 {
		for range 20 {
			a.Settle(of(fmt.Sprint("m", i), "t", 4096), 0, 500)
		}
	}
	exchange(t, a)
	for _, bad := range []string{"", "{", `{"by":"model tenant","quantile":0.9,"estimate":-1,"settled":9}`, `{"by":"x","quantile":0.9,"estimate":7,"settled":9}`, `{"by":"model tenant","quantile":0.9,"estimate":7,"settled":9,"owed":7}`} {
		if _, _, err := kept.Swap(ctx, "estimates", "bad"+bad, nil, []byte(bad), 0); err != nil {
			t.Fatal(err)
		}
	}
	median := config()
	median.Quantile = 0.5
	c, _ := newEstimator(t, estimate.Options{Config: median, Records: kept})
	exchange(t, c)
	if s := c.Stats(); s.Keys != 0 || s.Models != 0 {
		t.Errorf("another quantile: %+v", s)
	}
	d, _ := newEstimator(t, estimate.Options{Records: kept, MaxKeys: 4})
	for i := range 4 {
		d.Settle(of(fmt.Sprint(i), "t", 4096), 0, 5)
	}
	exchange(t, d)
	if s := d.Stats(); s.Keys != 4 || s.Models != 1 {
		t.Errorf("there is no room for what others know: %+v", s)
	}
	if err := a.Configure(median); err != nil || a.Stats().Keys != 0 {
		t.Error("what was learned for another quantile is there", err)
	}
}
