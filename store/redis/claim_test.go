package redis_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/store/redis"
)

// TestClaim: one of many processes has a claim, no other renews or releases it, and the next one
// learns in which state it was left.
func TestClaim(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := redistest.Start(t)
	open := func(prefix string) *redis.Store {
		s, err := redis.New(redis.Options{Addrs: []string{r.Addr()}, Prefix: prefix, Timeout: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	s, elsewhere := open("p:"), open("q:")
	const long = time.Minute
	claim := func(s *redis.Store, id string, want redis.ClaimState) {
		t.Helper()
		got, err := s.Claim(t.Context(), "name", id, "the one called "+id, long)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", id, got, err, want)
		}
	}
	unclaim := func(id string, clean bool) {
		t.Helper()
		if err := s.Unclaim(t.Context(), "name", id, clean); err != nil {
			t.Error(err)
		}
	}
	first, byFirst := redis.ClaimState{Lost: true}, redis.ClaimState{Holder: "the one called a"}
	claim(s, "a", first)
	claim(s, "a", redis.ClaimState{})
	claim(s, "b", byFirst)
	claim(s, "", byFirst) // no beginning of a name is the name
	claim(elsewhere, "b", first)
	r.Do("PEXPIRE", "p:1:{name}", "50000")
	claim(s, "b", byFirst)
	if d := r.Int("PTTL", "p:1:{name}"); d > 50000 {
		t.Errorf("another has renewed it: %d ms", d)
	}
	unclaim("b", true)
	claim(s, "b", byFirst)
	unclaim("a", true)
	claim(s, "b", redis.ClaimState{})
	unclaim("b", false)
	claim(s, "a", first)
	if v := r.Text("GET", "p:1:{name}"); !strings.HasPrefix(v, "a ") {
		t.Errorf("its value is %q", v)
	}
	r.Do("FLUSHALL")
	claim(s, "b", first)
	r.Kill()
	if st, err := s.Claim(t.Context(), "name", "b", "b", long); err == nil {
		t.Errorf("claimed without Redis: %+v", st)
	}
}
