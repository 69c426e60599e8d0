package limit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

var (
	_ Finisher        = (*Queue)(nil)
	_ AttributeReader = (*Queue)(nil)
)

// keyed is a Taker with one Limiter for each value of "key".
type keyed struct {
	mu    sync.Mutex
	p     Policy
	of    map[string]*Limiter
	takes int // Peeks are none
	peeks int
}

func (k *keyed) Take(ctx context.Context, req Request) (Decision, error) {
	key, _ := req.Get("key")
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.of[key]
	if l == nil {
		var err error
		if l, err = NewLimiter(k.p); err != nil {
			return Decision{}, err
		}
		if k.of == nil {
			k.of = map[string]*Limiter{}
		}
		k.of[key] = l
	}
	if req.Peek {
		k.peeks++
	} else {
		k.takes++
	}
	return l.Take(ctx, req)
}

func (k *keyed) set(t *testing.T, p Policy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.p = p
	for _, l := range k.of {
		if err := l.SetPolicy(p); err != nil {
			t.Error(err)
		}
	}
}

func newQueue(t testing.TB, taker Taker, o QueueOptions) *Queue {
	t.Helper()
	q, err := NewQueue(taker, o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

func requestOf(key string, cost int64) Request {
	return Request{Attributes: []Attribute{{"key", key}}, Cost: cost}
}

// joinQueue is told.join for a Queue.
func (q *told) joinQueue(queue *Queue, who int, req Request, longest time.Duration) (cancel func() bool) {
	return queue.WaitFunc(req, longest, func(d Decision, err error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		if d.Allowed != (err == nil) {
			err = fmt.Errorf("%w with %+v", err, d)
		}
		q.list = append(q.list, finish{who, time.Since(q.start), costOf(req), err})
	})
}

func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keyed{p: bucketPolicy(PerSecond(2), 3)}
		queue, q := newQueue(t, k, QueueOptions{}), told{start: time.Now()}
		goroutines := runtime.NumGoroutine()
		q.joinQueue(queue, 0, requestOf("a", 3), 0)
		q.joinQueue(queue, 1, requestOf("a", 2), Never)
		second := q.joinQueue(queue, 2, requestOf("a", 1), 2*time.Second)
		q.joinQueue(queue, 3, requestOf("a", 1), 1999*time.Millisecond) // would come after 2 s
		q.joinQueue(queue, 4, requestOf("b", 4), Never)
		q.joinQueue(queue, 5, requestOf("a", -1), Never)
		q.joinQueue(queue, 6, Request{Peek: true}, Never)
		q.joinQueue(queue, 7, requestOf("a", 1), -1)
		q.joinQueue(queue, 8, requestOf("a", 1), 2*time.Second)
		q.joinQueue(queue, 9, requestOf("a", 1), 2*time.Second) // 2.5 s
		q.joinQueue(queue, 10, requestOf("b", 3), 0)            // another line
		if got := runtime.NumGoroutine(); got > goroutines || queue.Waiting() != 3 {
			t.Errorf("%d goroutines, %d before; %d wait", got, goroutines, queue.Waiting())
		}
		d, err := queue.Take(t.Context(), requestOf("a", 1))
		if err != nil || d.Allowed || d.RetryAfter() != 2500*time.Millisecond || d.Results[0].Limit != "limiter" || d.Status != 429 {
			t.Errorf("Take passed those who wait, or did not say why: %+v, %v", d, err)
		}
		<-time.After(500 * time.Millisecond)
		if !second() || second() {
			t.Error("cancel: want true, once")
		}
		<-time.After(5 * time.Second)
		want := []finish{
			{0, 0, 3, nil},
			{3, 0, 1, ErrWaitTooLong},
			{4, 0, 4, ErrExceedsQuota},
			{5, 0, -1, ErrNegativeCost},
			{6, 0, 1, errPeek},
			{7, 0, 1, ErrWaitTooLong},
			{9, 0, 1, ErrWaitTooLong},
			{10, 0, 3, nil},
			{1, time.Second, 2, nil},
			{8, 1500 * time.Millisecond, 1, nil},
		}
		got := q.all()
		for i, w := range want {
			if f := got[i]; f.who != w.who || f.after != w.after || f.cost != w.cost || !errors.Is(f.err, w.err) {
				t.Errorf("%d-th: %+v, want %+v", i, f, w)
			}
		}
		if len(got) != len(want) || queue.Waiting() != 0 || queue.lines.Load() != 0 || queue.alarms.Len() != 0 {
			t.Errorf("told %d, %d wait in %d lines", len(got), queue.Waiting(), queue.lines.Load())
		}
		// One try for each, and a second one for the first who was refused.
		if k.takes != 6 {
			t.Errorf("the Taker was asked %d times", k.takes)
		}
		queue.Close()
	})
}

