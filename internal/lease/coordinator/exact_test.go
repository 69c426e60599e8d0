package coordinator

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// exact is a bucket in exact arithmetic: its level is in millionths of a token times
// nanoseconds, so that a rate times a time is a whole number.
type exact struct {
	rate, burst, level int64
	at                 limit.Time
	// What counts, in tokens.
	admitted, refused, waiting int64
	lost                       int64 // what the bucket's rounding may have lost in all
}

const unit = int64(fixed.Token) * 1e9 // of the level

func (e *exact) accrue(now limit.Time) {
	if dt := int64(now - e.at); dt > 0 {
		e.level = min(e.burst*unit, e.level+e.rate*dt)
		e.at = now
	}
}

// decides wants that n was admitted if it is there, and not if it is not: nothing above the
// level, and nothing below but for what rounding has lost.
func (e *exact) decides(n int64, got bool) bool {
	fits := n <= e.burst && n*unit <= e.level
	if got {
		e.level -= n * unit
		return fits
	}
	return !fits || e.level-n*unit <= e.lost
}

// bucketRun is a Bucket beside an exact one.
type bucketRun struct {
	exact
	t        *testing.T
	r        *rand.Rand
	b        *bucket.Bucket
	deadline bucket.Deadline
	open     bool
	frozen   bool
	line     []int64
	now      limit.Time
}

// Rates whose tokens are a whole number of ticks.
var evenRates = []int64{0, 1, 2, 5, 10, 100, 1000, 8000}

// TestBucketAgainstExact: whatever is taken, held, undone, refunded, waited for, amended and
// ended, at any time, a Bucket admits what exact arithmetic does, never more, and says so.
func TestBucketAgainstExact(t *testing.T) {
	for seed := range seeding.Draw(t, 400) {
		r := rand.New(rand.NewPCG(seed, 71))
		q := &bucketRun{t: t, r: r, now: start}
		q.b = bucket.NewBucket(&q.deadline)
		q.at = start
		q.amend()
		for step := range 400 {
			if r.IntN(2) == 0 {
				q.now += limit.Time(r.Int64N(int64(time.Second)) >> r.IntN(20))
			}
			q.accrue(q.now)
			q.step()
			q.check()
			if t.Failed() {
				t.Fatalf("seed %d, step %d: %+v", seed, step, q.exact)
			}
		}
	}
}

func (q *bucketRun) step() {
	n := q.r.Int64N(6)
	now := q.now
	switch q.r.IntN(12) {
	case 0, 1, 2:
		allowed, decided := q.b.Allow(now, n)
		q.decided("Allow", n, allowed, decided, true)
	case 3:
		allowed, decided := q.b.Try(now, n)
		q.decided("Try", n, allowed, decided, false)
		if decided && !allowed && q.r.IntN(2) == 0 {
			q.b.Refuse(n)
			q.refused += n
		}
	case 4:
		q.hold(n)
	case 5:
		q.b.Refund(now, n)
		if q.open {
			q.level = min(q.burst*unit, q.level+min(n, q.burst)*unit)
		}
	case 6:
		q.amend()
	case 7:
		q.open = !q.open || q.r.IntN(3) > 0
		q.deadline.Store(int64(now))
		if q.open {
			q.deadline.Store(int64(lease.Never))
		}
	case 8:
		if !q.frozen {
			q.b.Freeze()
			q.frozen = true
			return
		}
		q.b.Join(n)
		q.waiting += n
		q.line = append(q.line, n)
	case 9, 10:
		q.serve()
	case 11:
		for _, n := range []int64{-1, -n - 1} {
			if allowed, decided := q.b.Allow(now, n); !q.frozen && (allowed || !decided) || q.frozen && allowed {
				q.t.Errorf("a cost of %d is admitted", n)
			}
			q.b.Refund(now, n)
			q.b.Rollback(now, bucket.Prepared{}, n)
		}
	}
}

// decided wants the answer of an Allow or Try.
func (q *bucketRun) decided(what string, n int64, allowed, decided, counts bool) {
	q.t.Helper()
	switch {
	case !q.open:
		// Whether those in line decide does not matter: nothing is to be had.
		if allowed {
			q.t.Errorf("%s(%d) is admitted after the deadline", what, n)
		}
		if !allowed && decided && counts {
			q.refused += n
		}
	case q.frozen:
		if decided || allowed {
			q.t.Errorf("%s(%d) decides while others wait", what, n)
		}
	default:
		if !decided || !q.decides(n, allowed) {
			q.t.Errorf("%s(%d) = %v, %v", what, n, allowed, decided)
		}
		if allowed {
			q.admitted += n
		} else if counts {
			q.refused += n
		}
	}
}

