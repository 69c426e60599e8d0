package limit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

func seconds(s int64) Time { return Time(s) * Time(time.Second) }

func TestFixedWindowEpochAligned(t *testing.T) {
	w := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: PerMinute(2)})
	var s FixedState
	steps := []struct {
		at   int64
		want Verdict
	}{
		{59, Verdict{Allowed: true, Remaining: 1, ResetAfter: time.Second}},
		{59, Verdict{Allowed: true, ResetAfter: time.Second}},
		{59, Verdict{Reason: ReasonRate, RetryAfter: time.Second, ResetAfter: time.Second}},
		{60, Verdict{Allowed: true, Remaining: 1, ResetAfter: time.Minute}},
		{30, Verdict{Allowed: true, ResetAfter: 90 * time.Second}}, // the clock stepped back
		{30, Verdict{Reason: ReasonRate, RetryAfter: 90 * time.Second, ResetAfter: 90 * time.Second}},
	}
	for i, step := range steps {
		if got := w.Take(&s, seconds(step.at), 1); got != step.want {
			t.Errorf("step %d at %ds: got %+v, want %+v", i, step.at, got, step.want)
		}
	}
}

func TestFixedWindowOpenedByFirstHit(t *testing.T) {
	w := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: PerMinute(1), Align: AlignFirstHit})
	var s FixedState
	for _, step := range []struct {
		at   int64
		want bool
	}{{59, true}, {60, false}, {118, false}, {119, true}, {120, false}, {500, true}} {
		if got := w.Take(&s, seconds(step.at), 1); got.Allowed != step.want {
			t.Errorf("at %ds: got %+v, want allowed %v", step.at, got, step.want)
		}
	}
}

func TestFixedWindowCountsRefused(t *testing.T) {
	w := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: PerMinute(3), CountRefused: true})
	var s FixedState
	if v := w.Take(&s, 0, 4); v.Allowed || v.Reason != ReasonCost || v.RetryAfter != Never {
		t.Errorf("cost above the limit: got %+v", v)
	}
	if v := w.Take(&s, 0, 1); v.Allowed || s.Count != 5 {
		t.Errorf("a refused request must count: got %+v, count %d", v, s.Count)
	}
	w.Take(&s, 0, math.MaxInt64)
	w.Take(&s, 0, math.MaxInt64)
	if s.Count != math.MaxInt64 {
		t.Errorf("count %d, want it saturated", s.Count)
	}
	s = FixedState{}
	w.Take(&s, 0, 3)
	if v := w.Take(&s, 0, 0); !v.Allowed {
		t.Errorf("cost 0 at count == limit: got %+v, want allowed", v)
	}
	w.Refuse(&s, 0, 1)
	if v := w.Take(&s, 0, 0); v.Allowed {
		t.Errorf("cost 0 over the limit: got %+v, want refused", v)
	}
}

func TestFixedWindowBan(t *testing.T) {
	p := Policy{Algorithm: FixedWindow, Rate: PerMinute(2), Align: AlignFirstHit, CountRefused: true, Ban: 15 * time.Minute}
	w := NewFixedCounter(p)
	var s FixedState
	at := func(sec int64) Verdict { return w.Take(&s, seconds(sec), 1) }
	at(0)
	at(1)
	if v := at(2); v.Reason != ReasonRate || v.RetryAfter != 16*time.Minute-2*time.Second {
		t.Errorf("going over: got %+v", v)
	}
	if v := at(60); v.Reason != ReasonBanned || v.RetryAfter != 15*time.Minute {
		t.Errorf("after the window: got %+v", v)
	}
	if v := at(16*60 - 1); v.Reason != ReasonBanned || v.RetryAfter != time.Second {
		t.Errorf("a ban must not be prolonged by hammering: got %+v", v)
	}
	w.Refund(&s, seconds(30), 2)
	if w.Fresh(s, seconds(16*60-1)) {
		t.Error("a refund lifted a ban")
	}
	if v := at(16 * 60); !v.Allowed || v.Remaining != 1 {
		t.Errorf("after the ban: got %+v", v)
	}
}

func TestFixedWindowConvert(t *testing.T) {
	from := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: PerMinute(10)})
	var s FixedState
	from.Take(&s, seconds(70), 8)
	cases := []struct {
		name      string
		to        Policy
		remaining int64
	}{
		{"same", Policy{Rate: PerMinute(10)}, 2},
		{"larger", Policy{Rate: PerMinute(100)}, 92},
		{"smaller", Policy{Rate: PerMinute(5)}, 0},
		{"longer", Policy{Rate: PerHour(10)}, 2},
		{"shorter", Policy{Rate: PerSecond(10)}, 2},
		{"first hit", Policy{Rate: PerMinute(10), Align: AlignFirstHit}, 2},
		{"first hit, shorter", Policy{Rate: PerSecond(10), Align: AlignFirstHit}, 2},
		{"smaller, bans", Policy{Rate: PerMinute(5), Ban: time.Hour}, 0},
	}
	for _, c := range cases {
		c.to.Algorithm = FixedWindow
		w := NewFixedCounter(c.to)
		got := w.Convert(s, &from, seconds(80))
		v := w.Peek(got, seconds(80), 0)
		if v.Remaining != c.remaining {
			t.Errorf("%s: remaining %d, want %d (%+v)", c.name, v.Remaining, c.remaining, got)
		}
		if v.ResetAfter > c.to.Rate.Period {
			t.Errorf("%s: resets after %v, a change of policy banned the key", c.name, v.ResetAfter)
		}
	}
	w := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: PerMinute(10)})
	if got := w.Convert(s, &from, seconds(120)); got != (FixedState{}) {
		t.Errorf("a window that has ended: got %+v", got)
	}
}