func TestQueueBlocking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keyed{p: bucketPolicy(PerSecond(1), 1)}
		queue := newQueue(t, k, QueueOptions{})
		start := time.Now()
		var mu sync.Mutex
		var order []string
		var wg sync.WaitGroup
		wait := func(name string, ctx context.Context, longest time.Duration, after time.Duration, want ...error) {
			wg.Go(func() {
				d, err := queue.WaitMax(ctx, requestOf("a", 1), longest)
				mu.Lock()
				defer mu.Unlock()
				order = append(order, name)
				for _, w := range want {
					if !errors.Is(err, w) || d.Allowed != (err == nil) || time.Since(start) != after {
						t.Errorf("%s: %+v, %v after %v", name, d, err, time.Since(start))
					}
				}
			})
			synctest.Wait()
		}
		wait("0", t.Context(), Never, 0, nil)
		wait("1", t.Context(), Never, time.Second, nil)
		ctx, cancel := context.WithCancel(t.Context())
		wait("left", ctx, Never, 1500*time.Millisecond, context.Canceled)
		wait("2", t.Context(), 3*time.Second, 2*time.Second, nil)
		short, stop := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer stop()
		wait("short", short, Never, 0, ErrWaitTooLong, context.DeadlineExceeded)
		<-time.After(1500 * time.Millisecond)
		cancel()
		wg.Wait()
		if got := strings.Join(order, " "); got != "0 short 1 left 2" {
			t.Errorf("order: %s", got)
		}
		if _, err := queue.Wait(ctx, requestOf("a", 1)); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		wait("closed", t.Context(), Never, 2*time.Second, ErrQueueClosed)
		queue.Close()
		wg.Wait()
		if _, err := queue.Take(t.Context(), requestOf("b", 1)); !errors.Is(err, ErrQueueClosed) {
			t.Error(err)
		}
		if _, err := queue.Wait(t.Context(), requestOf("b", 1)); !errors.Is(err, ErrQueueClosed) {
			t.Error(err)
		}
	})
}

// stolen is a Taker of a limit that others use too, faster.
type stolen struct {
	after time.Duration
	peeks int
}

func (s *stolen) Take(_ context.Context, req Request) (Decision, error) {
	if req.Peek {
		s.peeks++
	}
	return Decision{Results: []Result{{
		Limit: "stolen", Quota: 10, Window: 100 * time.Millisecond, Cost: costOf(req),
		Verdict: Verdict{Reason: ReasonRate, RetryAfter: s.after},
	}}}, nil
}

// A wait that could have fitted ends when its time is over, to the nanosecond of the
// clock; that of the first in line as soon as it is refused for longer.
func TestQueueTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue, q := newQueue(t, &stolen{after: 7 * time.Millisecond}, QueueOptions{Attributes: []string{}}), told{start: time.Now()}
		bounds := []time.Duration{50 * time.Millisecond, 1000 * time.Millisecond, 40 * time.Millisecond, 45*time.Millisecond + 1, Never}
		for i, d := range bounds {
			q.joinQueue(queue, i, requestOf(fmt.Sprint(i), 1), d)
		}
		<-time.After(2 * time.Second)
		got := q.all()
		for i, who := range []int{2, 3, 0, 1} {
			want := bounds[who]
			if who < 2 { // is first, and asks every 7 ms
				want -= want % (7 * time.Millisecond)
			}
			if f := got[i]; f.who != who || f.after != want || !errors.Is(f.err, ErrWaitTooLong) {
				t.Errorf("%+v, want %d after %v", f, who, want)
			}
		}
		if queue.Waiting() != 1 {
			t.Errorf("%d wait", queue.Waiting())
		}
		queue.Close()
		if got = q.all(); !errors.Is(got[4].err, ErrQueueClosed) {
			t.Errorf("%+v", got[4])
		}
	})
}

