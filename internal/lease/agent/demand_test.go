package agent

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// TestDemandOfThoseWhoWait: what waits is demanded within a second on top of the measured rate; patient callers, who send
// nothing meanwhile, within RecentSpan, 0.1 s, but no faster than 1/64 of the limit.
func TestDemandOfThoseWhoWait(t *testing.T) {
	for _, c := range []struct {
		waiting int64
		patient bool
		want    float64
	}{
		{0, false, 100},
		{0, true, 100},
		{2, false, 102},
		{1, true, 110},
		{5, true, 115.625},
		{50, true, 150},
	} {
		const now = limit.Time(time.Hour)
		r := &resource{answer: answer{terms: &lease.Terms{Rate: 1000 * fixed.Token}}}
		r.load.meter = measured(now, 100*fixed.Token)
		if got := r.demandRate(now, bucket.Reading{Waiting: fixed.Whole(c.waiting), Patient: c.patient}).Float(); got != c.want {
			t.Errorf("%d wait, patient %v: %v/s demanded, want %v", c.waiting, c.patient, got, c.want)
		}
	}
}

// TestDemandAfterARefusal: the rise of a rate that is not certain yet is demanded after a refusal, where an instance has
// what it demanded before.
func TestDemandAfterARefusal(t *testing.T) {
	const now = limit.Time(time.Hour)
	r := &resource{answer: answer{terms: &lease.Terms{Rate: 1000 * fixed.Token}}, lease: leased{number: 1, granted: lease.Capacity{Rate: 10 * fixed.Token}}}
	r.sent.demand = 10 * fixed.Token
	r.load.meter = measured(now-limit.Time(200*time.Millisecond), 10*fixed.Token)
	if r.load.meter.Observe(now, 81*fixed.Token+12*fixed.Token, 1) {
		t.Fatal("the rise is certain")
	}
	measured, recent := fixed.Amount(r.load.meter.Rate*1e6), fixed.Amount(r.load.meter.Recent(1)*1e6)
	if recent < 2*measured {
		t.Fatalf("%v/s of late beside %v/s: too tame", recent, measured)
	}
	demands := func(want fixed.Amount, when string) {
		t.Helper()
		if got := r.demandRate(now, bucket.Reading{}); !fixed.Near(got, want, 1000) {
			t.Errorf("%s: %v/s demanded, want %v", when, got, want)
		}
	}
	demands(measured, "without a refusal")
	r.refusals.recentUntil = now + 1
	demands(recent, "after one")
	r.sent.demand = 11 * fixed.Token
	demands(measured, "while more was demanded already")
}
