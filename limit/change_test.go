package limit

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
)

// changes is what a limit admitted while its policy changed, all of them buckets.
type changes struct {
	mu       sync.Mutex // of at and cost: waiters are told by a goroutine of their own
	policies []Policy
	since    []Time // when each came into force
	at       []Time // of what was admitted
	cost     []int64
}

func (c *changes) set(now Time, p Policy) {
	c.policies, c.since = append(c.policies, p), append(c.since, now)
}

func (c *changes) admit(now Time, cost int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.cost = append(c.at, now), append(c.cost, cost)
}

// over returns an error if in some interval more was admitted than the largest burst
// and the largest rate that were in force in it: burst + rate x T.
func (c *changes) over() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := 0 // the first policy in force at the moment at which the interval begins
	for i := range c.at {
		for first+1 < len(c.since) && c.since[first+1] < c.at[i] {
			first++
		}
		policy, burst, n, p := first, int64(0), uint64(0), uint64(1)
		sum := int64(0)
		for j := i; j < len(c.at); j++ {
			for ; policy < len(c.since) && c.since[policy] <= c.at[j]; policy++ {
				burst = max(burst, c.policies[policy].Quota())
				if m, q := c.policies[policy].Rate.ticks(); more(m, p, n, q) {
					n, p = m, q
				}
			}
			if sum += c.cost[j]; sum > burst && more(uint64(sum-burst), p, uint64(c.at[j]-c.at[i]), n) {
				return fmt.Errorf("%d were admitted in %v, of a burst of %d and %d per %v", sum, time.Duration(c.at[j]-c.at[i]), burst, n, time.Duration(p))
			}
		}
	}
	return nil
}

// more says whether a x b > c x d.
func more(a, b, c, d uint64) bool {
	h1, l1 := bits.Mul64(a, b)
	h2, l2 := bits.Mul64(c, d)
	return h1 > h2 || h1 == h2 && l1 > l2
}

// drawBucket draws a bucket as people write them, and some as nobody does.
func drawBucket(r *rand.Rand) Policy {
	p := Policy{Algorithm: Algorithm(r.IntN(2)), Burst: r.Int64N(1 << r.IntN(9))}
	p.Rate = []Rate{
		{},
		{3, 24 * time.Hour},
		{100, 24 * time.Hour},
		PerMinute(1),
		{7, 3 * time.Second},
		PerSecond(10), PerSecond(999_983),
		{1 + r.Int64N(1e6), time.Duration(1 + r.Int64N(1e12))},
		{1e9, time.Second},
	}[r.IntN(9)]
	return p
}

// drawStep draws how long it is until something happens: mostly next to nothing.
func drawStep(r *rand.Rand) time.Duration {
	return time.Duration(r.Int64N(1 << r.IntN(38)))
}

// What is admitted while burst and rate change at random, to and fro, is in no interval
// more than the largest burst and the largest rate in it allow.
func TestHistoriesBucketChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	changed, refused := 0, 0
	eachHistory(t, func(r *rand.Rand) error {
		turns := []Policy{drawBucket(r), drawBucket(r), drawBucket(r)}
		b, c, s, now := NewBucket(turns[0]), changes{}, BucketState{}, Time(r.Int64N(1<<60))
		c.set(now, turns[0])
		for range 60 {
			now = now.Add(drawStep(r))
			if r.IntN(3) == 0 {
				next := NewBucket(turns[r.IntN(3)])
				s = next.Convert(s, &b, now)
				b = next
				c.set(now, Policy{Rate: Rate{int64(b.n), time.Duration(b.p)}, Burst: int64(b.quota)})
				changed++
				continue
			}
			cost := 1 + r.Int64N(1+int64(b.quota)/2)
			if b.Take(&s, now, cost).Allowed {
				c.admit(now, cost)
			} else {
				refused++
			}
		}
		return c.over()
	})
	if n := histories(t); changed < 10*n || refused < 10*n {
		t.Errorf("%d changes and %d refusals in %d histories show little", changed, refused, n)
	}
}

