package client

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

const link20 = 20 * time.Millisecond // one way

func TestTakeAsksBeforeItRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 10)
		c := h.run(t, "one")
		l := openLimit(t, c, "m", LimitOptions{})
		if l.Allow() {
			t.Fatal("strict start: nothing is there before the first lease")
		}
		begin := time.Now()
		d, err := l.Take(t.Context(), limit.Request{})
		if err != nil || !d.Allowed {
			t.Fatalf("Take = %+v, %v", d, err)
		}
		if waited := time.Since(begin); waited < 2*link20 || waited > 6*link20 {
			t.Errorf("Take took %v, want about a round trip", waited)
		}
		r := d.Results[0]
		if r.Limit != "m" || r.Quota != 10 || r.Window != 100*time.Millisecond || r.Cost != 1 {
			t.Errorf("Result %+v", r)
		}
	})
}

func TestWholeLimitGoesToWhoNeedsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(1000, 100)
		var ls []*Limiter
		for _, name := range []string{"one", "two", "three"} {
			ls = append(ls, openLimit(t, h.run(t, name), "m", LimitOptions{}))
		}
		begin, admitted, late := time.Now(), 0, 0
		for time.Since(begin) < 5*time.Second {
			for range 3 { // 3 per ms of 1 per ms
				if ls[0].Allow() {
					admitted++
					if time.Since(begin) > time.Second {
						late++
					}
				}
			}
			time.Sleep(time.Millisecond)
		}
		if most := 100 + 5*1000 + 1; admitted > most {
			t.Errorf("%d admitted, at most %d", admitted, most)
		}
		if late < 3900 {
			t.Errorf("%d admitted in 4 s of 1000/s", late)
		}
	})
}

func TestAllOfThemNeverOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(200, 20)
		var ls []*Limiter
		for _, name := range []string{"one", "two", "three", "four"} {
			ls = append(ls, openLimit(t, h.run(t, name), "m", LimitOptions{}))
		}
		begin := time.Now()
		var mu sync.Mutex
		admitted := 0
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				for k := 0; time.Since(begin) < 10*time.Second; k++ {
					d, err := ls[(i+k/100)%4].Take(t.Context(), limit.Request{})
					if err != nil {
						t.Error(err)
					}
					if d.Allowed {
						mu.Lock()
						admitted++
						if most := 20 + 200*time.Since(begin).Seconds() + 1e-6; float64(admitted) > most {
							t.Errorf("%d admitted after %v", admitted, time.Since(begin))
						}
						mu.Unlock()
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
		wg.Wait()
		if admitted < 1800 {
			t.Errorf("%d admitted in 10 s of 200/s", admitted)
		}
	})
}

func TestWaitIsFirstInFirstOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(50, 5)
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{})
		var mu sync.Mutex
		var served [40]time.Time
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				if i%7 == 3 {
					time.AfterFunc(150*time.Millisecond, cancel)
				}
				defer cancel()
				if err := l.WaitN(ctx, int64(1+i%3)); err != nil {
					if !errors.Is(err, context.Canceled) || i%7 != 3 {
						t.Errorf("Wait %d: %v", i, err)
					}
					return
				}
				mu.Lock()
				served[i] = time.Now()
				mu.Unlock()
			})
			synctest.Wait()
		}
		if l.Allow() {
			t.Error("Allow passed those who wait")
		}
		wg.Wait()
		count, before := 0, time.Time{}
		for i, at := range served {
			if at.IsZero() {
				continue
			}
			if count++; at.Before(before) {
				t.Errorf("%d was served before one who came earlier", i)
			}
			before = at
		}
		if count < 30 {
			t.Errorf("%d served", count)
		}
	})
}

func TestErrorsOfWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(10, 5)
		c := h.run(t, "one")
		l := openLimit(t, c, "m", LimitOptions{})
		if err := l.WaitN(t.Context(), -1); !errors.Is(err, limit.ErrNegativeCost) {
			t.Errorf("negative: %v", err)
		}
		if err := l.WaitN(t.Context(), 6); !errors.Is(err, limit.ErrExceedsQuota) {
			t.Errorf("above the burst: %v", err)
		}
		if err := l.WaitN(t.Context(), 5); err != nil {
			t.Errorf("the burst: %v", err)
		}
		begin := time.Now()
		if err := l.WaitMaxN(t.Context(), 4, 100*time.Millisecond); !errors.Is(err, limit.ErrWaitTooLong) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("WaitMax: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		if err := l.WaitN(ctx, 5); !errors.Is(err, limit.ErrWaitTooLong) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait with a deadline: %v", err)
		}
		if took := time.Since(begin); took > 400*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if err := l.WaitMax(t.Context(), time.Second); err != nil {
			t.Errorf("WaitMax in time: %v", err)
		}
		if _, err := l.Take(t.Context(), limit.Request{Cost: -1}); !errors.Is(err, limit.ErrNegativeCost) {
			t.Errorf("Take: %v", err)
		}
		if d, err := l.Take(t.Context(), limit.Request{Cost: 6}); err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonCost || d.RetryAfter() != limit.Never {
			t.Errorf("Take of too much: %+v, %v", d, err)
		}
		unknown := openLimit(t, c, "nobody knows", LimitOptions{})
		if err := unknown.Wait(t.Context()); !errors.Is(err, ErrRefused) {
			t.Errorf("unknown limit: %v", err)
		}
		if _, err := unknown.Take(t.Context(), limit.Request{}); !errors.Is(err, ErrRefused) {
			t.Errorf("unknown limit: %v", err)
		}
		h.set(func() { h.terms["r"] = rateOf(10, 5) })
		g, err := c.Semaphore("r", LimitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Acquire(t.Context(), 1); !errors.Is(err, ErrKind) {
			t.Errorf("a rate as a gauge: %v", err)
		}
	})
}

func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(10, 5)
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{})
		if r := l.Reserve(); r.OK() || r.Delay() != limit.Never || r.Cancel() {
			t.Fatal("no time can be told without a lease")
		}
		if err := l.WaitN(t.Context(), 5); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for l.Allow() {
		}
		first, second := l.ReserveN(time.Now(), 2), l.ReserveN(time.Now(), 1)
		if !first.OK() || !second.OK() {
			t.Fatal("both fit")
		}
		if a, b := first.Delay(), second.Delay(); a > 300*time.Millisecond || b < a {
			t.Errorf("delays %v and %v", a, b)
		}
		if !first.Cancel() || first.Cancel() {
			t.Error("it comes back once")
		}
		time.Sleep(second.Delay())
		if second.Delay() != 0 {
			t.Error("its time has come")
		}
		if l.ReserveN(time.Now(), 6).OK() || l.ReserveN(time.Now(), -1).OK() {
			t.Error("above the burst, or below 0")
		}
		r := l.ReserveN(time.Now(), 0)
		if !r.OK() || r.Delay() != 0 {
			t.Error("nothing is there at once")
		}
	})
}

func TestRedirect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 10)
		h.masters = map[string]string{"a": "z", "b": ""}
		c := h.run(t, "one")
		l := openLimit(t, c, "m", LimitOptions{})
		begin := time.Now()
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		opened := 0
		h.set(func() { opened = h.opened })
		if opened != 2 || time.Since(begin) > 5*link20 {
			t.Errorf("%d streams in %v, want 2 at once", opened, time.Since(begin))
		}
		h.set(func() { h.masters["z"] = "a" })
		h.crash()
		h.set(func() { h.down = false; h.start(2, 0) })
		begin = time.Now()
		time.Sleep(10 * time.Second)
		n := -opened
		h.set(func() { n += h.opened })
		// A try is sent on maxRedirects times, and then paused for at least a half of longestPause.
		if most := (1 + maxRedirects) * int(10*time.Second/(longestPause/2)); n < 10 || n > most {
			t.Errorf("%d streams in %v of being sent in a circle, want 10 to %d", n, time.Since(begin), most)
		}
	})
}

func TestCloseEndsWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(1, 1)
		c, stop := h.begin(t, "one")
		h.terms["n"] = rateOf(1, 1)
		a, b := openLimit(t, c, "m", LimitOptions{}), openLimit(t, c, "n", LimitOptions{})
		if _, err := c.Limit("m", LimitOptions{}); !errors.Is(err, ErrOpen) {
			t.Errorf("Limit twice: %v", err)
		}
		errs := make(chan error, 4)
		wait := func(l *Limiter) {
			for range 2 {
				go func() { errs <- l.WaitN(t.Context(), 1) }()
			}
		}
		wait(a)
		wait(b)
		time.Sleep(300 * time.Millisecond)
		a.Close()
		stop()
		closed := 0
		for range 4 {
			if err := <-errs; errors.Is(err, ErrClosed) {
				closed++
			} else if err != nil {
				t.Error(err)
			}
		}
		if closed != 2 {
			t.Errorf("%d of those who waited were told, want 2: one of each limit has its burst", closed)
		}
		if a.Allow() || b.Allow() || !errors.Is(b.Wait(t.Context()), ErrClosed) {
			t.Error("after the end")
		}
		if _, err := b.Take(t.Context(), limit.Request{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Take after the end: %v", err)
		}
		if _, err := c.Limit("m", LimitOptions{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Limit after the end: %v", err)
		}
		h.set(func() {
			if h.left != 1 {
				t.Errorf("%d said that they leave, want 1", h.left)
			}
		})
		a.Close()
	})
}