// A change of policy is seen at the next check, long before the time that the refusal named, and
// the check takes nothing.
func TestQueueSeesAChangeOfPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &keyed{p: bucketPolicy(PerHour(1), 1)}
		queue, q := newQueue(t, k, QueueOptions{}), told{start: time.Now()}
		for i := range 12 {
			q.joinQueue(queue, i, requestOf("a", 1), Never)
		}
		<-time.After(2500 * time.Millisecond)
		synctest.Wait()
		if k.takes != 2 || k.peeks != 2 {
			t.Errorf("asked %d times, looked %d times, want 2 and 2", k.takes, k.peeks)
		}
		k.set(t, bucketPolicy(PerSecond(10), 1))
		<-time.After(2 * time.Second)
		for i, f := range q.all()[1:] {
			// Looked at 3 s, when the bucket had filled since the change.
			if want := 3*time.Second + time.Duration(i)*100*time.Millisecond; f.who != i+1 || f.err != nil || f.after != want {
				t.Errorf("%+v, want after %v", f, want)
			}
		}
		if queue.Waiting() != 0 {
			t.Errorf("%d wait", queue.Waiting())
		}
		q.joinQueue(queue, 20, requestOf("a", 1), Never)
		q.joinQueue(queue, 21, requestOf("a", 1), Never)
		k.set(t, Policy{})
		<-time.After(2 * time.Second)
		if got := q.all(); !errors.Is(got[len(got)-1].err, ErrExceedsQuota) {
			t.Errorf("%+v", got[len(got)-1])
		}
	})
}

func TestQueueBounds(t *testing.T) {
	for _, o := range []QueueOptions{{MaxWaiting: -1}, {MaxLines: -1}, {Parallel: -1}, {Recheck: -1}} {
		if _, err := NewQueue(&keyed{}, o); err == nil || !strings.Contains(err.Error(), "at least 0") {
			t.Errorf("%+v: %v", o, err)
		}
	}
	if _, err := NewQueue(nil, QueueOptions{}); err == nil {
		t.Error("a queue for nothing")
	}
	synctest.Test(t, func(t *testing.T) {
		k := &keyed{p: bucketPolicy(PerMinute(1), 1)}
		queue, q := newQueue(t, k, QueueOptions{MaxLines: 2, MaxWaiting: 4}), told{start: time.Now()}
		for _, key := range []string{"a", "b", "c"} {
			q.joinQueue(queue, 0, requestOf(key, 1), Never)
			q.joinQueue(queue, 1, requestOf(key, 1), Never)
		}
		q.joinQueue(queue, 2, requestOf("a", 1), Never)
		q.joinQueue(queue, 3, requestOf("a", 1), Never)
		q.joinQueue(queue, 4, requestOf("a", 1), Never)
		q.joinQueue(queue, 5, requestOf("d", 1), Never)
		got := q.all()
		for i, want := range []error{nil, nil, nil, ErrQueueFull, ErrQueueFull, nil} {
			if !errors.Is(got[i].err, want) {
				t.Errorf("%d-th: %+v, want %v", i, got[i], want)
			}
		}
		queue.Close()
	})
}

