package limit

import (
	"math"
	"testing"
	"time"
)

// Any state, time and cost under any valid policy, and any change of policy: no panic,
// and answers that make sense.
func FuzzArithmetic(f *testing.F) {
	edges := []int64{0, 1, 7, 1 << 32, math.MaxInt64 - 1, math.MaxInt64, MaxCount, -1, math.MinInt64}
	for i, a := range edges {
		for j, b := range edges {
			f.Add(uint8(i+j), a, b, edges[(i+j)%9], edges[(i*j)%9], a, b, edges[(i+2*j)%9], edges[(2*i+j)%9])
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, a, b, c, now, cost, count, period, burst int64) {
		policy := func(count, period int64) Policy {
			p := Policy{
				Algorithm: Algorithm(kind % 5), Rate: Rate{count & MaxCount, time.Duration(period & math.MaxInt64)},
				Burst: burst & (MaxCount - 1), CountRefused: kind&64 != 0, Align: Alignment(kind >> 5 & 1), Rounding: Rounding(kind >> 3 % 3),
			}
			if count&3 != 0 {
				p.Rate.Count = count & (MaxCount - 1)
			}
			switch p.Algorithm {
			case TokenBucket, LeakyBucket:
				p.CountRefused = false
			case FixedWindow:
				p.Ban = time.Duration(burst & math.MaxInt64)
			case SlidingWindowLog:
				p.Rate.Count %= 100
			}
			return p
		}
		p, q := policy(count, period), policy(period, count)
		if p.Validate() != nil || q.Validate() != nil {
			return
		}
		at := Time(now)
		if cost &= math.MaxInt64; cost < 0 {
			return
		}
		switch p.Algorithm {
		case FixedWindow:
			x, y := NewFixedCounter(p), NewFixedCounter(q)
			anyState(t, &x, &y, FixedState{Time(a), b & math.MaxInt64}, at, cost)
		case SlidingWindowLog:
			x, y := NewSlidingLog(p), NewSlidingLog(q)
			var s LogState
			for _, when := range []int64{a, b, c} {
				x.Take(&s, Time(when), cost)
			}
			anyState(t, &x, &y, s, at, cost)
		case SlidingWindowCounter:
			x, y := NewSlidingCounter(p), NewSlidingCounter(q)
			anyState(t, &x, &y, SlidingState{a, b & math.MaxInt64, c & math.MaxInt64}, at, cost)
		default:
			x, y := NewBucket(p), NewBucket(q)
			anyState(t, &x, &y, BucketState{uint64(a), uint64(b)}, at, cost)
			anyWord(t, &x, uint64(c)>>2, uint64(now), cost)
		}
	})
}

// counting is what the algorithms have in common.
type counting[S, A any] interface {
	Take(s *S, now Time, cost int64) Verdict
	Peek(s S, now Time, cost int64) Verdict
	Refuse(s *S, now Time, cost int64)
	Refund(s *S, now Time, cost int64)
	Fresh(s S, now Time) bool
	Convert(s S, from A, now Time) S
}

func anyState[S any, A counting[S, A]](t *testing.T, x, y A, s S, now Time, cost int64) {
	for _, a := range []A{x, y, x} {
		makesSense(t, a.Peek(s, now, cost))
		makesSense(t, a.Take(&s, now, cost))
		a.Refuse(&s, now, cost)
		makesSense(t, a.Peek(s, now, 1))
		a.Refund(&s, now, cost)
		makesSense(t, a.Take(&s, now.Add(1), 0))
		a.Fresh(s, now)
		s = y.Convert(s, x, now)
		x, y = y, x
	}
}

func anyWord(t *testing.T, b *Bucket, word, moment uint64, cost int64) {
	p, ok := b.Pack()
	if !ok {
		return
	}
	tick := p.Tick(moment)
	makesSense(t, p.Verdict(word, tick, cost))
	if next, fits := p.Take(word, tick, cost); fits && next >= 1<<62 && word < 1<<61 {
		t.Errorf("%+v: %d at %d became %d, which is no word", p, word, tick, next)
	}
	p.Refund(word, cost)
	p.Delay(word, tick)
	if p.Repack(p.Unpack(word, 1), 1) != word {
		t.Errorf("%d is another word once packed again", word)
	}
}

func makesSense(t *testing.T, v Verdict) {
	t.Helper()
	if v.Allowed != (v.Reason == ReasonNone) || v.Remaining < 0 || v.RetryAfter < 0 || v.ResetAfter < 0 || v.Delay < 0 || v.Allowed && v.RetryAfter != 0 {
		t.Errorf("%+v", v)
	}
}
