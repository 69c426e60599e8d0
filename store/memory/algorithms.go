package memory

import (
	"github.com/stint-io/stint/limit"
)

// newLockedTable returns an empty table for the algorithm of p.
func newLockedTable(c *Counters, p limit.Policy) table {
	if p.Unlimited {
		return admitsAll{}
	}
	switch p.Algorithm {
	case limit.FixedWindow:
		a := limit.NewFixedCounter(p)
		t := newTableOf(c, ruleOf[limit.FixedState](&a, windowsOf(a)))
		// A ban is of one key: keys that share the overflow bucket are refused until their
		// window ends, and no longer.
		p.Ban, p.CountRefused = 0, false
		shared := limit.NewFixedCounter(p)
		t.shared = ruleOf[limit.FixedState](&shared, windowsOf(shared))
		return t
	case limit.SlidingWindowLog:
		a := limit.NewSlidingLog(p)
		counting := a.CountingRefused()
		r := ruleOf[limit.LogState](&a, either(&a, &counting))
		r.bytes, r.clone = (*limit.LogState).Bytes, (*limit.LogState).Clone
		return newTableOf(c, r)
	case limit.SlidingWindowCounter:
		a := limit.NewSlidingCounter(p)
		counting := a.CountingRefused()
		return newTableOf(c, ruleOf[limit.SlidingState](&a, either(&a, &counting)))
	case limit.RisingWindow:
		a := limit.NewRisingCounter(p)
		counting := a.CountingRefused()
		return newTableOf(c, ruleOf[limit.SlidingState](&a, either(&a, &counting)))
	case limit.Concurrency:
		a := limit.NewInFlight(p)
		return newTableOf(c, permitsRule(&a))
	default:
		a := limit.NewBucket(p)
		counting := a.CountingRefused()
		pick := either(&a, &counting)
		return newTableOf(c, ruleOf[limit.BucketState](&a, func(k ask) *limit.Bucket {
			if !k.own {
				return pick(k)
			}
			b := pick(k).WithQuota(k.quota)
			return &b
		}))
	}
}

// either returns a function that selects the arithmetic for an ask: the policy's, or the one
// that counts refused requests.
func either[A any](plain, counting A) func(ask) A {
	return func(a ask) A {
		if a.counts {
			return counting
		}
		return plain
	}
}

// windowsOf is either for fixed windows, where an ask may bring its own count.
func windowsOf(plain limit.FixedCounter) func(ask) *limit.FixedCounter {
	counting := plain.CountingRefused()
	pick := either(&plain, &counting)
	return func(a ask) *limit.FixedCounter {
		if !a.own {
			return pick(a)
		}
		w := pick(a).WithQuota(a.quota)
		return &w
	}
}

// counting is what the algorithms of package limit have in common, all but the
// permits of [limit.InFlight].
type counting[S, A any] interface {
	Take(s *S, now limit.Time, cost int64) limit.Verdict
	Peek(s S, now limit.Time, cost int64) limit.Verdict
	Refuse(s *S, now limit.Time, cost int64)
	Refund(s *S, now limit.Time, cost int64)
	Holds(s S, now, taken limit.Time) bool
	Fresh(s S, now limit.Time) bool
	Convert(s S, from A, now limit.Time) S
}

func ruleOf[S any, A counting[S, A]](a A, of func(ask) A) rule[S] {
	return rule[S]{
		take:   func(s *S, now limit.Time, k ask) limit.Verdict { return of(k).Take(s, now, k.cost) },
		peek:   func(s *S, now limit.Time, k ask) limit.Verdict { return of(k).Peek(*s, now, k.cost) },
		refuse: func(s *S, now limit.Time, k ask) { of(k).Refuse(s, now, k.cost) },
		refund: func(s *S, now, taken limit.Time, cost int64) {
			if taken == 0 || a.Holds(*s, now, taken) {
				a.Refund(s, now, cost)
			}
		},
		fresh:      func(s *S, now limit.Time) bool { return a.Fresh(*s, now) },
		arithmetic: a,
		convert: func(s S, from any, now limit.Time) S {
			if same, ok := from.(A); ok {
				return a.Convert(s, same, now)
			}
			// Rising windows and sliding ones have states of one type. Another algorithm starts afresh.
			return *new(S)
		},
	}
}

func permitsRule(a *limit.InFlight) rule[limit.InFlightState] {
	type S = limit.InFlightState
	return rule[S]{
		take: func(s *S, now limit.Time, k ask) limit.Verdict {
			return a.Take(s, now, k.cost, k.permit)
		},
		peek:   func(s *S, now limit.Time, k ask) limit.Verdict { return a.Peek(*s, now, k.cost) },
		refuse: func(s *S, now limit.Time, k ask) { a.Refuse(s, now, k.cost) },
		refund: func(*S, limit.Time, limit.Time, int64) {}, // a permit in flight is given back by Finish
		fresh:  func(s *S, now limit.Time) bool { return a.Fresh(*s, now) },
		finish: func(s *S, now limit.Time, permit uint64, keep bool) {
			if keep {
				a.Keep(s, now, permit)
			} else {
				a.Finish(s, permit)
			}
		},
		bytes:      (*S).Bytes,
		clone:      (*S).Clone,
		arithmetic: a,
		convert: func(s S, from any, now limit.Time) S {
			return a.Convert(s, from.(*limit.InFlight), now)
		},
	}
}

// admitsAll is the table of an unlimited policy.
type admitsAll struct{}

func (admitsAll) take(uint64, ask) (limit.Verdict, bool) { return unlimited, true }
func (admitsAll) peek(uint64, ask) (limit.Verdict, bool) { return unlimited, true }
func (admitsAll) refund(uint64, limit.Time, int64) bool  { return true }
func (admitsAll) finish(uint64, uint64, bool) bool       { return true }
func (admitsAll) reset(uint64) bool                      { return true }
func (admitsAll) join(uint64, *member, bool) bool        { return true }
func (admitsAll) successor() table                       { return nil }
func (admitsAll) keys() int64                            { return 0 }
func (admitsAll) sweep()                                 {}
func (admitsAll) moveTo(table)                           {}
func (admitsAll) drop()                                  {}