// The same of a Limiter under virtual time, with its fast path and its waiters.
func TestHistoriesLimiterChanges(t *testing.T) {
	admitted := 0
	eachHistory(t, func(r *rand.Rand) (err error) {
		synctest.Test(t, func(t *testing.T) {
			p := drawBucket(r)
			p.Algorithm = TokenBucket // what is held back acts later than it is taken
			l, c, began := newLimiter(t, p), changes{}, time.Now()
			now := func() Time { return Time(time.Since(began)) }
			c.set(0, p)
			for range 40 {
				time.Sleep(drawStep(r))
				switch r.IntN(6) {
				case 0:
					p.Burst = drawBucket(r).Burst
					err = l.SetBurst(p.Burst)
					c.set(now(), p)
				case 1:
					p.Rate = drawBucket(r).Rate
					err = l.SetRate(p.Rate)
					c.set(now(), p)
				case 2:
					cost := 1 + r.Int64N(1+p.Burst/2)
					l.WaitFunc(cost, drawStep(r), func(err error) {
						if err == nil {
							c.admit(now(), cost)
						}
					})
				case 3:
					if l.Allow() {
						c.admit(now(), 1)
					}
				default:
					if cost := 1 + r.Int64N(1+p.Burst/2); l.AllowN(time.Now(), cost) {
						c.admit(now(), cost)
					}
				}
				if err != nil {
					return
				}
				synctest.Wait()
			}
			if err = l.SetBurst(0); err == nil { // nobody waits any longer
				c.set(now(), Policy{Rate: p.Rate})
				synctest.Wait()
				admitted += len(c.at)
				err = c.over()
			}
		})
		return err
	})
	if n := histories(t); admitted < 3*n {
		t.Errorf("%d were admitted in %d histories: they show little", admitted, n)
	}
}

// What was used stays used: through a smaller burst, another rate, and back.
func TestBucketChangeAndBack(t *testing.T) {
	day := func(n int64) Policy { return Policy{Rate: Rate{n, 24 * time.Hour}, Burst: n} }
	l := newLimiter(t, day(100))
	for range 100 {
		l.Allow()
	}
	for _, p := range []Policy{day(1), {Rate: PerSecond(1e9)}, {Algorithm: LeakyBucket, Rate: PerHour(1)}, {}} {
		if p.Rate.Count == 1e9 {
			p.Rate = PerHour(1)
		}
		if err := l.SetPolicy(p); err != nil {
			t.Fatal(err)
		}
		if l.Allow() {
			t.Errorf("%+v: admits, with 100 used of 100 before", p)
		}
		if err := l.SetPolicy(day(100)); err != nil {
			t.Fatal(err)
		}
		if n := l.Remaining(); n != 0 {
			t.Errorf("%+v and back: %d remain, want 0", p, n)
		}
	}
}

// A debt is paid at the rate in force, to the nanosecond; only then is anything admitted.
func TestBucketPaysDebt(t *testing.T) {
	for i := range 20_000 {
		r := rand.New(rand.NewPCG(uint64(i), 77))
		from, to := drawBucket(r), drawBucket(r)
		from.Algorithm, to.Algorithm = TokenBucket, TokenBucket
		to.Burst++
		a, b := NewBucket(from), NewBucket(to)
		var s BucketState
		now, used := Time(r.Int64N(1<<60)), r.Int64N(from.Burst+1)
		a.Take(&s, now, used)
		s = b.Convert(s, &a, now)
		want := max(0, used-to.Burst+1) // what is to be paid before one fits
		v := b.Peek(s, now, 1)
		after := time.Duration(0)
		if want > 0 {
			after = to.Rate.durationOf(want)
		}
		if v.Allowed != (want == 0) || v.RetryAfter != after {
			t.Fatalf("case %d: %d used of %+v, under %+v: %+v, want one to fit after %v", i, used, from, to, v, after)
		}
		if want > 0 && v.RetryAfter < 1<<61 {
			if b.Peek(s, now.Add(v.RetryAfter-1), 1).Allowed || !b.Peek(s, now.Add(v.RetryAfter), 1).Allowed {
				t.Fatalf("case %d: RetryAfter %v is not when one fits", i, v.RetryAfter)
			}
		}
	}
}

