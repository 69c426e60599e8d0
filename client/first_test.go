package client

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// TestFirstAnswerIsWhole: a Take that the first answer of the coordinator serves has the
// limit that the answer says, though the tokens are there a moment before the rest of it.
func TestFirstAnswerIsWhole(t *testing.T) {
	l := lentAll(t, 10, 5)
	c, st := l.lease.client, *l.lease.state.Load()
	c.lanes()[0].mu.Lock() // as while an answer is taken in
	l.lease.state.Store(&agent.State{})
	told := make(chan limit.Result, 1)
	go func() {
		d, err := l.Take(t.Context(), limit.Request{})
		if err != nil || !d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
		told <- d.Results[0]
	}()
	var r limit.Result
	early := false
	select {
	case r = <-told:
		early = true
	case <-time.After(20 * time.Millisecond): // so long for one that does not wait
	}
	l.lease.state.Store(&st)
	c.lanes()[0].mu.Unlock()
	if !early {
		r = <-told
	}
	if r.Quota != 5 || r.Window != 500*time.Millisecond || r.Remaining != 4 {
		t.Errorf("told %+v, want 4 of 5 for each 500 ms", r)
	}
}