// hold takes n and keeps or undoes it, at once or later.
func (q *bucketRun) hold(n int64) {
	before := q.exact
	h, taken, decided := q.b.Prepare(q.now, n)
	if q.frozen || !q.open {
		if taken || decided && q.open {
			q.t.Errorf("Hold(%d) = %v, %v", n, taken, decided)
		}
		return
	}
	if !decided || !q.decides(n, taken) {
		q.t.Errorf("Hold(%d) = %v, %v", n, taken, decided)
	}
	if !taken {
		return
	}
	if q.r.IntN(2) == 0 {
		q.b.Commit(n)
		q.admitted += n
		return
	}
	if q.r.IntN(2) == 0 {
		q.now += limit.Time(q.r.Int64N(int64(time.Second)))
	}
	q.b.Rollback(q.now, h, n)
	q.exact = before
	q.accrue(q.now) // as if it had never been taken
}

// amend puts other terms in force, with tokens added or taken out.
func (q *bucketRun) amend() {
	rate, burst := evenRates[q.r.IntN(len(evenRates))], q.r.Int64N(8)
	add := fixed.Amount(q.r.Int64N(int64(6*fixed.Token))) - 3*fixed.Token
	if q.r.IntN(3) == 0 {
		add = 0
	}
	surplus, held := q.b.Update(q.now, fixed.Whole(rate), fixed.Whole(burst)+fixed.Amount(q.r.Int64N(int64(fixed.Token))), add)
	if held != fixed.Whole(burst) {
		q.t.Errorf("%v is held of a burst of %d", held, burst)
	}
	q.rate, q.burst = int64(fixed.Whole(rate)), burst
	q.lost += 4 * unit / int64(fixed.Token) // a millionth for each of two roundings, and two ticks
	want := max(0, -int64(add)) * 1e9
	if want > q.level {
		want = q.level
	}
	if q.level += int64(add) * 1e9; q.level < 0 {
		q.level = 0
	}
	if over := q.level - burst*unit; over > 0 {
		want += over
		q.level = burst * unit
	}
	if got := int64(surplus) * 1e9; got > want || got < want-q.lost {
		q.t.Errorf("surplus %d, want %d", got, want)
	}
}

// serve serves the first in line, or lets it leave, and thaws when no waiter is left.
func (q *bucketRun) serve() {
	if len(q.line) == 0 {
		if q.r.IntN(2) == 0 {
			q.b.Thaw()
			q.frozen = false
		}
		return
	}
	n := q.line[0]
	served := q.b.Serve(q.now, n)
	switch {
	case !q.open:
		if served {
			q.t.Errorf("Serve(%d) after the deadline", n)
		}
	case !q.decides(n, served):
		q.t.Errorf("Serve(%d) = %v", n, served)
	}
	if served {
		q.admitted, q.waiting = q.admitted+n, q.waiting-n
	} else if q.r.IntN(3) == 0 {
		q.b.Leave(n)
		q.refused, q.waiting = q.refused+n, q.waiting-n
	} else {
		return
	}
	q.line = q.line[1:]
}

// check wants that the bucket says how it stands.
func (q *bucketRun) check() {
	got := q.b.Observe(q.now)
	if level := int64(got.Level) * 1e9; level > q.level || level < q.level-q.lost-1e9 {
		q.t.Errorf("level %d, want %d", level, q.level)
	}
	if got.Admitted != fixed.Whole(q.admitted) || got.Attempted != fixed.Whole(q.admitted+q.refused+q.waiting) || got.Waiting != fixed.Whole(q.waiting) {
		q.t.Errorf("%+v, want %d admitted, %d refused, %d waiting", got, q.admitted, q.refused, q.waiting)
	}
	remaining, burst := q.b.Remaining(q.now), q.b.MaxCost(q.now)
	n := q.r.Int64N(12)
	wait := q.b.Earliest(q.now, n)
	if !q.open {
		if remaining != 0 || burst != 0 || wait != limit.Never {
			q.t.Errorf("after the deadline %d of %d remain, and %d come in %v", remaining, burst, n, wait)
		}
		return
	}
	if burst != q.burst || remaining > q.level/unit || remaining < (q.level-q.lost)/unit {
		q.t.Errorf("%d of %d remain, want %d of %d", remaining, burst, q.level/unit, q.burst)
	}
	short := n*unit - q.level
	switch {
	case short <= 0:
		if wait != 0 && short+q.lost < 0 {
			q.t.Errorf("%d are there, and come in %v", n, wait)
		}
	case q.rate == 0:
		if wait != limit.Never {
			q.t.Errorf("%d come in %v at a rate of 0", n, wait)
		}
	case int64(wait) < short/q.rate || int64(wait) > (short+q.lost)/q.rate+2:
		q.t.Errorf("%d come in %d ns, want %d", n, wait, short/q.rate)
	}
}

