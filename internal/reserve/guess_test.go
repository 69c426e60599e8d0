package reserve_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/estimate"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// learning is a book that estimates, with a clock that a test moves.
type learning struct {
	*reserve.Book
	t   *testing.T
	e   *estimate.Estimator
	now limit.Time
}

func newLearning(t *testing.T, limits string) *learning {
	t.Helper()
	set, err := rules.Parse("limits.yaml", []byte(limits))
	if err != nil {
		t.Fatal(err)
	}
	l := &learning{t: t, now: limit.At(time.Date(2026, 11, 2, 0, 0, 0, 0, time.UTC))}
	now := func() limit.Time { return l.now }
	eng, err := engine.New(memory.New(memory.Options{Now: now}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.Book = reserve.New(eng, records.New(now, 0), slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, int64(l.now)) })
	l.e, err = estimate.New(estimate.Options{
		Config: estimate.Config{By: []string{"model", "tenant"}, Declared: "max_tokens", Quantile: 0.9, Start: 1000},
		Now:    func() time.Duration { return time.Duration(l.now) },
	})
	if err != nil {
		t.Fatal(err)
	}
	l.Learn(l.e)
	return l
}

func (l *learning) reserve(cost int64, attrs ...string) (reserve.Reservation, limit.Decision) {
	l.t.Helper()
	r, d, err := l.try(cost, attrs...)
	if err != nil {
		l.t.Fatal(err)
	}
	return r, d
}

func (l *learning) try(cost int64, attrs ...string) (reserve.Reservation, limit.Decision, error) {
	q := limit.Request{Cost: cost}
	for i := 0; i < len(attrs); i += 2 {
		q.Attributes = append(q.Attributes, limit.Attribute{Name: attrs[i], Value: attrs[i+1]})
	}
	return l.Reserve(context.Background(), q, time.Minute, false)
}

func (l *learning) commit(r reserve.Reservation, actual int64) {
	l.t.Helper()
	if _, err := l.Commit(context.Background(), r.ID, actual); err != nil {
		l.t.Fatal(err)
	}
}

// A cost that is not given is estimated by what was committed, once for each commit, and not by what was released or
// has expired; near the end of the budget what is declared is reserved, and given back.
func TestLearn(t *testing.T) {
	l := newLearning(t, "limits: [{name: tokens, algorithm: fixed_window, rate: 1M/month}, {name: many, algorithm: concurrency, max_in_flight: 50}]")
	ctx := context.Background()
	ask := []string{"model", "m", "tenant", "t", "max_tokens", "4096"}
	r, d := l.reserve(0, ask...)
	if r.Reserved != 1000 || r.Estimate == nil || r.Estimate.From != estimate.Start || r.Estimate.Whole || d.Results[0].Remaining != 999000 {
		t.Fatalf("%+v %+v", r, r.Estimate)
	}
	for range 3 {
		l.commit(r, 300)
	}
	if s := l.e.Stats(); s.Settled != 1 || s.Over != 700 || s.Estimates[estimate.Start] != 1 {
		t.Errorf("%+v", s)
	}
	r, _ = l.reserve(0, ask...)
	if _, err := l.Release(ctx, r.ID); err != nil {
		t.Fatal(err)
	}
	l.reserve(0, ask...)
	l.now = l.now.Add(2 * time.Minute)
	if err := l.Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	if s := l.e.Stats(); s.Settled != 1 || s.Open != 0 {
		t.Errorf("what was released, or has expired, teaches: %+v", s)
	}
	for range 40 { // a cost that is given teaches as well
		r, _ = l.reserve(500, ask...)
		l.commit(r, 300)
	}
	r, _ = l.reserve(0, ask...)
	if r.Estimate.From != estimate.Own || r.Reserved < 290 || r.Reserved > 310 || r.Estimate.Settled != 41 {
		t.Errorf("%+v %+v", r, r.Estimate)
	}
	got, err := l.Commit(ctx, r.ID, 0)
	if err != nil || got.Estimate == nil || got.Estimate.From != estimate.Own {
		t.Errorf("%+v %v", got, err)
	}
	for i := range 360 { // one in twelve is long
		r, _ = l.reserve(300, ask...)
		l.commit(r, int64(200+3000*(i%12/11)))
	}
	last, d := l.reserve(1)
	l.commit(last, 1)
	used, _ := l.reserve(d.Results[0].Remaining - 30000)
	l.commit(used, used.Reserved)
	whole := 0
	var open []reserve.Reservation
	for {
		r, d := l.reserve(0, ask...)
		if !d.Allowed {
			break
		}
		if open = append(open, r); r.Estimate.Whole {
			if whole++; r.Reserved != 4096 {
				t.Errorf("%+v", r)
			}
		}
	}
	if len(open) == 50 || whole == 0 || l.e.Stats().Whole != uint64(whole) {
		t.Errorf("%d were reserved, %d of them in full: %+v", len(open), whole, l.e.Stats())
	}
	for _, r := range open {
		l.commit(r, 100)
	}
	if r, _ := l.reserve(0, ask...); r.Estimate == nil || r.Estimate.Whole {
		t.Errorf("the budget is free again, and %+v", r.Estimate)
	}
}

