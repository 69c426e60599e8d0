package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// plainTaker hides that a Taker can give back, and counts what it is asked.
type plainTaker struct {
	taker Taker
	asked atomic.Int64
	err   error
}

func (p *plainTaker) Take(ctx context.Context, req Request) (Decision, error) {
	p.asked.Add(1)
	if p.err != nil {
		return Decision{}, p.err
	}
	return p.taker.Take(ctx, req)
}

// sharedLimiter says that others spend it as well, and may have to wait for more.
type sharedLimiter struct {
	*Limiter
	more   func() // called when it is waited for
	err    error
	waits  int
	kept   int
	undone int
}

func (s *sharedLimiter) Shared() bool { return true }

func (s *sharedLimiter) Prepare(ctx context.Context, req Request, wait bool, r *Result) (Prepared, error) {
	if s.err != nil {
		return Prepared{}, s.err
	}
	if wait {
		s.waits++
		s.more()
	}
	h, err := s.Limiter.Prepare(ctx, req, wait, r)
	h.More = err == nil && !r.Allowed && !wait && !req.Peek && s.more != nil
	return h, err
}

func (s *sharedLimiter) Commit(h Prepared)   { s.kept++; s.Limiter.Commit(h) }
func (s *sharedLimiter) Rollback(h Prepared) { s.undone++; s.Limiter.Rollback(h) }

// subscribers reads how many subscribers a channel has from the request.
func subscribers(r Request) int64 {
	text, _ := r.Get("subscribers")
	return must(strconv.ParseInt(text, 10, 64))
}

func publishTo(n int64) Request {
	return Request{Attributes: []Attribute{{"subscribers", strconv.FormatInt(n, 10)}}}
}

func one(Request) (int64, error)        { return 1, nil }
func fanOut(r Request) (int64, error)   { return subscribers(r), nil }
func everyone(r Request) (int64, error) { return SumCosts(1, subscribers(r)) }

// show writes a Decision in one line.
func show(d Decision, err error) string {
	if err != nil {
		return err.Error()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%v", d.Allowed)
	if r := d.Refused(); r != nil {
		fmt.Fprintf(&b, " by %s (%v) %d, retry %v", r.Limit, r.Reason, d.Status, d.RetryAfter())
	}
	for _, r := range d.Results {
		fmt.Fprintf(&b, "; %s %d of %d", r.Limit, r.Cost, r.Remaining)
	}
	return b.String()
}

// A publisher's connection, the channel and the account: a publish to n subscribers
// costs one in, n out and 1 + n of the account.
func TestScopesWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := newLimiter(t, bucketPolicy(PerSecond(1000), 1001))
		s := must(All(
			Scope{"account", &sharedLimiter{Limiter: account}, everyone},
			Scope{"connection", newLimiter(t, bucketPolicy(PerSecond(50), 3)), one},
			Scope{"out", newLimiter(t, bucketPolicy(PerSecond(1000), 2000)), fanOut},
		))
		for _, step := range []struct {
			wait        time.Duration
			subscribers int64
			want        string
		}{
			{0, 0, "true; connection 1 of 2; account 1 of 1000"},
			{0, 999, "true; connection 1 of 1; out 999 of 1001; account 1000 of 0"},
			{0, 1, "false by account (rate_exceeded) 429, retry 2ms; connection 1 of 1; out 1 of 1001; account 2 of 0"},
			{0, 2000, "false by out (rate_exceeded) 429, retry 2562047h47m16.854775807s; connection 1 of 1; out 2000 of 1001; account 2001 of 0"},
			{2 * time.Millisecond, 1, "true; connection 1 of 0; out 1 of 1002; account 2 of 0"},
			{0, 0, "false by connection (rate_exceeded) 429, retry 18ms; connection 1 of 0; account 1 of 0"},
			{time.Second, 0, "true; connection 1 of 2; account 1 of 999"},
			{0, -1, `limit: scope "out": limit: negative cost, want at least 0, it is -1`},
			{0, math.MaxInt64, `limit: scope "out": limit: cost too large: 9223372036854775807 is above 4611686018427387904`},
			{0, MaxCount, `limit: scope "account": limit: cost too large: the sum of 2 costs is above 4611686018427387904`},
			{0, 1, "true; connection 1 of 1; out 1 of 1999; account 2 of 997"},
		} {
			time.Sleep(step.wait)
			if got := show(s.Take(t.Context(), publishTo(step.subscribers))); got != step.want {
				t.Errorf("%d subscribers: got  %s\nwant %s", step.subscribers, got, step.want)
			}
		}
	})
}

