package lease

import (
	"context"
	"io"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/share"
)

// An instance in the process and one beyond the network share one bucket.
func TestPipe(t *testing.T) {
	r := start(t, Options{})
	key, ok := r.limits.Load().byName["per-user"].KeyOf("u", "192.0.2.7")
	if !ok {
		t.Fatal("not a key")
	}
	far := r.open("far", 1)
	far.report(demand(1, "per-user", 4, "u", "::ffff:192.0.2.7"))
	far.share(1)
	p, err := r.Pipe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	member := share.Member{Instance: "near", Session: 3}
	near := share.Demand{Handle: 1, Rate: 4 * share.Token, Burst: share.Token, Resource: share.ResourceID{Limit: "per-user", Key: string(key)}}
	if err := p.Send(&share.Report{Member: member, Number: 1, Stamp: 1, Demands: []share.Demand{near}}); err != nil {
		t.Fatal(err)
	}
	g, err := p.Receive()
	if err != nil || g.To != member || len(g.Shares) != 1 || g.Shares[0].Status != share.StatusOK {
		t.Fatalf("%+v, %v", g, err)
	}
	if page := r.page("?limit=per-user"); len(page.Resources) != 1 || page.Resources[0].Count != 2 || page.Resources[0].Lent > 10 {
		t.Errorf("%+v", page)
	}
	other, err := r.Pipe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Send(&share.Report{Member: share.Member{Instance: "far", Session: 9}, Number: 1}); status.Code(err) != codes.AlreadyExists {
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
	third, err := r.Pipe(ctx)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := third.Receive(); err != context.Canceled {
		t.Errorf("its context ended: %v", err)
	}
	fourth, err := r.Pipe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.stop()
	if _, err := fourth.Receive(); status.Code(err) != codes.Unavailable {
		t.Errorf("the coordinator went: %v", err)
	}
	if _, err := r.Pipe(t.Context()); status.Code(err) != codes.Unavailable {
		t.Errorf("the coordinator is gone: %v", err)
	}
}
