package limit

import (
	"context"
	"errors"
	"math/big"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// TestBucketOwes: what a bucket counts though it does not fit is paid by its rate and by
// nothing else: at every moment a cost fits exactly when what was charged since the bucket
// was last full, this cost included, is at most the burst and what has come since. The
// packed form agrees.
func TestBucketOwes(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	for range 400 {
		p := Policy{Rate: Rate{1 + r.Int64N(1000), time.Duration(1 + r.Int64N(1e10))}, Burst: r.Int64N(1000), CountRefused: true}
		if r.IntN(3) == 0 {
			p.Algorithm = LeakyBucket
		}
		b := NewBucket(p)
		packed, fits := b.Pack()
		var s BucketState
		var word uint64
		const begin = Time(1e18)
		now := begin
		debt := new(big.Rat) // in tokens
		rate := big.NewRat(p.Rate.Count, int64(p.Rate.Period))
		for range 60 {
			step := r.Int64N(1 + r.Int64N(3*int64(p.Rate.Period)))
			now += Time(step)
			debt.Sub(debt, new(big.Rat).Mul(rate, big.NewRat(step, 1)))
			if debt.Sign() < 0 {
				debt.SetInt64(0)
			}
			cost := r.Int64N(1 + 3*p.Quota())
			after := new(big.Rat).Add(debt, big.NewRat(cost, 1))
			want := cost == 0 || after.Cmp(big.NewRat(p.Quota(), 1)) <= 0
			before := s
			peeked := b.Peek(s, now, cost)
			if s != before {
				t.Fatal("a peek changed the state")
			}
			v := b.Take(&s, now, cost)
			if v.Allowed != want || peeked.Allowed != want {
				t.Fatalf("%+v: cost %d with %v used: allowed %v, peeked %v, want %v", p, cost, debt, v.Allowed, peeked.Allowed, want)
			}
			debt = after
			if fits {
				tick := packed.Tick(uint64(now - begin))
				next, ok := packed.Take(word, tick, cost)
				if !ok {
					next = packed.Owe(word, tick, cost)
				}
				if word = next; cost > 0 && ok != want || packed.Unpack(word, begin) != s && cost > 0 {
					t.Fatalf("%+v: packed %v %v, want %v %v", p, ok, packed.Unpack(word, begin), want, s)
				}
			}
			if !v.Allowed && v.RetryAfter != Never && v.RetryAfter > 0 {
				if b.Peek(s, now.Add(v.RetryAfter-1), cost).Allowed || !b.Peek(s, now.Add(v.RetryAfter), cost).Allowed {
					t.Fatalf("%+v: %d does not begin to fit after %v", p, cost, v.RetryAfter)
				}
			}
			if back := r.Int64N(1 + cost); r.IntN(3) == 0 {
				b.Refund(&s, now, back)
				if word = packed.Refund(word, back); !fits {
					word = 0
				}
				if debt.Sub(debt, big.NewRat(back, 1)); debt.Sign() < 0 {
					debt.SetInt64(0)
				}
			}
		}
	}
}

// TestOwedWithoutEnd: no number of charges, however large, wraps around.
func TestOwedWithoutEnd(t *testing.T) {
	for _, rate := range []Rate{{1, 1 << 62}, {MaxCount, 1}, {3, time.Second}, {0, 0}} {
		b := NewBucket(Policy{Rate: rate, Burst: 5, CountRefused: true})
		packed, fits := b.Pack()
		var s BucketState
		var word uint64
		for range 300 {
			b.Take(&s, 1<<62, MaxCount)
			if b.Peek(s, 1<<62, 1).Allowed {
				t.Fatalf("%v: the debt was forgotten", rate)
			}
			if fits {
				if word = packed.Owe(word, packed.Tick(1<<40), MaxCount); word >= 1<<62 {
					t.Fatalf("%v: the word %x has the marks of the table", rate, word)
				}
				if _, ok := packed.Take(word, packed.Tick(1<<40), 1); ok {
					t.Fatalf("%v: the word's debt was forgotten", rate)
				}
			}
		}
	}
}

// TestRequestCountsRefused: a Limiter charges a request that says so as it would under a
// policy that counts refused requests, and all others as ever.
func TestRequestCountsRefused(t *testing.T) {
	r := seeding.Rand(t)
	for _, algorithm := range []Algorithm{TokenBucket, LeakyBucket, FixedWindow, SlidingWindowLog, SlidingWindowCounter} {
		for range 40 {
			synctest.Test(t, func(t *testing.T) {
				p := Policy{Algorithm: algorithm, Rate: Rate{1 + r.Int64N(50), time.Second}, Burst: r.Int64N(50)}
				l, err := NewLimiter(p)
				if err != nil {
					t.Fatal(err)
				}
				plain := newMeter(p)
				p.CountRefused = true
				counting := newMeter(p)
				var want ledger
				for range 50 {
					time.Sleep(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
					req := Request{Cost: 1 + r.Int64N(60), CountRefused: r.IntN(2) == 0, Peek: r.IntN(8) == 0}
					var v Verdict
					switch now := l.now(); {
					case req.Peek:
						if v = plain.peek(&want, now, req.Cost); v.Allowed {
							is := plain.peek(&want, now, 0)
							v.Remaining, v.ResetAfter = is.Remaining, is.ResetAfter
						}
					case req.CountRefused:
						v = counting.take(&want, now, req.Cost)
						want.last = now
					default:
						v = plain.take(&want, now, req.Cost)
					}
					d, err := l.Take(context.Background(), req)
					if err != nil || d.Results[0].Verdict != v || d.Allowed != v.Allowed {
						t.Fatalf("%+v %+v: %+v, %v, want %+v", p, req, d, err, v)
					}
				}
			})
		}
	}
}

// TestCountedBeforeThoseWhoWait: a cost that was spent already is charged before the waiters;
// those that would now have to wait longer than they want get their error at once.
func TestCountedBeforeThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := NewLimiter(Policy{Rate: PerSecond(10), Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		l.Allow()
		begin := time.Now()
		patient, hasty := make(chan time.Duration, 1), make(chan error, 1)
		go func() {
			if err := l.Wait(context.Background()); err != nil {
				t.Error(err)
			}
			patient <- time.Since(begin)
		}()
		synctest.Wait()
		go func() { hasty <- l.WaitMax(context.Background(), 500*time.Millisecond) }()
		synctest.Wait()
		d, err := l.Take(context.Background(), Request{Cost: 20, CountRefused: true})
		if err != nil || d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
		if err := <-hasty; !errors.Is(err, ErrWaitTooLong) || time.Since(begin) > 0 {
			t.Errorf("told %v after %v", err, time.Since(begin))
		}
		if got := <-patient; got != 2100*time.Millisecond {
			t.Errorf("let go after %v, want 2.1 s: its own token and the twenty", got)
		}
	})
}

// TestCountedBeforeThoseWhoWaitIsToldWhy: what is counted before those in line is refused
// like any other: with the reason, and the time after which it fits behind all of them.
func TestCountedBeforeThoseWhoWaitIsToldWhy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, bucketPolicy(PerSecond(10), 5))
		l.AllowN(time.Now(), 5)
		q := told{start: time.Now()}
		q.join(l, 0, 1, Never)
		d, err := l.Take(t.Context(), Request{Cost: 3, CountRefused: true})
		want := Verdict{Reason: ReasonRate, RetryAfter: 700 * time.Millisecond, ResetAfter: 900 * time.Millisecond}
		if got := d.Results[0].Verdict; err != nil || d.Allowed || got != want {
			t.Errorf("%+v, %v, want %+v: 3 that are owed, 1 that waits and 3 more", got, err, want)
		}
		time.Sleep(time.Second)
		if got := q.all(); len(got) != 1 || got[0].err != nil || got[0].after != 400*time.Millisecond {
			t.Errorf("told %+v, want a permit after 400ms", got)
		}
	})
}