// Two instances with different policies that alternate, at one time or a nanosecond apart, add
// less than one token in all: rounding never refills.
func TestBucketTurnsAddNothing(t *testing.T) {
	for i := range 5_000 {
		r := rand.New(rand.NewPCG(uint64(i), 78))
		x, y := drawBucket(r), drawBucket(r)
		a, b := NewBucket(x), NewBucket(y)
		var s BucketState
		now := Time(r.Int64N(1 << 60))
		used := r.Int64N(x.Burst + 1)
		a.Take(&s, now, used)
		before := ticks(s).Minus(a.at(now))
		for range 50 {
			s = a.Convert(b.Convert(s, &a, now), &b, now)
			after := ticks(s).Minus(a.at(now))
			if before.More(after) || after.More(fixed.Product(uint64(used), a.p)) {
				t.Fatalf("case %d: %d used, %+v ticks became %+v", i, used, before, after)
			}
		}
		part := BucketState(a.at(now).Add(r.Uint64N(a.p))) // less than a token
		for range 50 {
			part = a.Convert(b.Convert(part, &a, now), &b, now)
		}
		if !ticks(part).Minus(a.at(now)).AtMost(a.p) {
			t.Fatalf("case %d: a part of a token became more than one", i)
		}
	}
}

// A reservation keeps its time under a smaller burst, and its cost becomes debt.
func TestReservationIsDebtUnderASmallerBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, bucketPolicy(PerSecond(1), 10))
		l.AllowN(time.Now(), 10)
		r := l.ReserveN(time.Now(), 10)
		if d := r.Delay(); d != 10*time.Second {
			t.Fatalf("reserved in %v, want 10s", d)
		}
		for _, burst := range []int64{2, 10} {
			if err := l.SetBurst(burst); err != nil {
				t.Fatal(err)
			}
			if d := r.Delay(); d != 10*time.Second {
				t.Errorf("burst %d: reserved in %v, want 10s", burst, d)
			}
		}
		time.Sleep(10 * time.Second)
		if n := l.Remaining(); n != 0 {
			t.Errorf("%d remain when the reservation has its 10, want 0", n)
		}
		if err := l.SetBurst(2); err != nil {
			t.Fatal(err)
		}
		time.Sleep(8 * time.Second)
		if l.Allow() {
			t.Error("one fits 8 s after 10 were taken at 1/s, with a burst of 2")
		}
		time.Sleep(time.Second)
		if !l.Allow() {
			t.Error("one does not fit 9 s after 10 were taken at 1/s, with a burst of 2")
		}
	})
}

// The same where the burst stays small until the reservation's time, and where something
// before it is given back afterwards.
func TestReservationIsDebtWhenItActs(t *testing.T) {
	for _, cancel := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, bucketPolicy(PerSecond(1), 10))
			l.AllowN(time.Now(), 10)
			before := l.ReserveN(time.Now(), 1)
			r := l.ReserveN(time.Now(), 10)
			if d := r.Delay(); d != 11*time.Second {
				t.Fatalf("reserved in %v, want 11s", d)
			}
			if err := l.SetBurst(2); err != nil {
				t.Fatal(err)
			}
			time.Sleep(r.Delay())
			given := int64(0)
			if cancel && before.Cancel() {
				given = 1
			}
			if err := l.SetBurst(10); err != nil {
				t.Fatal(err)
			}
			if n := l.Remaining(); n > given {
				t.Errorf("%d remain when the reservation has its 10, of which %d were given back", n, given)
			}
		})
	}
}

// A limit that was unlimited for a time starts afresh.
func TestUnlimitedForgets(t *testing.T) {
	l := newLimiter(t, bucketPolicy(PerHour(1), 3))
	l.AllowN(time.Now(), 3)
	for _, p := range []Policy{{Unlimited: true}, bucketPolicy(PerHour(1), 3)} {
		if err := l.SetPolicy(p); err != nil {
			t.Fatal(err)
		}
		if !l.AllowN(time.Now(), 3) {
			t.Errorf("%+v: refuses", p)
		}
	}
}

