package server_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/server"
)

// TestAddressesSeenOnceLeaveNothing: whatever limit counts addresses, Redis keeps nothing of one that came once
// beyond its bucket, and every key expires; of budgets of customers it keeps the usage, and that expires as well.
func TestAddressesSeenOnceLeaveNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	r := redistest.Start(t)
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 13))
	rows := func(s *service, name string) int {
		a := s.do(http.MethodGet, s.http+"/v1/usage?format=jsonl&limit="+name, "")
		if a.status != http.StatusOK {
			t.Fatalf("usage: %d %s", a.status, a.body)
		}
		return strings.Count(a.body, "\n")
	}
	for range 6 {
		rate := fmt.Sprint(1+rnd.IntN(5000), []string{"/h", "/2h", "/day"}[rnd.IntN(3)])
		algorithm := []string{"token_bucket", "leaky_bucket", "fixed_window", "sliding_window_counter"}[rnd.IntN(4)]
		key := []string{"[ip]", "[ip, user]", "[user_ip]"}[rnd.IntN(3)]
		yaml := fmt.Sprintf("limits:\n- {name: strangers, key: %s, algorithm: %s, rate: %s, missing: all}\n", key, algorithm, rate) +
			"- {name: budget, key: [customer], algorithm: fixed_window, rate: 1000/day}\n" +
			"- {name: asked, key: [user], algorithm: token_bucket, rate: 10/s, usage: true}\n" +
			"- {name: declined, key: [customer], algorithm: fixed_window, rate: 1000/day, usage: false}\n"
		r.Do("FLUSHALL")
		s := start(t, yaml, func(o *server.Options) { o.Store = "redis://" + r.Addr() + "?timeout=10s" })
		await(t, "Redis to answer", func() bool { ok, _ := s.Readiness(); return ok })
		for n := range 40 {
			address := fmt.Sprintf("2001:db8:%x:%x::1", rnd.IntN(1<<16), n)
			body := fmt.Sprintf(`{"attributes":{"ip":%q,"user_ip":%q,"user":"u%d","customer":"acme"}}`, address, address, n%5)
			if a := s.post("/v1/take", body); a.status != http.StatusOK {
				t.Fatalf("seed %d: %d %s under\n%s", seed, a.status, a.body, yaml)
			}
		}
		for name, want := range map[string]int{"strangers": 0, "declined": 0, "budget": 1, "asked": 5} {
			if got := rows(s, name); got != want {
				t.Errorf("seed %d: %d rows of %s, want %d, under\n%s", seed, got, name, want, yaml)
			}
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
		reply, err := r.Try("KEYS", "*")
		if err != nil {
			t.Fatal(err)
		}
		keys, err := reply.AsStrSlice()
		if err != nil || len(keys) < 40 {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		for _, key := range keys {
			if r.Int("PTTL", key) < 0 {
				t.Errorf("seed %d: %s never expires, under\n%s", seed, key, yaml)
			}
		}
	}
}