// TestAllCountsRefused: of several limits each counts a request that one of them refuses.
func TestAllCountsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := func(burst int64, refused bool) *Limiter {
			l, err := NewLimiter(Policy{Rate: PerSecond(1), Burst: burst, CountRefused: refused})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		wide, narrow, counting, last := limiter(100, false), limiter(10, false), limiter(10, true), limiter(100, false)
		all, err := All(Scope{Name: "wide", Taker: wide}, Scope{Name: "narrow", Taker: narrow}, Scope{Name: "counting", Taker: counting},
			Scope{Name: "last", Taker: takerOnly{last}})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range [][4]int64{{70, 0, 0, 70}, {40, 0, 0, 40}} {
			d, err := all.Take(context.Background(), Request{Cost: 30, CountRefused: true})
			if err != nil || d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			got := [4]int64{wide.Remaining(), narrow.Remaining(), counting.Remaining(), last.Remaining()}
			if got != want {
				t.Errorf("after %d: %v are left, want %v", i+1, got, want)
			}
		}
		for name, l := range map[string]*Limiter{"narrow": narrow, "counting": counting} {
			d, _ := l.Take(context.Background(), Request{Cost: 1, Peek: true})
			if got := d.Results[0].RetryAfter; got != 51*time.Second {
				t.Errorf("%s: the debt of 50 and the token take %v", name, got)
			}
		}
	})
}