// What is asked in which order: a refusal here keeps those that others share, and the one
// that cannot give back, from being asked.
func TestScopesOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := &plainTaker{taker: newLimiter(t, bucketPolicy(PerHour(1), 10))}
		shared := &sharedLimiter{Limiter: newLimiter(t, bucketPolicy(PerHour(1), 2))}
		local := newLimiter(t, bucketPolicy(PerHour(1), 1))
		s := must(All(Scope{"last", last, nil}, Scope{"shared", shared, nil}, Scope{"local", local, nil}))
		if got, want := show(s.Take(t.Context(), Request{})), "true; local 1 of 0; shared 1 of 1; last 1 of 9"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got, want := show(s.Take(t.Context(), Request{})), "false by local (rate_exceeded) 429, retry 1h0m0s; local 1 of 0; shared 1 of 1"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if last.asked.Load() != 1 || shared.kept != 1 || shared.undone != 0 {
			t.Errorf("last was asked %d times, shared kept %d and undone %d times: a local limit had refused", last.asked.Load(), shared.kept, shared.undone)
		}
		time.Sleep(time.Hour)
		if d, err := s.Take(t.Context(), Request{Cost: 2}); err != nil || d.Allowed || d.Refused().Limit != "local" || d.RetryAfter() != Never {
			t.Errorf("a cost above the burst: %s", show(d, err))
		}
		// The last one fails: nothing is charged.
		last.err = errors.New("away")
		if _, err := s.Take(t.Context(), Request{}); !errors.Is(err, last.err) || local.Remaining() != 1 || shared.Remaining() != 2 {
			t.Errorf("%v; local has %d, shared %d, want 1 and 2", err, local.Remaining(), shared.Remaining())
		}
		last.err, shared.err = nil, errors.New("closed")
		if _, err := s.Take(t.Context(), Request{}); !errors.Is(err, shared.err) || local.Remaining() != 1 {
			t.Errorf("%v; local has %d, want 1", err, local.Remaining())
		}
		shared.err = nil
		if d, err := s.Take(t.Context(), Request{Peek: true}); err != nil || !d.Allowed || local.Remaining() != 1 || last.taker.(*Limiter).Remaining() != 10 {
			t.Errorf("a peek: %s; local has %d", show(d, err), local.Remaining())
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.Take(ctx, Request{}); !errors.Is(err, context.Canceled) {
			t.Errorf("a context that has ended: %v", err)
		}
	})
}

// brokenPeek is a Preparer that fails in a peek, halfway through its answer.
type brokenPeek struct{ *Limiter }

func (b brokenPeek) Prepare(ctx context.Context, req Request, wait bool, r *Result) (Prepared, error) {
	h, err := b.Limiter.Prepare(ctx, req, wait, r)
	if req.Peek {
		r.Verdict, err = Verdict{}, errors.New("broken")
	}
	return h, err
}

// A refusal shows for each Preparer how it stands now, whichever refused: nothing is taken. A
// Preparer that cannot be asked is left out.
func TestScopesTellHowTheyStand(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		a, b := newLimiter(t, bucketPolicy(PerHour(1), 3)), newLimiter(t, bucketPolicy(PerHour(1), 5))
		last := &plainTaker{taker: newLimiter(t, bucketPolicy(PerHour(1), 2))}
		s := must(All(Scope{"a", a, nil}, Scope{"b", b, nil}, Scope{"last", last, nil}))
		for _, tt := range []struct {
			cost int64
			want string
		}{
			{2, "true; a 2 of 1; b 2 of 3; last 2 of 0"},
			{1, "false by last (rate_exceeded) 429, retry 1h0m0s; a 1 of 1; b 1 of 3; last 1 of 0"},
			{2, "false by a (rate_exceeded) 429, retry 1h0m0s; a 2 of 1; b 2 of 3"},
		} {
			if got := show(s.Take(t.Context(), Request{Cost: tt.cost})); got != tt.want {
				t.Errorf("a cost of %d: got  %s\nwant %s", tt.cost, got, tt.want)
			}
			if a.Remaining() != 1 || b.Remaining() != 3 {
				t.Errorf("a cost of %d: a has %d, b has %d, want 1 and 3", tt.cost, a.Remaining(), b.Remaining())
			}
		}
		broken := must(All(Scope{"broken", brokenPeek{b}, nil}, Scope{"a", a, nil}, Scope{"broken too", brokenPeek{b}, nil}))
		if got, want := show(broken.Take(t.Context(), Request{Cost: 2})), "false by a (rate_exceeded) 429, retry 1h0m0s; a 2 of 1"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		var r Result
		held, err := a.Prepare(t.Context(), Request{}, false, &r)
		if err != nil || !r.Allowed || r.Cost != 1 || a.Remaining() != 0 {
			t.Errorf("a Request without a cost: %+v, %v, %d remain", r, err, a.Remaining())
		}
		if a.Rollback(held); a.Remaining() != 1 {
			t.Errorf("%d remain when it is undone, want 1", a.Remaining())
		}
	})
}

