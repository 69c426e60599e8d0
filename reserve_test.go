package stint_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
)

const aThousand = "limits: [{name: tokens, key: [tenant], rate: 1000/day, algorithm: fixed_window}]\n"

func acme(cost int64) limit.Request {
	return limit.Request{Attributes: []limit.Attribute{{Name: "tenant", Value: "acme"}}, Cost: cost}
}

// What a request costs is known when it has ended: reserve the most that it can cost, say before each piece what will
// have been used, and commit what it was.
func ExampleLimiter_Reserve() {
	limiter, err := stint.Parse("limits: [{name: tokens, key: [tenant], rate: 1000/day, algorithm: fixed_window}]\n")
	if err != nil {
		log.Fatal(err)
	}
	defer limiter.Close()
	ctx, tenant := context.Background(), []limit.Attribute{{Name: "tenant", Value: "acme"}}

	r, d, err := limiter.Reserve(ctx, limit.Request{Attributes: tenant, Cost: 800}, 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	if !d.Allowed {
		log.Fatal("try again in ", d.RetryAfter())
	}
	for sent := int64(0); sent < 128; sent += 64 {
		if _, err := limiter.Renew(ctx, r.ID, sent+64, 0); err != nil {
			log.Fatal(err)
		}
	}
	if _, err := limiter.Commit(ctx, r.ID, 100); err != nil {
		log.Fatal(err)
	}
	_, d, err = limiter.Reserve(ctx, limit.Request{Attributes: tenant, Cost: 900}, 0)
	fmt.Println(d.Allowed, d.Results[0].Remaining, err)
	// Output: true 0 <nil>
}

// A reservation that nobody settles ends with its ttl, but for what a renewal has said was used; Close ends what runs.
func TestReserveExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := stint.Parse(aThousand)
		if err != nil {
			t.Fatal(err)
		}
		r, d, err := l.Reserve(t.Context(), acme(900), time.Second)
		if err != nil || !d.Allowed || !r.Open {
			t.Fatal(r, d, err)
		}
		if _, d, err := l.Reserve(t.Context(), acme(200), 0); err != nil || d.Allowed {
			t.Error(d, err)
		}
		if got, err := l.Renew(t.Context(), r.ID, 300, 0); err != nil || got.Used != 300 {
			t.Error(got, err)
		}
		time.Sleep(3 * time.Second)
		if s, d, err := l.Reserve(t.Context(), acme(700), 0); err != nil || !d.Allowed {
			t.Error(s, d, err)
		} else if _, err := l.Release(t.Context(), s.ID); err != nil {
			t.Error(err)
		}
		if got, err := l.Commit(t.Context(), r.ID, 250); err != nil || !got.Late || got.Actual != 250 || got.Open {
			t.Error(got, err)
		}
		if _, err := l.Commit(t.Context(), r.ID, 251); !errors.Is(err, stint.ErrSettled) {
			t.Error(err)
		}
		for _, id := range []string{"", "forged", r.ID[1:]} {
			if _, err := l.Commit(t.Context(), id, 1); !errors.Is(err, stint.ErrUnknown) {
				t.Error(id, err)
			}
		}
		for _, bad := range []int64{-1, 1<<63 - 1} {
			if _, err := l.Renew(t.Context(), r.ID, bad, 0); err == nil {
				t.Error(bad)
			}
			if _, _, err := l.Reserve(t.Context(), acme(bad), 0); err == nil {
				t.Error(bad)
			}
		}
		if _, _, err := l.Reserve(t.Context(), acme(1), 10*365*24*time.Hour); err == nil {
			t.Error("a ttl of ten years")
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// With Redis one program reserves, and another settles.
func TestReserveOnRedis(t *testing.T) {
	text := "store: redis://" + redistest.Start(t).Addr() + "?timeout=10s\n" + aThousand
	var both [2]*stint.Limiter
	for i := range both {
		l, err := stint.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		both[i] = l
	}
	r, _, err := both[0].Reserve(t.Context(), acme(800), 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := both[1].Commit(t.Context(), r.ID, 100); err != nil || got.Actual != 100 {
			t.Error(got, err)
		}
	}
	if _, d, err := both[0].Reserve(t.Context(), acme(900), 0); err != nil || !d.Allowed || d.Results[0].Remaining != 0 {
		t.Error(d, err)
	}
}
