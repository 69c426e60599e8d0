package redisserver

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T) *Server {
	t.Helper()
	s, err := Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
		if _, err := net.DialTimeout("tcp", s.Addr, time.Second); err == nil {
			t.Errorf("%s still answers after Stop", s.Addr)
		}
		if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
			t.Errorf("%s is left over: %v", s.dir, err)
		}
	})
	return s
}

// A script is one call, and what it calls is counted too.
func TestWorkCountsCalls(t *testing.T) {
	s := start(t)
	before, err := s.Work(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 5 {
		eval := s.client.B().Eval().Script("return redis.call('INCR', KEYS[1])").Numkeys(1).Key("k").Build()
		if err := s.client.Do(t.Context(), eval).Error(); err != nil {
			t.Fatal(err)
		}
	}
	after, err := s.Work(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// 5 scripts, 5 INCR, and a few of the client's own, such as the first INFO,
	// which is counted after it answered.
	if got := after.Since(before); got.Scripts != 5 || got.Commands < 11 || got.Commands > 15 || got.CPU < 0 {
		t.Errorf("got %+v, want 5 scripts and 11 commands, few more", got)
	}
	if !strings.Contains(s.Version, ".") {
		t.Errorf("version %q", s.Version)
	}
	if rtt, err := s.Ping(t.Context(), 10*time.Millisecond); err != nil || rtt <= 0 || rtt > time.Second {
		t.Errorf("round trip %v, %v", rtt, err)
	}
}

func TestStartSaysWhatIsMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Start(t.Context()); err == nil || !strings.Contains(err.Error(), "apt-get install") {
		t.Errorf("without a redis-server: %v", err)
	}
}