// TestEndIsBounded: a coordinator that does not answer does not hold up the end.
func TestEndIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, 10*time.Second)
		c, stop := h.begin(t, "one")
		_ = openLimit(t, c, "m", LimitOptions{})
		time.Sleep(15 * time.Second)
		begin := time.Now()
		stop()
		if took := time.Since(begin); took > DefaultGrace {
			t.Errorf("the end took %v", took)
		}
		time.Sleep(time.Minute) // timers of the pipe
	})
}

func TestSemaphore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["jobs"] = placesOf(3)
		var gs []*Semaphore
		for _, name := range []string{"one", "two"} {
			g, err := h.run(t, name).Semaphore("jobs", LimitOptions{})
			if err != nil {
				t.Fatal(err)
			}
			gs = append(gs, g)
		}
		var ds []limit.Decision
		for range 3 {
			d, err := gs[0].Take(t.Context(), limit.Request{})
			if err != nil || !d.Allowed || d.Permit == 0 {
				t.Fatalf("Take = %+v, %v", d, err)
			}
			ds = append(ds, d)
		}
		if d, err := gs[1].Take(t.Context(), limit.Request{}); err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonConcurrency {
			t.Fatalf("a fourth: %+v, %v", d, err)
		}
		got := make(chan error, 1)
		go func() { got <- gs[1].Acquire(t.Context(), 2) }()
		time.Sleep(time.Second)
		for range 2 {
			if err := gs[0].Finish(t.Context(), limit.Request{}, ds[0].Permit); err != nil {
				t.Fatal(err)
			}
		}
		gs[0].Finish(t.Context(), limit.Request{}, ds[1].Permit)
		if gs[0].InUse() != 1 {
			t.Fatalf("%d in use, want 1: finishing twice is harmless", gs[0].InUse())
		}
		if err := <-got; err != nil {
			t.Fatal(err)
		}
		if gs[0].TryAcquire(1) {
			t.Error("all are in use")
		}
		gs[1].Release(2)
		if err := gs[0].Acquire(t.Context(), 2); err != nil {
			t.Error(err)
		}
	})
}

func TestKeyed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(1, 2)
		c := h.run(t, "one")
		k, err := c.Keyed("m", []string{"account"}, KeyedOptions{MaxKeys: 3, Idle: 5 * time.Second, RefuseMissing: true})
		if err != nil {
			t.Fatal(err)
		}
		take := func(account string) limit.Decision {
			d, err := k.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: account}}})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		for _, account := range []string{"a", "a", "b"} {
			if d := take(account); !d.Allowed {
				t.Fatalf("%s: %+v", account, d)
			}
		}
		if d := take("a"); d.Allowed {
			t.Error("a has had its burst")
		}
		take("c")
		if d := take("d"); d.Allowed || d.Results[0].Reason != limit.ReasonTableFull {
			t.Errorf("a fourth key: %+v", d)
		}
		time.Sleep(2 * time.Second)
		if d := take("d"); !d.Allowed || k.Keys() != 3 {
			t.Errorf("a fourth key, later: %+v, %d keys", d, k.Keys())
		}
		time.Sleep(20 * time.Second)
		if k.Keys() != 0 {
			t.Errorf("%d keys after they were idle", k.Keys())
		}
		if d, err := k.Take(t.Context(), limit.Request{}); err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonMissing {
			t.Errorf("without the attribute: %+v, %v", d, err)
		}
		k.Close()
		if _, err := k.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "a"}}}); !errors.Is(err, ErrClosed) {
			t.Errorf("closed: %v", err)
		}
	})
}

// TestMiddleware: a handler is protected by leases as by any Taker.
func TestMiddleware(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(1, 2)
		c := h.run(t, "one")
		k, err := c.Keyed("m", []string{"path"}, KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		handler := httplimit.New(k)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		var codes []int
		for range 3 {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/x", nil))
			codes = append(codes, w.Code)
			if w.Header().Get("RateLimit") == "" || w.Code == 429 && w.Header().Get("Retry-After") != "1" {
				t.Errorf("%d: %v", w.Code, w.Header())
			}
		}
		if !slices.Equal(codes, []int{200, 200, 429}) {
			t.Errorf("answers %v", codes)
		}
	})
}
