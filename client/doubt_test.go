package client

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// inDoubt is one who waits where the coordinator may lend more.
type inDoubt struct {
	n          int64
	came, told time.Duration
	until      time.Duration // by when it wants its permit
	err        error
	toldBefore int // how many others
}

// TestWaitsInDoubt: where the coordinator may lend more, who would be late by what is lent
// waits for its answer, for as long as Ask says. When none has come the waiters that would still be
// late are refused, and no others; all others get their permits in time and in order.
func TestWaitsInDoubt(t *testing.T) {
	const ask, each, burst = 300 * time.Millisecond, 100 * time.Millisecond, 4
	late, kept := 0, 0
	for seed := range seeding.Draw(t, 40) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 21))
			l := lentAll(t, 10, burst)
			l.lease.opts.Ask = ask
			st := *l.lease.state.Load()
			st.Saturated = false // so an answer may bring more
			l.lease.state.Store(&st)
			begin := time.Now()
			var all []*inDoubt
			var told []*inDoubt
			for range 60 {
				time.Sleep(time.Duration(r.IntN(2)*r.IntN(150)) * time.Millisecond)
				w := &inDoubt{n: 1 + r.Int64N(burst), came: time.Since(begin)}
				// Not in the moment in which a token comes: that has no order.
				d := time.Duration(r.IntN(2500))*time.Millisecond + 500*time.Microsecond
				w.until = w.came + d
				all = append(all, w)
				l.WaitFunc(w.n, d, func(err error) {
					w.told, w.err, w.toldBefore = time.Since(begin), err, len(told)
					told = append(told, w)
				})
				synctest.Wait()
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if len(told) != len(all) {
				t.Fatalf("seed %d: %d of %d were told", seed, len(told), len(all))
			}
			// What the bucket holds, as the time that it took to come.
			level, at := burst*each, time.Duration(0)
			for i, w := range told {
				level, at = min(burst*each, level+w.told-at), w.told
				if w.err == nil {
					kept++
					if level -= time.Duration(w.n) * each; level < 0 || w.told > w.until {
						t.Errorf("seed %d: %+v was served %v before there was enough", seed, *w, -level)
					}
					if slices.ContainsFunc(told[:i], func(o *inDoubt) bool { return o.err == nil && o.came > w.came }) {
						t.Errorf("seed %d: %+v was served after one who came later", seed, *w)
					}
					continue
				}
				late++
				if !errors.Is(w.err, limit.ErrWaitTooLong) || w.told > min(w.until, w.came+ask) || w.told < min(w.until, w.came+ask)-time.Duration(together) {
					t.Errorf("seed %d: %+v was told %v, want at %v", seed, *w, w.err, min(w.until, w.came+ask))
				}
				cost := w.n
				for _, o := range all {
					if o.came < w.came && (o.told > w.told || o.told == w.told && o.err == nil && o.toldBefore > w.toldBefore) {
						cost += o.n
					}
				}
				// The order of waiters of the same moment is not known here, nor whether one gives up before another is sent
				// away in the same moment.
				alone := !slices.ContainsFunc(all, func(o *inDoubt) bool {
					return o != w && (o.came == w.came || o.told == w.told && w.told == w.until)
				})
				if in := time.Duration(cost)*each - level; alone && w.told+in <= w.until {
					t.Errorf("seed %d: %+v was sent away, and would have been served at %v", seed, *w, w.told+in)
				}
			}
		})
	}
	if late < 100 || kept < 100 {
		t.Errorf("%d were late and %d were served: the test tries too little", late, kept)
	}
}
