package grpclimit_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	grpctap "google.golang.org/grpc/tap"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/grpclimit"
)

// book is a taker that notes what it is asked and what is given back.
type book struct {
	mu       sync.Mutex
	asked    []limit.Request
	finished []uint64
	decision limit.Decision
}

func (b *book) Take(_ context.Context, req limit.Request) (limit.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked = append(b.asked, req)
	return b.decision, nil
}

func (b *book) Finish(_ context.Context, _ limit.Request, permit uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.finished = append(b.finished, permit)
	return nil
}

// A caller without an address, as on a Unix socket, has no attribute "ip", so that limits
// by address are skipped and not shared by all of them.
func TestNoAddress(t *testing.T) {
	b := &book{decision: limit.Decision{Allowed: true}}
	call := grpclimit.UnaryServerInterceptor(b)
	ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{"x-forwarded-for": {"192.0.2.7"}})
	if _, err := call(ctx, nil, &grpc.UnaryServerInfo{FullMethod: "/a/b"}, func(context.Context, any) (any, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	for _, a := range b.asked[0].Attributes {
		if a.Name == "ip" {
			t.Errorf("it is told as ip %q", a.Value)
		}
	}
}

// A tap gives back each place when the call has ended, and nothing where none is held; what
// it returns beside a refusal is the call's context.
func TestTapGivesBack(t *testing.T) {
	for _, permit := range []uint64{0, 1, 7} {
		synctest.Test(t, func(t *testing.T) {
			b := &book{decision: limit.Decision{Allowed: true, Permit: permit}}
			tap := grpclimit.ServerInHandle(b)
			ctx, cancel := context.WithCancel(t.Context())
			got, err := tap(ctx, &grpctap.Info{FullMethodName: "/a/b"})
			if err != nil || got != ctx || len(b.finished) > 0 {
				t.Errorf("%v, %v; given back %v", got, err, b.finished)
			}
			cancel()
			synctest.Wait()
			if want := min(permit, 1); uint64(len(b.finished)) != want || want > 0 && b.finished[0] != permit {
				t.Errorf("given back %v of permit %d", b.finished, permit)
			}
			b.decision = limit.Decision{Results: []limit.Result{{Limit: "a", Verdict: limit.Verdict{Reason: limit.ReasonRate, RetryAfter: time.Second}}}}
			if got, err := tap(t.Context(), &grpctap.Info{FullMethodName: "/a/b"}); err == nil || got != t.Context() {
				t.Errorf("a refusal: %v, %v", got, err)
			}
		})
	}
}
