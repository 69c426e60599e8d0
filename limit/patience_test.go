package limit

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A waiter gets a permit that comes exactly at its deadline (from a Queue, just before it:
// timers for one time fire in any order), and one with a deadline a nanosecond earlier fails at
// once. A negative bound is the same as 0.
func TestPatienceToTheNanosecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, due := range []time.Duration{1, 2, 1000, time.Second} {
			for _, longest := range []time.Duration{-time.Second, -1, 0, 1, due - 1, due, due + 1} {
				for name, wait := range map[string]func(l *Limiter, q *Queue, done func(error)){
					"Limiter.WaitFunc": func(l *Limiter, _ *Queue, done func(error)) { l.WaitFunc(1, longest, done) },
					"Limiter.WaitMax":  func(l *Limiter, _ *Queue, done func(error)) { done(l.WaitMax(t.Context(), longest)) },
					"Queue.WaitFunc": func(_ *Limiter, q *Queue, done func(error)) {
						q.WaitFunc(Request{}, longest, func(_ Decision, err error) { done(err) })
					},
					"Queue.WaitMax": func(_ *Limiter, q *Queue, done func(error)) {
						_, err := q.WaitMax(t.Context(), Request{}, longest)
						done(err)
					},
				} {
					if longest == due && strings.HasPrefix(name, "Queue") {
						continue
					}
					l := newLimiter(t, bucketPolicy(Every(due), 1))
					q := newQueue(t, l, QueueOptions{})
					l.Allow()
					start := time.Now()
					after, err := time.Duration(-1), error(nil)
					go wait(l, q, func(e error) { after, err = time.Since(start), e })
					time.Sleep(2 * due)
					synctest.Wait()
					want, wantErr := due, error(nil)
					if longest < due {
						want, wantErr = 0, ErrWaitTooLong
					}
					if after != want || !errors.Is(err, wantErr) {
						t.Errorf("%s: patience %v for a permit that is due after %v: %v after %v, want %v after %v", name, longest, due, err, after, wantErr, want)
					}
					q.Close()
				}
			}
		}
	})
}
