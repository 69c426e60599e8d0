package httpthrottle

import (
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/throttle"
)

// TestThreadClock: a handler that computes is charged for it, and one beside it that waits is not.
func TestThreadClock(t *testing.T) {
	if runtime.GOOS != "linux" {
		return
	}
	type done struct{ predicted, actual time.Duration }
	costs := make(chan done, 2)
	th := newThrottle(t, throttle.Options{
		Concurrency: 2, Hooks: throttle.Hooks{OnDone: func(_ throttle.Criticality, p, a, _ time.Duration) { costs <- done{p, a} }},
	})
	computed := make(chan struct{})
	h := New(th, WithThreadClock(), WithCost(func(r *http.Request) time.Duration {
		return time.Duration(len(r.URL.Path)) // tells them apart
	}))(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/wait" {
			<-computed
			return
		}
		for th.Running(1)[0].Cost < 100*ms {
		}
		close(computed)
	}))
	var wg sync.WaitGroup
	for _, path := range []string{"/wait", "/compute"} {
		wg.Go(func() { h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)) })
	}
	wg.Wait()
	for range 2 {
		d := <-costs
		if computes := d.predicted == time.Duration(len("/compute")); computes && d.actual < 90*ms || !computes && d.actual > 60*ms {
			t.Errorf("%+v", d)
		}
	}
}