// reads is a Taker that says what it reads.
type reads struct {
	*Limiter
	names []string
}

func (r reads) Attributes() []string { return r.names }

// The attributes of scopes are those of all Takers, each once, in order; a Taker that does
// not say reads none.
func TestScopesAttributes(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	l := newLimiter(t, bucketPolicy(PerHour(1), 3))
	x, y := reads{l, []string{"user", "path"}}, struct{ AttributeReader }{reads{l, []string{"user", "ip"}}}
	s := must(All(Scope{"x", x, nil}, Scope{"l", l, nil}, Scope{"y", y, nil}))
	for range 2 {
		if got := s.Attributes(); !slices.Equal(got, []string{"ip", "path", "user"}) {
			t.Errorf("got %q", got)
		}
	}
	if want := []string{"user", "path"}; !slices.Equal(x.names, want) {
		t.Errorf("the list of a Taker became %q", x.names)
	}
	if got := must(All(Scope{"l", l, nil})).Attributes(); len(got) != 0 {
		t.Errorf("of one that does not say: %q", got)
	}
}

// While one waits for more, the others hold nothing.
func TestScopesHoldNothingWhileTheyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		local := newLimiter(t, bucketPolicy(PerHour(1), 1))
		short := &sharedLimiter{Limiter: newLimiter(t, bucketPolicy(PerSecond(1), 1))}
		full := &sharedLimiter{Limiter: newLimiter(t, bucketPolicy(PerHour(1), 1)), more: func() {}}
		short.more = func() {
			if local.Remaining() != 1 || full.Remaining() != 1 {
				t.Errorf("while it waits, local has %d and another that is shared %d, want 1 each", local.Remaining(), full.Remaining())
			}
			time.Sleep(time.Second)
		}
		s := must(All(Scope{"local", local, nil}, Scope{"full", full, nil}, Scope{"short", short, nil}))
		short.Allow()
		if d, err := s.Take(t.Context(), Request{}); err != nil || !d.Allowed || short.waits != 1 || full.waits != 0 {
			t.Errorf("%s; waited %d times", show(d, err), short.waits)
		}
		time.Sleep(time.Hour)
		full.Allow()
		short.Allow()
		// Each is waited for once, and one stays full.
		if d, err := s.Take(t.Context(), Request{}); err != nil || d.Allowed || d.Refused().Limit != "full" || full.waits != 1 || local.Remaining() != 1 {
			t.Errorf("%s; waited %d times, local has %d", show(d, err), full.waits, local.Remaining())
		}
	})
}

func TestAllRefuses(t *testing.T) {
	l := newLimiter(t, bucketPolicy(PerSecond(1), 1))
	many := make([]Scope, 65)
	for i := range many {
		many[i] = Scope{Name: strconv.Itoa(i), Taker: l}
	}
	for want, scopes := range map[string][]Scope{
		"0 scopes":            nil,
		"65 scopes":           many,
		"has no Taker":        {{Name: "a"}},
		`are called "a"`:      {{Name: "a", Taker: l}, {Name: "a", Taker: l}},
		"neither scope \"a\"": {{Name: "a", Taker: &plainTaker{}}, {Name: "b", Taker: &plainTaker{}}},
	} {
		if _, err := All(scopes...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d scopes: %v, want %q", len(scopes), err, want)
		}
	}
}

func TestSumCosts(t *testing.T) {
	for _, tt := range []struct {
		costs []int64
		sum   int64
		err   error
	}{
		{nil, 0, nil},
		{[]int64{1, 1000}, 1001, nil},
		{[]int64{MaxCount, 0}, MaxCount, nil},
		{[]int64{MaxCount, 1}, 0, ErrCost},
		{[]int64{math.MaxInt64, math.MaxInt64}, 0, ErrCost},
		{[]int64{5, -1}, 0, ErrNegativeCost},
		{[]int64{math.MinInt64}, 0, ErrNegativeCost},
	} {
		if sum, err := SumCosts(tt.costs...); sum != tt.sum || !errors.Is(err, tt.err) {
			t.Errorf("SumCosts(%v) = %d, %v", tt.costs, sum, err)
		}
	}
}

