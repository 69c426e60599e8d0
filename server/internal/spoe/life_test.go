package spoe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// slow decides when it is told to.
type slow struct {
	ask  chan limit.Request
	more chan struct{}
}

func (s *slow) TakeWithin(ctx context.Context, req limit.Request, _ time.Duration) (limit.Decision, error) {
	s.ask <- req
	select {
	case <-s.more:
		return limit.Decision{Allowed: true}, nil
	case <-ctx.Done():
		return limit.Decision{}, ctx.Err()
	}
}

// Queries of one connection do not wait for each other, and the end of the server waits for their answers.
func TestQueriesRunTogetherAndAreAnsweredAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &slow{make(chan limit.Request), make(chan struct{})}
		s := New(Options{Engine: e, Fault: func(call string, p any) { t.Errorf("%s: %v", call, p) }})
		near, far := net.Pipe()
		l := &listener{conns: make(chan net.Conn, 1), closed: make(chan struct{})}
		l.conns <- far
		end, drain := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- s.Serve(end, t.Context(), l) }()
		var out bytes.Buffer
		copied := make(chan struct{})
		go func() {
			defer close(copied)
			_, _ = io.Copy(&out, near)
		}()
		const together = 20
		_, _ = near.Write(greeting)
		for i := range uint64(together) {
			_, _ = near.Write(notifyOf(i, 1, argIP("192.0.2.7")))
		}
		for range together {
			<-e.ask
		}
		drain()
		synctest.Wait()
		for range together {
			e.more <- struct{}{}
		}
		if err := <-ended; err != nil {
			t.Error(err)
		}
		<-copied
		lines := read(t, out.Bytes())
		if len(lines) != together+2 || lines[together+1] != `102 0/0 status-code=0 message="stint ends"` {
			t.Errorf("%q", lines)
		}
	})
}

type listener struct {
	net.Listener
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

type broken struct{}

func (broken) TakeWithin(context.Context, limit.Request, time.Duration) (limit.Decision, error) {
	return limit.Decision{}, errors.New("no store")
}

type panics struct{}

func (panics) TakeWithin(context.Context, limit.Request, time.Duration) (limit.Decision, error) {
	panic("broken")
}

// Without a decision there is none: neither a fault of the store nor one of ours is an answer that lets a request pass.
func TestNoDecision(t *testing.T) {
	faults := 0
	for _, e := range []Engine{broken{}, panics{}} {
		s := New(Options{Engine: e, Fault: func(string, any) { faults++ }})
		got := conversation(t, s, notifyOf(4, 2, argIP("192.0.2.7")))
		if got[0] != `103 4/2 error="no_decision: the limiter could not decide"` {
			t.Errorf("%T: %s", e, got[0])
		}
	}
	if faults != 1 {
		t.Errorf("%d faults were reported, want that of the panic", faults)
	}
}

// fixed decides all as it says.
type fixed struct{ limit.Decision }

func (f fixed) TakeWithin(context.Context, limit.Request, time.Duration) (limit.Decision, error) {
	return f.Decision, nil
}

// store_failed is set if and only if the store has failed for a limit that is enforced, whether the request was admitted or
// refused, and whichever of its limits it is.
func TestStoreFailedIsSaid(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 20))
		d, want := limit.Decision{Allowed: true}, false
		for i := range r.IntN(4) {
			one := limit.Result{Limit: fmt.Sprint("l", i), Shadow: r.IntN(3) == 0, StoreFailed: r.IntN(3) == 0}
			if one.Allowed = r.IntN(3) > 0; !one.Allowed {
				one.Reason = limit.ReasonStoreFailure
			}
			want = want || one.StoreFailed && !one.Shadow
			d.Allowed = d.Allowed && (one.Allowed || one.Shadow)
			d.Results = append(d.Results, one)
		}
		s := New(Options{Engine: fixed{d}, Fault: func(call string, p any) { t.Errorf("%s: %v", call, p) }})
		got := conversation(t, s, notifyOf(4, 2, argIP("192.0.2.7")))
		if said := strings.Contains(got[0], " store_failed=true"); said != want || !strings.Contains(got[0], fmt.Sprintf(" allowed=%v ", d.Allowed)) {
			t.Errorf("seed %d: %+v is answered by %s", seed, d, got[0])
		}
	}
}

// A gateway that says nothing, or half a frame, does not keep its connection.
func TestTimes(t *testing.T) {
	for name, c := range map[string]struct {
		in   []byte
		want time.Duration
	}{
		"no hello":     {nil, connectTime},
		"half a hello": {greeting[:9], connectTime},
		"half a query": {slices.Concat(greeting, notifyOf(1, 1, argIP("192.0.2.7"))[:12]), readTime},
	} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			go func() {
				_, _ = near.Write(c.in)
				_, _ = io.Copy(io.Discard, near)
			}()
			begin := time.Now()
			newServer(t).serve(t.Context(), far)
			if took := time.Since(begin); took < c.want || took > c.want+5*time.Second {
				t.Errorf("%s: ended after %v, want %v", name, took, c.want)
			}
			_ = near.Close()
		})
	}
}

func TestTooManyConnections(t *testing.T) {
	s := New(Options{MaxConnections: 1})
	s.conns.Add(&gateway{})
	g := &gateway{in: bytes.NewReader(nil), Conn: closer{}}
	s.serve(t.Context(), g)
	if got := read(t, g.out.Bytes()); len(got) != 1 || !strings.HasPrefix(got[0], "102 0/0 status-code=13") || s.figures.full.Load() != 1 {
		t.Errorf("%q", got)
	}
}

type closer struct{ net.Conn }

func (closer) Close() error { return nil }