// permitsRun is Places beside a count.
type permitsRun struct {
	t                                       *testing.T
	r                                       *rand.Rand
	p                                       *bucket.Semaphore
	deadline                                bucket.Deadline
	asked, used, admitted, refused, waiting int64
	frozen, open, anytime                   bool
}

// TestPermitsAgainstCount: whatever is acquired, held, released, waited for, amended and ended,
// there are as many free as are asked for less those in use, and nothing is counted twice.
func TestPermitsAgainstCount(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		q := &permitsRun{t: t, r: rand.New(rand.NewPCG(seed, 73))}
		q.p = bucket.NewSemaphore(&q.deadline)
		for step := range 300 {
			q.step()
			q.check()
			if t.Failed() {
				t.Fatalf("seed %d, step %d: %+v", seed, step, q)
			}
		}
	}
}

// there is how many permits there are for who wants to get in.
func (q *permitsRun) there() int64 {
	if q.open || q.anytime {
		return q.asked
	}
	return 0
}

func (q *permitsRun) step() {
	n := q.r.Int64N(5)
	fits := n <= q.there()-q.used
	gets := fits && !q.frozen
	wrong := false
	switch q.r.IntN(10) {
	case 0, 1:
		wrong = q.p.Acquire(start, n) != gets
		if gets {
			q.used, q.admitted = q.used+n, q.admitted+n
		} else {
			q.refused += n
		}
	case 2:
		acquired, decided := q.p.Try(start, n)
		wrong = decided == q.frozen || acquired != gets
		if gets {
			q.used, q.admitted = q.used+n, q.admitted+n
		}
	case 3:
		_, taken, decided := q.p.Prepare(start, n)
		wrong = decided == q.frozen || taken != gets
		if taken && q.r.IntN(2) == 0 {
			q.p.Commit(n)
			q.used, q.admitted = q.used+n, q.admitted+n
		} else if taken {
			q.p.Release(n)
		}
	case 4, 5:
		wrong = q.p.Release(n) != (q.frozen && n > 0)
		q.used = max(0, q.used-n)
	case 6:
		q.amend()
	case 7:
		q.open = q.r.IntN(3) > 0
		q.deadline.Store(int64(start))
		if q.open {
			q.deadline.Store(int64(start) + 1)
		}
	case 8:
		if q.frozen = !q.frozen; !q.frozen {
			q.p.Thaw()
			q.p.Leave(q.waiting)
			q.refused, q.waiting = q.refused+q.waiting, 0
			return
		}
		q.p.Freeze()
		q.p.Join(n)
		q.waiting += n
		wrong = q.p.Serve(start, n) != fits
		if fits {
			q.used, q.admitted, q.waiting = q.used+n, q.admitted+n, q.waiting-n
		}
	case 9:
		wrong = q.p.Acquire(start, -1) || q.p.Release(-1)
		if _, taken, _ := q.p.Prepare(start, -1); taken {
			wrong = true
		}
	}
	if wrong {
		q.t.Errorf("%d of %d free: answered otherwise", n, q.there()-q.used)
	}
}

func (q *permitsRun) amend() {
	q.asked, q.anytime = q.r.Int64N(8), q.r.IntN(4) == 0
	part := fixed.Amount(q.r.Int64N(int64(fixed.Token)))
	if q.anytime {
		q.p.UpdateFallback(start, 0, fixed.Whole(q.asked)+part)
		return
	}
	add := fixed.Amount(q.r.Int64N(10) - 5)
	if surplus, held := q.p.Update(start, 0, fixed.Whole(q.asked)+part, add); surplus != max(0, add) || held != fixed.Whole(max(q.asked, q.used)) {
		q.t.Errorf("Update(%d) = %v, %v", q.asked, surplus, held)
	}
}

func (q *permitsRun) check() {
	got := q.p.Observe(start)
	if got.InUse != fixed.Whole(q.used) || got.Level != fixed.Whole(max(0, q.asked-q.used)) || got.Waiting != fixed.Whole(q.waiting) ||
		got.Admitted != fixed.Whole(q.admitted) || got.Attempted != fixed.Whole(q.admitted+q.refused+q.waiting) {
		q.t.Errorf("%+v", got)
	}
	n, free := q.r.Int64N(8), max(0, q.there()-q.used)
	if q.p.Remaining(start) != free || q.p.MaxCost(start) != q.there() || (q.p.Earliest(start, n) == 0) != (n <= free) {
		q.t.Errorf("%d of %d remain, want %d of %d", q.p.Remaining(start), q.p.MaxCost(start), free, q.there())
	}
}