func TestFixedWindowConvertKeepsBan(t *testing.T) {
	from := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: PerMinute(1), Ban: time.Hour})
	to := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: PerMinute(100), Ban: time.Hour})
	var s FixedState
	from.Take(&s, 0, 1)
	from.Take(&s, 0, 1)
	s = to.Convert(s, &from, seconds(90))
	if v := to.Take(&s, seconds(90), 1); v.Reason != ReasonBanned {
		t.Errorf("got %+v, want the ban kept", v)
	}
}

// fixedModel counts in the plainest way: it keeps every event, and what bans there
// are apart from the counting.
type fixedModel struct {
	p           Policy
	open        bool
	start       Time
	counted     []event
	bannedUntil Time
}

func (m *fixedModel) window(now Time) (start Time, used int64) {
	start = now / Time(m.p.Rate.Period) * Time(m.p.Rate.Period)
	if m.p.Align == AlignFirstHit {
		start = now
	}
	if m.open && now < m.start.Add(m.p.Rate.Period) {
		start = m.start
		for _, e := range m.counted {
			used += e.cost
		}
	}
	return start, used
}

func (m *fixedModel) fits(now Time, cost int64) bool {
	_, used := m.window(now)
	return now >= m.bannedUntil && used+cost <= m.p.Rate.Count
}

func (m *fixedModel) charge(now Time, cost int64, allowed bool) {
	if cost == 0 || !allowed && now < m.bannedUntil && now >= m.start.Add(m.p.Rate.Period) {
		return
	}
	start, used := m.window(now)
	if allowed || m.p.CountRefused {
		if now >= m.bannedUntil {
			m.bannedUntil = 0 // a clock that steps back brings no ban back
		}
		if used == 0 {
			m.open, m.start, m.counted = true, start, nil
		}
		m.counted = append(m.counted, event{now, cost})
	}
	if used+cost > m.p.Rate.Count && m.p.Ban > 0 {
		if used == 0 {
			m.open, m.start, m.counted = true, start, nil
		}
		m.bannedUntil = m.start.Add(m.p.Rate.Period + m.p.Ban)
	}
}

// In no window is more admitted than the count, and every answer is that of a
// model that remembers everything.
func TestHistoriesFixedWindow(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		p := smallPolicy(r, FixedWindow)
		p.Align = Alignment(r.IntN(2))
		if r.IntN(3) == 0 {
			p.Ban = time.Duration(1 + r.Int64N(3*int64(p.Rate.Period)))
		}
		w, m, c := NewFixedCounter(p), fixedModel{p: p}, newClock(r, p.Rate.Period)
		var s FixedState
		for step := range 40 {
			now, cost := c.tick(r), smallCost(r, p.Rate.Count)
			if now < m.start {
				now = m.start // the model knows no clock that steps back
			}
			want := m.fits(now, cost)
			before := s
			if got := w.Peek(s, now, cost); got.Allowed != want {
				return fmt.Errorf("step %d: %+v: peek %d at %d: got %+v, want %v", step, p, cost, now, got, want)
			} else if err := checkWait(got, now, func(at Time) bool { return w.Peek(s, at, cost).Allowed }); err != nil {
				return fmt.Errorf("step %d: %+v: peek %d: %w", step, p, cost, err)
			}
			if s != before {
				return fmt.Errorf("step %d: a peek changed the state", step)
			}
			if r.IntN(5) == 0 {
				w.Refuse(&s, now, cost)
				if p.CountRefused || !want {
					m.charge(now, cost, false)
				}
				continue
			}
			got := w.Take(&s, now, cost)
			m.charge(now, cost, want)
			if got.Allowed != want {
				return fmt.Errorf("step %d: %+v: take %d at %d: got %+v, want %v", step, p, cost, now, got, want)
			}
			if err := checkWait(got, now, func(at Time) bool { return w.Peek(s, at, cost).Allowed }); err != nil {
				return fmt.Errorf("step %d: %+v: take %d: %w", step, p, cost, err)
			}
			if !want && !p.CountRefused && p.Ban == 0 && s != before {
				return fmt.Errorf("step %d: a refusal changed the state", step)
			}
			if fresh := w.Fresh(s, now.Add(got.ResetAfter)); !fresh {
				return fmt.Errorf("step %d: not fresh after %v", step, got.ResetAfter)
			}
			if back := w.Convert(s, &w, now); back != s && !w.Fresh(s, now) {
				return fmt.Errorf("step %d: converting to the same policy made %+v of %+v", step, back, s)
			}
		}
		return nil
	})
}

func TestFixedWindowEdges(t *testing.T) {
	year := Policy{Algorithm: FixedWindow, Rate: Rate{MaxCount, math.MaxInt64}}
	zero := Policy{Algorithm: FixedWindow}
	for _, p := range []Policy{year, zero, {Algorithm: FixedWindow, Unlimited: true}} {
		w := NewFixedCounter(p)
		for _, now := range []Time{math.MinInt64, -1, 0, 1, math.MaxInt64 - 1, math.MaxInt64} {
			for _, cost := range []int64{0, 1, MaxCount, math.MaxInt64} {
				var s FixedState
				fits := p.Unlimited || cost <= p.Rate.Count
				if v := w.Take(&s, now, cost); v.Allowed != fits || v.Remaining < 0 || v.RetryAfter < 0 || v.ResetAfter < 0 {
					t.Errorf("%+v: take %d at %d: %+v", p, cost, now, v)
				}
			}
		}
	}
}
