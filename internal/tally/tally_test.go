package tally

import (
	"fmt"
	"reflect"
	"sync"
	"testing"

	"github.com/stint-io/stint/limit"
)

func verdict(allowed bool, reason limit.Reason) *limit.Result {
	return &limit.Result{Verdict: limit.Verdict{Allowed: allowed, Reason: reason}}
}

// Each answer is counted once, under what became of it.
func TestEachAnswer(t *testing.T) {
	var c Counter
	if got := c.Read("a"); !reflect.DeepEqual(got, Tally{Limit: "a"}) {
		t.Errorf("%+v", got)
	}
	soft := verdict(true, limit.ReasonNone)
	soft.Soft = true
	shadow, tagged, failed := verdict(false, limit.ReasonRate), verdict(false, limit.ReasonRate), verdict(false, limit.ReasonStoreFailure)
	shadow.Shadow, tagged.Tagged, tagged.Shadow, failed.StoreFailed = true, true, true, true
	admitted, unsaid := verdict(true, limit.ReasonNone), verdict(false, limit.Reason(250))
	admitted.StoreFailed = true
	shadowed := *shadow
	shadowed.StoreFailed = true
	for _, r := range []*limit.Result{verdict(true, limit.ReasonNone), soft, verdict(false, limit.ReasonRate), shadow, tagged, failed, admitted, unsaid, &shadowed} {
		c.Count(nil, r)
	}
	c.CountUnlimited(MissingKey)
	want := Tally{Limit: "a", Allowed: 3, Soft: 1}
	want.Refused[limit.ReasonRate], want.Refused[limit.ReasonStoreFailure], want.Refused[0] = 1, 1, 1
	want.ShadowRefused[limit.ReasonRate], want.Tagged[limit.ReasonRate], want.Unlimited[MissingKey] = 2, 1, 1
	if got := c.Read("a"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// Of an admitted cost the part above near is counted, and at most the cost.
func TestNear(t *testing.T) {
	for _, x := range []struct{ remaining, taken, want int64 }{{50, 10, 0}, {20, 10, 0}, {15, 10, 5}, {0, 10, 10}} {
		var c Counter
		r := verdict(true, limit.ReasonNone)
		r.Quota, r.Remaining = 100, x.remaining
		c.CountNear(r, x.taken, 80)
		if got := c.Read("").NearLimit; got != uint64(x.want) {
			t.Errorf("%+v: %d", x, got)
		}
		r.StoreFailed = true
		c.CountNear(r, x.taken, 0)
		r.StoreFailed, r.Allowed = false, false
		c.CountNear(r, x.taken, 0)
		if got := c.Read("").NearLimit; got != uint64(x.want) {
			t.Errorf("%+v: %d after answers that do not count", x, got)
		}
	}
}

// A watcher is told of each answer with its key.
func TestWatcher(t *testing.T) {
	w := &told{}
	c := New(func(limit string) Watcher { w.text = limit; return w }, "a")
	c.Count([]byte("k1"), verdict(true, limit.ReasonNone))
	c.Count([]byte("k2"), verdict(false, limit.ReasonRate))
	if w.text != "a k1 true k2 false" {
		t.Error(w.text)
	}
	New(nil, "a").Count([]byte("k"), verdict(true, limit.ReasonNone))
}

type told struct{ text string }

func (w *told) Saw(key []byte, r *limit.Result) {
	w.text += fmt.Sprint(" ", string(key), " ", r.Allowed)
}

// Many at once: no answer is lost.
func TestConcurrent(t *testing.T) {
	var c Counter
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				c.Count(nil, verdict(true, limit.ReasonNone))
				c.Count(nil, verdict(false, limit.ReasonRate))
			}
		})
	}
	all.Wait()
	if got := c.Read(""); got.Allowed != 8000 || got.Refused[limit.ReasonRate] != 8000 {
		t.Errorf("%+v", got)
	}
}
