package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/tenants"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// failing are shares that fail on demand.
type failing struct {
	store.Shares
	err atomic.Pointer[error]
}

func (f *failing) TakeShare(ctx context.Context, s *store.Share) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return f.Shares.TakeShare(ctx, s)
}

// newSharing is newBench with shares on the same clock.
func newSharing(t testing.TB, yaml string) (*bench, *failing) {
	t.Helper()
	b := &bench{t: t}
	b.now.Store(time.Date(2026, 5, 4, 12, 30, 30, 0, time.UTC).UnixNano())
	now := func() limit.Time { return limit.Time(b.now.Load()) }
	f := &failing{Shares: tenants.New(tenants.Options{Now: now})}
	b.store = memory.New(memory.Options{Now: now})
	var err error
	if b.Engine, err = engine.New(b.store, parse(t, yaml), engine.Options{Shares: f}); err != nil {
		t.Fatal(err)
	}
	return b, f
}

const sharing = `
limits:
  - {name: model, rate: 10/s, burst: 8, match: {path: /a}, share: {by: tenant, weights: {acme: 2}, guarantee: {initech: 1/s}}}
`

func TestATenantAboveItsShareIsRefused(t *testing.T) {
	b, _ := newSharing(t, sharing)
	for range 8 { // alone
		if d := b.take(1, "path=/a", "tenant=acme"); !d.Allowed {
			t.Fatalf("%+v", d)
		}
	}
	if d := b.take(1, "path=/a", "tenant=other"); d.Allowed || d.Results[0].Reason != limit.ReasonRate {
		t.Fatalf("of an empty bucket: %+v", d)
	}
	b.advance(200 * time.Millisecond)
	d := b.take(1, "path=/a", "tenant=acme")
	r := d.Results[0]
	if d.Allowed || d.Status != 429 || r.Reason != limit.ReasonShare || r.Cost != 1 || r.Quota != 8 || r.RetryAfter <= 0 || r.RetryAfter > time.Second {
		t.Errorf("got %+v", d)
	}
	if r.Detail != "share 10/s of 1 tenants" {
		t.Errorf("got %q", r.Detail)
	}
	for range 2 {
		if d := b.take(1, "path=/a", "tenant=other"); !d.Allowed {
			t.Errorf("the token of the other: %+v", d)
		}
		b.advance(150 * time.Millisecond)
	}
	// No tenant is a tenant too.
	if d := b.take(1, "path=/a"); !d.Allowed {
		t.Errorf("got %+v", d)
	}
	x, err := explain.Request(context.Background(), b.Engine, limit.Request{Attributes: attributes("path=/a", "tenant=initech"), Cost: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := x.Limits[0].Share; got != "shared by tenant: weight 1, guaranteed 1/s; now 2/s, and 3 tenants have taken 6 of 8 tokens" {
		t.Errorf("got %q", got)
	}
	if n := b.ShareTallies(); len(n) != 1 || n[0].Limit != "model" || n[0].Tenants != 3 || n[0].Use < 0.7 || n[0].Use > 0.75 {
		t.Errorf("got %+v", n)
	}
}

// What another limit refuses, what is only asked, and what is given back is not taken of a share.
func TestSharesOfRequestsThatAreRefused(t *testing.T) {
	b, _ := newSharing(t, sharing+"  - {name: other, rate: 3/m, match: {path: /a}, key: tenant}\n")
	taken := func(want float64) {
		t.Helper()
		b.peek(1, "path=/a", "tenant=acme")
		if got := b.ShareTallies()[0].Use * 8; got > want+0.01 || got < want-2 {
			t.Errorf("%v tokens are taken, want %v", got, want)
		}
	}
	for i := range 20 {
		if d := b.take(1, "path=/a", "tenant=acme"); d.Allowed != (i < 3) {
			t.Fatalf("request %d: %+v", i, d)
		}
	}
	taken(3)
	for range 20 {
		b.peek(1, "path=/a", "tenant=x")
	}
	taken(3)
	// A cost that counts although it is refused is taken of the share too.
	d := b.ask(limit.Request{Attributes: attributes("path=/a", "tenant=acme"), Cost: 2, CountRefused: true})
	if d.Allowed {
		t.Fatalf("got %+v", d)
	}
	taken(5)
	q := &engine.Query{Descriptors: []engine.Descriptor{{Attributes: attributes("path=/a", "tenant=acme"), Cost: 4, Refund: true}}}
	if err := b.Decide(context.Background(), q); err != nil {
		t.Fatal(err)
	}
	taken(1)
}

// A shadow refuses nothing, and what it would refuse is not charged.
func TestASharedShadow(t *testing.T) {
	b, _ := newSharing(t, strings.Replace(sharing, "name: model", "shadow: true, name: model", 1))
	b.take(1, "path=/a", "tenant=other")
	refused := 0
	for range 20 {
		d := b.take(1, "path=/a", "tenant=acme")
		if !d.Allowed {
			t.Fatalf("got %+v", d)
		}
		if r := d.Results[0]; !r.Allowed {
			if refused++; r.Reason != limit.ReasonShare || !r.Shadow {
				t.Fatalf("got %+v", r)
			}
		}
	}
	if refused < 14 {
		t.Errorf("%d of 20 would be refused", refused)
	}
	if d := b.peek(1, "path=/a", "tenant=third"); d.Results[0].Remaining < 3 {
		t.Errorf("%+v", d.Results[0])
	}
}

// What a reservation costs more or less than was thought is the tenant's.
func TestSharesAreSettled(t *testing.T) {
	b, _ := newSharing(t, sharing)
	ctx := context.Background()
	for _, tt := range []struct {
		cost, actual int64
		use          float64
	}{{4, 1, 1}, {3, 5, 6}, {1, 1, 7}} {
		d, parts, cost, err := b.TakeParts(ctx, limit.Request{Attributes: attributes("path=/a", "tenant=acme"), Cost: tt.cost})
		if err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		if string(parts[0].Tenant) != "\x04acme" || cost != tt.cost {
			t.Errorf("got %+v", parts)
		}
		if err := b.Settle(ctx, parts, limit.Time(b.now.Load()), limit.Time(b.now.Load()), tt.actual); err != nil {
			t.Fatal(err)
		}
		if d := b.peek(1, "path=/a", "tenant=acme"); d.Results[0].Remaining != 8-int64(tt.use) {
			t.Errorf("%+v", d.Results[0])
		}
		if got := b.ShareTallies()[0].Use * 8; got > tt.use+0.01 || got < tt.use-0.9 {
			t.Errorf("%v tokens are taken, want %v", got, tt.use)
		}
	}
}

// Where shares cannot be asked the limit decides alone; an error of another kind decides nothing.
func TestSharesThatDoNotAnswer(t *testing.T) {
	b, f := newSharing(t, sharing)
	away := fmt.Errorf("test: %w", store.ErrUnavailable)
	f.err.Store(&away)
	n := 0
	for i := range 20 {
		if b.take(1, "path=/a", "tenant="+fmt.Sprint(i%3)).Allowed {
			n++
		}
	}
	if n != 8 {
		t.Errorf("%d of a burst of 8", n)
	}
	broken := errors.New("broken")
	f.err.Store(&broken)
	b.advance(time.Minute)
	if _, err := b.Take(context.Background(), limit.Request{Attributes: attributes("path=/a", "tenant=x")}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
	f.err.Store(nil)
	if d := b.peek(1, "path=/a", "tenant=x"); d.Results[0].Remaining != 8 {
		t.Errorf("an error took something: %+v", d.Results[0])
	}
}

// Whatever tenants ask, with reloads in between: in every interval at most burst + rate x T.
func TestASharedLimitIsNeverOver(t *testing.T) {
	b, _ := newSharing(t, sharing)
	rng := seeding.Rand(t)
	other := strings.Replace(strings.Replace(sharing, "acme: 2", "x: 3", 1), "initech: 1/s", "acme: 2/s", 1)
	type point struct {
		at  time.Duration
		sum int64
	}
	points := []point{{}}
	at, sum := time.Duration(0), int64(0)
	for i := range 4000 {
		step := time.Duration(rng.ExpFloat64() * 3e7)
		b.advance(step)
		at += step
		cost := 1 + rng.Int64N(2)
		tenant := []string{"acme", "initech", "x", fmt.Sprint(i)}[rng.IntN(4)]
		if b.take(cost, "path=/a", "tenant="+tenant).Allowed {
			points = append(points, point{at, sum})
			sum += cost
			for _, p := range points[max(0, len(points)-200):] {
				if most := 8 + 10*(at-p.at).Seconds(); float64(sum-p.sum) > most+1e-6 {
					t.Fatalf("%d within %v, want at most %.2f", sum-p.sum, at-p.at, most)
				}
			}
		}
		if i%100 == 0 {
			yaml := sharing
			if i%200 == 0 {
				yaml = other
			}
			if err := b.Swap(parse(t, yaml)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if most := 10 * at.Seconds(); float64(sum) < 0.95*most {
		t.Errorf("%d of %.0f were used", sum, most)
	}
}