// anyPolicy is one of every kind.
func anyPolicy(r *rand.Rand) Policy {
	rates := []Rate{PerSecond(100), {Count: 7, Period: time.Second}, {Count: 999_983, Period: time.Second}, PerMinute(30), {}}
	p := Policy{Rate: rates[r.IntN(len(rates))], Burst: r.Int64N(20), Algorithm: TokenBucket}
	switch r.IntN(7) {
	case 0:
		p.Algorithm = LeakyBucket
	case 1:
		p = Policy{Algorithm: FixedWindow, Rate: Rate{Count: 1 + r.Int64N(20), Period: time.Second}, Align: Alignment(r.IntN(2))}
	case 2:
		p = Policy{Algorithm: SlidingWindowLog, Rate: Rate{Count: 1 + r.Int64N(20), Period: time.Second}}
	case 3:
		p = Policy{Algorithm: SlidingWindowCounter, Rate: Rate{Count: 1 + r.Int64N(20), Period: time.Second}}
	case 4:
		p = Policy{Unlimited: true}
	}
	return p
}

// TestScopesLeaveNoTrace: after any sequence of requests, each scope has exactly what one
// has that never saw the requests that were refused, and a request is admitted if and
// only if each scope by itself would admit it.
func TestScopesLeaveNoTrace(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 300) {
		synctest.Test(t, func(t *testing.T) { scopesLeaveNoTrace(t, seed) })
	}
}

func scopesLeaveNoTrace(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	n := 1 + r.IntN(10)
	oracles, own, costs := make([]*Limiter, n), make([]*Limiter, n), make([]int64, n)
	scopes := make([]Scope, n)
	for i := range n {
		p := anyPolicy(r)
		own[i], oracles[i] = newLimiter(t, p), newLimiter(t, p)
		scopes[i] = Scope{Name: strconv.Itoa(i), Taker: own[i], Cost: func(Request) (int64, error) { return costs[i], nil }}
		if r.IntN(3) == 0 {
			scopes[i].Taker = &sharedLimiter{Limiter: own[i]}
		}
	}
	if r.IntN(2) == 0 {
		scopes[0].Taker = &plainTaker{taker: own[0]}
	}
	s := must(All(scopes...))
	for step := range 100 {
		want := true
		for i := range n {
			if costs[i] = r.Int64N(4); costs[i] > 0 {
				d := must(oracles[i].Take(t.Context(), Request{Cost: costs[i], Peek: true}))
				want = want && d.Allowed
			}
		}
		d := must(s.Take(t.Context(), Request{}))
		if d.Allowed != want || d.Allowed != (d.Refused() == nil) {
			t.Fatalf("seed %d, step %d: %s, want allowed %v", seed, step, show(d, nil), want)
		}
		for i := range n {
			if want && costs[i] > 0 {
				must(oracles[i].Take(t.Context(), Request{Cost: costs[i]}))
			}
		}
		if r.IntN(2) == 0 {
			time.Sleep(time.Duration(r.Int64N(int64(200 * time.Millisecond))))
		}
		for i := range n {
			if got, want := own[i].Remaining(), oracles[i].Remaining(); got != want {
				t.Fatalf("seed %d, step %d: scope %d (%+v) has %d, without the refused requests %d", seed, step, i, own[i].Policy(), got, want)
			}
		}
	}
}

// TestScopesConserve: however many take at once from scopes of which one refuses most,
// what each has lost is what was admitted: to the token for a bucket in a word, and
// never less for any other.
func TestScopesConserve(t *testing.T) {
	const loose, tight, cost = 100_000, 1000, 3
	for i, p := range []Policy{
		bucketPolicy(PerHour(1), loose), // in a word
		{Algorithm: TokenBucket, Rate: Rate{Count: 1, Period: 999_983 * time.Hour}, Burst: loose},
		{Algorithm: FixedWindow, Rate: Rate{Count: loose, Period: 1000 * time.Hour}},
	} {
		wide := newLimiter(t, p)
		narrow := newLimiter(t, bucketPolicy(PerHour(1), tight))
		s := must(All(Scope{"wide", wide, func(Request) (int64, error) { return cost, nil }}, Scope{"narrow", narrow, nil}))
		var admitted atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 2000 {
					if d := must(s.Take(t.Context(), Request{})); d.Allowed {
						admitted.Add(1)
					} else if d.Refused().Limit != "narrow" {
						t.Errorf("refused by %s", d.Refused().Limit)
					}
				}
			})
		}
		wg.Wait()
		// The replay forgets a prepared cost once 64 others were served.
		exact := i == 0
		if n, left := admitted.Load(), wide.Remaining(); n != tight || narrow.Remaining() != 0 || left > loose-cost*n || exact && left != loose-cost*n {
			t.Errorf("%v: %d admitted of %d; %d and %d are left, want 0 and %d", p.Algorithm, n, tight, narrow.Remaining(), left, loose-cost*n)
		}
	}
}
