package measure

import (
	"errors"
	"testing"
	"time"
)

func TestLatencyQuantiles(t *testing.T) {
	var a, b Latency
	if a.Quantile(0.5) != 0 || a.Mean() != 0 {
		t.Error("without calls the figures are not 0")
	}
	for us := range 1000 {
		a.Add(time.Duration(us+1) * time.Microsecond)
		b.Add(-time.Second) // a clock that steps back must not crash
	}
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Microsecond, 0.99: 990 * time.Microsecond, 1: time.Millisecond} {
		if got := a.Quantile(q); got < want || got > want*34/32 {
			t.Errorf("quantile %v is %v, want %v and at most a 32nd more", q, got, want)
		}
	}
	if got := a.Mean(); got != 500500*time.Nanosecond {
		t.Errorf("mean %v", got)
	}
	a.Merge(&b)
	if got := a.Quantile(0.25); got != 0 {
		t.Errorf("half of the calls took no time, the first quarter took %v", got)
	}
	b = Latency{}
	b.Add(time.Hour)
	if got := b.Quantile(0.5); got < time.Minute {
		t.Errorf("an hour counts as %v", got)
	}
}

func TestFlyCounts(t *testing.T) {
	bad := errors.New("bad")
	var asked [3]int64
	f, err := Fly(3, 20*time.Millisecond, func(caller int) (bool, error) {
		asked[caller]++
		if caller == 2 {
			return true, bad // its yes counts for nothing
		}
		return caller == 1, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if f.Calls != asked[0]+asked[1]+asked[2] || f.Yes != asked[1] || f.Errors != asked[2] || !errors.Is(f.First, bad) {
		t.Errorf("asked %v, counted %d calls, %d yes, %d errors, first %v", asked, f.Calls, f.Yes, f.Errors, f.First)
	}
	if f.Elapsed < 20*time.Millisecond || f.CPU <= 0 || f.Latency.calls != f.Calls || f.PerSecond() <= 0 {
		t.Errorf("%v elapsed, %v of CPU, %d latencies, %.0f/s", f.Elapsed, f.CPU, f.Latency.calls, f.PerSecond())
	}
}