func TestQueueKeys(t *testing.T) {
	req := Request{Attributes: []Attribute{{"ip", "1"}, {"header:x", "2"}, {"a", "b"}}}
	moved := Request{Attributes: []Attribute{{"ip", "1"}, {"header:x", "3"}, {"a", "c"}}}
	for _, tt := range []struct {
		names []string
		same  bool
	}{{nil, false}, {[]string{}, true}, {[]string{"ip"}, true}, {[]string{"header:*"}, false}, {[]string{"*"}, false}, {[]string{"i", "nothing"}, true}} {
		q := newQueue(t, &keyed{}, QueueOptions{Attributes: tt.names})
		if a, b := q.key(nil, req), q.key(nil, moved); string(a) == string(b) != tt.same {
			t.Errorf("%q: %q and %q", tt.names, a, b)
		}
	}
	// No two sets of attributes look alike.
	q := newQueue(t, &keyed{}, QueueOptions{})
	seen := map[string]bool{}
	for _, a := range [][]Attribute{{{"a", "bc"}}, {{"ab", "c"}}, {{"a", "b"}, {"c", ""}}, {{"a", "b"}, {"", "c"}}, {{"a", ""}, {"b", "c"}}, {}, {{"", ""}}} {
		key := string(q.key(nil, Request{Attributes: a}))
		if seen[key] {
			t.Errorf("%v has the key of another", a)
		}
		seen[key] = true
	}
}

// A Queue before a Limiter refuses and grants what the Limiter's own line does, at the same
// times, for policies whose refusals determine the forecast.
func TestHistoriesQueueLikeLimiter(t *testing.T) {
	t.Parallel()
	for seed := range seeding.Draw(t, max(1, histories(t)/20)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 13))
			p := bucketPolicy(Rate{1, time.Duration(1+r.Int64N(30)) * time.Millisecond}, 1+r.Int64N(4))
			most := int64(4)
			switch r.IntN(4) {
			case 0:
				p, most = Policy{Algorithm: FixedWindow, Rate: Rate{1 + r.Int64N(5), 50 * time.Millisecond}, Align: Alignment(r.IntN(2))}, 1
			case 1:
				p = Policy{Algorithm: SlidingWindowLog, Rate: Rate{2 + r.Int64N(5), 50 * time.Millisecond}}
			}
			own, asked := newLimiter(t, p), newLimiter(t, p)
			queue := newQueue(t, asked, QueueOptions{})
			a, b := told{start: time.Now()}, told{start: time.Now()}
			var cancels [][2]func() bool
			for i := range 60 {
				switch r.IntN(8) {
				case 0, 1:
					<-time.After(time.Duration(r.Int64N(int64(60 * time.Millisecond))))
				case 2:
					if len(cancels) > 0 {
						c := cancels[r.IntN(len(cancels))]
						if x, y := c[0](), c[1](); x != y {
							t.Fatalf("history %d, step %d: cancelled %v, want %v", seed, i, y, x)
						}
					}
				default:
					cost, longest := 1+r.Int64N(most), Never
					if p.Algorithm != SlidingWindowLog && r.IntN(2) == 0 {
						longest = time.Duration(r.Int64N(int64(200 * time.Millisecond)))
					}
					cancels = append(cancels, [2]func() bool{a.join(own, i, cost, longest), b.joinQueue(queue, i, Request{Cost: cost}, longest)})
				}
				synctest.Wait()
			}
			<-time.After(time.Minute)
			want, got := a.all(), b.all()
			byTime := func(x, y finish) int { // refusals and grants of one moment in any order
				if x.after != y.after {
					return int(x.after - y.after)
				}
				return x.who - y.who
			}
			slices.SortStableFunc(want, byTime)
			slices.SortStableFunc(got, byTime)
			for i := range want {
				if i >= len(got) || got[i].who != want[i].who || got[i].after != want[i].after || !sameError(got[i].err, want[i].err) {
					t.Fatalf("history %d: %+v: %d-th\n got %+v\nwant %+v", seed, p, i, got[i:], want[i:])
				}
			}
			if len(got) != len(want) {
				t.Fatalf("history %d: told %d, want %d", seed, len(got), len(want))
			}
		})
	}
}

func sameError(a, b error) bool {
	for _, e := range []error{ErrWaitTooLong, ErrExceedsQuota, ErrNegativeCost} {
		if errors.Is(a, e) != errors.Is(b, e) {
			return false
		}
	}
	return (a == nil) == (b == nil)
}