// TestAllCountsRefusedOnce: a refused request that counts is charged to each scope that it
// has a cost for exactly once, whichever refused it, and no other scope is asked.
func TestAllCountsRefusedOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name         string
			holder, last int64 // what there is
			cost, lasts  int64 // of the holder and of the last scope
			allowed      bool
			asked        int64 // how often the last is
		}{
			{"both admit", 10, 10, 3, 3, true, 1},
			{"the holder refuses", 2, 10, 3, 3, false, 1},
			{"the last refuses", 10, 2, 3, 3, false, 1},
			{"both refuse", 2, 2, 3, 3, false, 1},
			{"the last is left out", 2, 10, 3, 0, false, 0},
			{"the holder is left out", 0, 2, 0, 3, false, 1},
			{"there is no last", 2, -1, 3, 0, false, 0},
		} {
			at := func(burst int64) *Limiter { return newLimiter(t, bucketPolicy(PerSecond(1), burst)) }
			costs := func(n int64) func(Request) (int64, error) {
				return func(Request) (int64, error) { return n, nil }
			}
			holder, behind := at(tt.holder), at(max(tt.last, 0))
			last := &plainTaker{taker: behind}
			scopes := []Scope{{Name: "holder", Taker: holder, Cost: costs(tt.cost)}}
			if tt.last >= 0 {
				scopes = append(scopes, Scope{Name: "last", Taker: last, Cost: costs(tt.lasts)})
			}
			d, err := must(All(scopes...)).Take(t.Context(), Request{CountRefused: true})
			if err != nil || d.Allowed != tt.allowed || last.asked.Load() != tt.asked {
				t.Errorf("%s: %+v, %v, the last was asked %d times, want %v and %d", tt.name, d, err, last.asked.Load(), tt.allowed, tt.asked)
			}
			// What is left shows in the wait for the whole burst: a second for each that was taken.
			for name, l := range map[string]*Limiter{"holder": holder, "last": behind} {
				want := map[string]int64{"holder": tt.cost, "last": tt.lasts}[name]
				quota := l.Policy().Burst
				if quota == 0 {
					continue
				}
				p := must(l.Take(t.Context(), Request{Cost: quota, Peek: true}))
				if got := p.RetryAfter(); got != time.Duration(want)*time.Second {
					t.Errorf("%s: the %s is full after %v, want %d s", tt.name, name, got, want)
				}
			}
		}
	})
}

type takerOnly struct{ Taker }
