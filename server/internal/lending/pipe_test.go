package lending

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// An instance in the process and one beyond the network share one bucket.
func TestPipe(t *testing.T) {
	r := start(t, Options{})
	key, ok := r.limits.Load().limit("per-user").KeyOf("u", "192.0.2.7")
	if !ok {
		t.Fatal("not a key")
	}
	far := r.open("far", 1)
	far.report(demand(1, "per-user", 4, "u", "::ffff:192.0.2.7"))
	far.share(1)
	p, err := r.pipe(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	member := lease.Member{Instance: "near", Session: 3}
	near := lease.Demand{Handle: 1, Rate: 4 * fixed.Token, Shortfall: fixed.Token, Resource: lease.ResourceID{Limit: "per-user", Key: string(key)}}
	if err := p.Send(&lease.Report{Member: member, Number: 1, Stamp: 1, Demands: []lease.Demand{near}}); err != nil {
		t.Fatal(err)
	}
	g, err := p.Receive()
	if err != nil || g.To != member || len(g.Shares) != 1 || g.Shares[0].Status != lease.StatusOK {
		t.Fatalf("%+v, %v", g, err)
	}
	if page := r.page("?limit=per-user"); len(page.Resources) != 1 || page.Resources[0].Count != 2 || page.Resources[0].Lent > 10 {
		t.Errorf("%+v", page)
	}
	other, err := r.pipe(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Send(&lease.Report{Member: lease.Member{Instance: "far", Session: 9}, Number: 1}); status.Code(err) != codes.AlreadyExists {
		t.Errorf("the name of another: %v", err)
	}
	if err := p.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = p.Receive()
	}
	if err != io.EOF {
		t.Errorf("a good end is %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	third, err := r.pipe(ctx, true)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := third.Receive(); err != context.Canceled {
		t.Errorf("its context ended: %v", err)
	}
	fourth, err := r.pipe(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	if _, err := fourth.Receive(); status.Code(err) != codes.Unavailable {
		t.Errorf("the coordinator went: %v", err)
	}
	if _, err := r.pipe(t.Context(), true); status.Code(err) != codes.Unavailable {
		t.Errorf("the coordinator is gone: %v", err)
	}
}

// A report that the loop does not take any more is returned as not taken, whether or not the loop
// knew the stream.
func TestReportAfterTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		known, unknown, waiting := pipeOf(t, s), pipeOf(t, s), pipeOf(t, s)
		report := &lease.Report{Member: lease.Member{Instance: "a", Session: 1}, Number: 1}
		if err := known.Send(report); err != nil {
			t.Fatal(err)
		}
		// The loop ends while a report is on its way to it.
		held := make(chan struct{})
		go s.inLoop(t.Context(), func(limit.Time) { <-held })
		synctest.Wait()
		sent := make(chan error, 1)
		go func() {
			sent <- waiting.Send(&lease.Report{Member: lease.Member{Instance: "b", Session: 1}, Number: 1})
		}()
		synctest.Wait()
		go s.stop()
		synctest.Wait()
		close(held)
		s.stop()
		select {
		case err := <-sent:
			if err != nil && status.Code(err) != codes.Unavailable {
				t.Errorf("on its way at the end: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("a report that is on its way at the end waits for ever")
		}
		for name, p := range map[string]*Pipe{"known": known, "unknown": unknown} {
			for range 20 { // whether the queue takes it first is chance
				if err := p.Send(report); status.Code(err) != codes.Unavailable {
					t.Errorf("%s: after the end Send says %v", name, err)
				}
			}
			_, err := p.Receive()
			for err == nil { // what was granted before
				_, err = p.Receive()
			}
			if status.Code(err) != codes.Unavailable {
				t.Errorf("%s: after the end Receive says %v", name, err)
			}
		}
	})
}
