package server_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/stintpb"
)

// Takes with idempotency keys that are sent again, over HTTP or gRPC, whichever they came by, are admitted and charged once.
func TestIdempotencyKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	s := start(t, "limits: [{name: day, key: [user], rate: 100000/day}, {name: month, rate: 100000/month, count_refused: true, algorithm: fixed_window}]\n")
	c := stintpb.NewLimitsClient(s.conn)
	for seed := range seeding.Draw(t, 1) {
		r := rand.New(rand.NewPCG(seed, 1))
		sent, used, repeats := map[string]bool{}, int64(0), 0
		for range 200 {
			key, user, cost := fmt.Sprint("key ", r.IntN(30)), fmt.Sprint(r.IntN(2)), 1+r.Int64N(2)
			what := fmt.Sprint(key, user, cost)
			var repeated bool
			switch r.IntN(2) {
			case 0:
				a := s.do(http.MethodPost, s.http+"/v1/take", fmt.Sprintf(`{"cost":%d,"attributes":{"path":"/","user":"%s"}}`, cost, user), "Idempotency-Key", key)
				if a.status != http.StatusOK {
					t.Fatalf("%+v", a)
				}
				repeated = strings.Contains(a.body, `"repeated":true`)
			case 1:
				d, err := c.Take(t.Context(), &stintpb.TakeRequest{Attributes: map[string]string{"user": user, "path": "/"}, Cost: &cost, IdempotencyKey: key})
				if err != nil || !d.Allowed {
					t.Fatalf("%v, %v", d, err)
				}
				repeated = d.Repeated
			}
			if repeated != sent[what] {
				t.Fatalf("seed %d: %s: repeated %v, want %v", seed, what, repeated, sent[what])
			}
			if sent[what] {
				repeats++
				continue
			}
			sent[what] = true
			used += cost
		}
		if left := s.remaining(`{}`); left != 100000-used {
			t.Errorf("seed %d: %d left, want %d", seed, left, 100000-used)
		}
		page := s.do(http.MethodGet, s.admin+"/metrics", "").body
		for _, line := range []string{
			fmt.Sprintf("\nstint_repeated_takes_total %d\n", repeats),
			fmt.Sprintf("\nstint_decisions_total{limit=\"day\",outcome=\"allowed\",reason=\"\"} %d\n", len(sent)),
		} {
			if !strings.Contains(page, line) {
				t.Errorf("seed %d: the metrics do not have %q", seed, line)
			}
		}
	}
}

// A gateway passes on the header fields of its clients: a key among them changes nothing.
func TestKeysOfClientsAreIgnored(t *testing.T) {
	s := start(t, "limits: [{name: day, rate: 100/day}]\n")
	for _, path := range []string{"/v1/gate/forward-auth", "/v1/gate/nginx", "/v1/gate/forward-auth"} {
		if a := s.do(http.MethodGet, s.http+path, "", "X-Forwarded-For", "192.0.2.7", "Idempotency-Key", "k"); a.status >= 300 {
			t.Fatalf("%+v", a)
		}
	}
	if left := s.remaining(`{}`); left != 97 {
		t.Errorf("%d left after 3 requests, want 97", left)
	}
}

// A bad idempotency key is an error that says what is wrong, and takes nothing.
func TestBadIdempotencyKeys(t *testing.T) {
	s := start(t, "limits: [{name: day, rate: 100/day}]\n")
	long := strings.Repeat("k", limit.MaxIdempotencyKey+1)
	for _, key := range []string{long, ""} {
		if a := s.do(http.MethodPost, s.http+"/v1/take", `{}`, "Idempotency-Key", key); a.status != http.StatusBadRequest || !strings.Contains(a.body, "Idempotency-Key") {
			t.Errorf("%+v", a)
		}
	}
	_, err := stintpb.NewLimitsClient(s.conn).Take(t.Context(), &stintpb.TakeRequest{IdempotencyKey: long})
	isCode(t, err, codes.InvalidArgument, "a key that is too long")
	if left := s.remaining(`{}`); left != 100 {
		t.Errorf("%d left, want 100", left)
	}
}