// What no word holds is the highest word, and refuses.
func TestRepackSaturates(t *testing.T) {
	b := NewBucket(bucketPolicy(PerHour(1), 1))
	p, ok := b.Pack()
	if !ok {
		t.Fatal("1/hour does not fit")
	}
	for _, s := range []BucketState{{Hi: 1}, {Lo: 1 << 63}, {Lo: 1<<62 + 1}, {Hi: 5, Lo: 7}} {
		if w := p.Repack(s, 1); w != packedMost {
			t.Errorf("%+v: word is %d, want %d", s, w, uint64(packedMost))
		}
	}
}

// windowsIn is what a fixed window of policy p allows in [from, to]: its count in each
// window that it meets.
func windowsIn(p Policy, from, to Time) int64 {
	return p.Rate.Count * (int64(to)/int64(p.Rate.Period) - int64(from)/int64(p.Rate.Period) + 1)
}

// What is admitted by fixed windows whose length and count change at random, to and fro,
// is in no interval more than each of the policies in force in it allows by itself,
// together.
func TestHistoriesFixedChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	lengths := []time.Duration{time.Second, 10 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour, 7 * time.Second, 45 * time.Second}
	most := 0.0
	eachHistory(t, func(r *rand.Rand) error {
		policies := make([]Policy, 2+r.IntN(2))
		for i := range policies {
			policies[i] = Policy{Algorithm: FixedWindow, Rate: Rate{r.Int64N(1 << r.IntN(9)), lengths[r.IntN(len(lengths))]}, CountRefused: r.IntN(8) == 0}
		}
		now, in := Time(r.Int64N(1<<50)), 0
		w := NewFixedCounter(policies[in])
		var s FixedState
		var admitted []event
		for range 60 {
			now += Time(r.Int64N(int64(lengths[r.IntN(len(lengths))]) / 4))
			if r.IntN(3) == 0 {
				in = r.IntN(len(policies))
				next := NewFixedCounter(policies[in])
				s, w = next.Convert(s, &w, now), next
			}
			for range 1 + r.IntN(3) {
				if cost := 1 + r.Int64N(1+policies[in].Rate.Count); w.Take(&s, now, cost).Allowed {
					admitted = append(admitted, event{now, cost})
				}
			}
		}
		for i := range admitted {
			sum := int64(0)
			for _, e := range admitted[i:] {
				sum += e.cost
				bound := int64(0)
				for _, p := range policies {
					bound += windowsIn(p, admitted[i].at, e.at)
				}
				if sum > bound {
					return fmt.Errorf("%d were admitted in %v, of %d: %v", sum, time.Duration(e.at-admitted[i].at), bound, policies)
				}
				most = max(most, float64(sum)/float64(bound))
			}
		}
		return nil
	})
	t.Logf("at most %.3f of the bound", most)
}

// What was used of a long window is refused in a shorter one for as many of its windows
// as bring it, and not beyond the end of the long one; and the way back has nothing left.
func TestShorterWindowOwes(t *testing.T) {
	day := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: Rate{100, 24 * time.Hour}})
	minute := NewFixedCounter(Policy{Algorithm: FixedWindow, Rate: PerMinute(3)})
	for _, c := range []struct{ at, until int64 }{{3600, 3600 + 34*60}, {86_400 - 600, 86_400}} {
		var s FixedState
		if !day.Take(&s, seconds(c.at), 100).Allowed {
			t.Fatal("the day's do not fit")
		}
		s = minute.Convert(s, &day, seconds(c.at+10))
		back := day.Convert(s, &minute, seconds(c.at+50))
		if v := day.Take(&back, seconds(c.at+50), 1); v.Allowed || v.ResetAfter != time.Duration(seconds(86_400)-seconds(c.at+50)) {
			t.Errorf("from %d on: back in the day %+v", c.at, v)
		}
		if v := minute.Take(&s, seconds(c.until)-1, 1); v.Allowed || v.RetryAfter != 1 {
			t.Errorf("from %d on: before %d %+v", c.at, c.until, v)
		}
		if v := minute.Take(&s, seconds(c.until), 3); !v.Allowed {
			t.Errorf("from %d on: at %d %+v", c.at, c.until, v)
		}
	}
}