// What cannot be estimated is an error that names the attribute, and changes nothing.
func TestLearnBad(t *testing.T) {
	l := newLearning(t, "limits: [{name: tokens, algorithm: fixed_window, rate: 100000/month}]")
	for _, bad := range []string{"NaN", "-1", "0", "9223372036854775808"} {
		if _, _, err := l.try(0, "max_tokens", bad); !errors.Is(err, reserve.ErrBad) {
			t.Errorf("%s: %v", bad, err)
		}
		if r, _ := l.reserve(7, "max_tokens", bad); r.Reserved != 7 || r.Estimate != nil {
			t.Errorf("%s, and a cost: %+v", bad, r)
		}
	}
	if err := l.e.Configure(estimate.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.try(0, "max_tokens", "9"); !errors.Is(err, reserve.ErrBad) {
		t.Errorf("nothing is estimated: %v", err)
	}
}

// A liar who has said 1 for ever and then uses all that it declares overspends at most what its open requests have
// declared above their estimates; that is debt, and nothing more is admitted before it is paid.
func TestLiar(t *testing.T) {
	l := newLearning(t, "limits: [{name: tokens, key: [tenant], algorithm: fixed_window, rate: 10000/hour}]")
	ask := []string{"model", "m", "tenant", "liar", "max_tokens", "500"}
	for range 300 {
		r, _ := l.reserve(0, ask...)
		l.commit(r, 1)
	}
	var open []reserve.Reservation
	bound := int64(0)
	for range 100 {
		r, d := l.reserve(0, ask...)
		if !d.Allowed {
			t.Fatal(d)
		}
		open, bound = append(open, r), bound+500-r.Reserved
	}
	spent := int64(300)
	for _, r := range open {
		l.commit(r, 500)
		spent += 500
	}
	if spent-10000 > bound {
		t.Errorf("%d above the limit, want at most %d", spent-10000, bound)
	}
	for range 10 {
		if _, d := l.reserve(0, ask...); d.Allowed {
			t.Error("one was admitted before the debt was paid")
		}
	}
	if _, d := l.reserve(0, "model", "m", "tenant", "honest", "max_tokens", "500"); !d.Allowed {
		t.Error("another tenant is refused")
	}
}

// Whatever is reserved by estimates, committed, released, left and cut off in between, what counts at the end is what
// was committed, and nothing is remembered as open.
func TestLearnConserves(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 20) {
		l := newLearning(t, "limits: [{name: tokens, algorithm: fixed_window, rate: 60000/year}]")
		ctx := context.Background()
		var open []reserve.Reservation
		spent := int64(0)
		for i := range 400 {
			n := (i*7919 + int(seed%1000)*104729) % 97
			switch {
			case n < 60:
				if r, d := l.reserve(0, "model", fmt.Sprint(n%3), "tenant", fmt.Sprint(n%5), "max_tokens", fmt.Sprint(100+50*n)); d.Allowed {
					open = append(open, r)
				}
			case len(open) == 0:
			case n < 85:
				actual := int64(10 + n*n%400)
				l.commit(open[0], actual)
				spent += actual
				open = open[1:]
			default:
				if _, err := l.Release(ctx, open[0].ID); err != nil {
					t.Fatal(err)
				}
				open = open[1:]
			}
		}
		l.now = l.now.Add(5 * time.Minute)
		if err := l.Sweep(ctx); err != nil {
			t.Fatal(err)
		}
		r, d := l.reserve(1) // it looks as well, and takes those out whose time is over
		if left := d.Results[0].Remaining; !d.Allowed || left != 60000-spent-1 {
			t.Fatalf("seed %d: %d left of 60000 after %d", seed, left, spent)
		}
		l.commit(r, 1)
		l.reserve(0, "model", "0", "tenant", "0", "max_tokens", "100000")
		if n := l.e.Stats().Open; n > 1 {
			t.Errorf("seed %d: %d are open", seed, n)
		}
	}
}
