package server_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/server"
)

// stillLearning fails the test when a start in dir lends.
func stillLearning(t *testing.T, dir, what string) {
	t.Helper()
	s := start(t, leasedConfig, stateIn(dir))
	if l := until(t, s.hold("late"), func(*leasepb.Share) bool { return true }); !l.GetRecovering() || l.GetGranted().GetRate() != 0 {
		t.Errorf("%s: the next start lends %v, while leases of the first run", what, l.GetGranted())
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
}

// TestStopWhileLearning: a stop before the leases of the former coordinator have ended is no
// clean one, though no instance has reported; nor is a start that fails.
func TestStopWhileLearning(t *testing.T) {
	dir := t.TempDir()
	first := start(t, leasedConfig, stateIn(dir))
	until(t, first.hold("one"), func(l *leasepb.Share) bool { return l.GetGranted().GetRate() > 0 })
	if err := first.stop(); err != nil { // with something lent, as after a crash
		t.Fatal(err)
	}
	for range 2 {
		if err := start(t, leasedConfig, stateIn(dir)).stop(); err != nil {
			t.Fatal(err)
		}
		stillLearning(t, dir, "stopped before an instance reported")
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	s, err := server.New(server.Options{HTTPAddr: taken.Addr().String(), GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", StateDir: dir, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Fatal("it listens where somebody listens")
	}
	stillLearning(t, dir, "an address was taken")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if s, err = server.New(server.Options{StateDir: dir, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		t.Fatal(err)
	}
	if err := s.Run(ended); err != nil {
		t.Fatal(err)
	}
	stillLearning(t, dir, "ended before it began")
}

// TestSaysThatItLearns: a start that lends nothing new says so in its log, is not ready, and
// its refusals have a reason of their own.
func TestSaysThatItLearns(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	t.Parallel() // it waits for most of its time
	begin := time.Now()
	s := start(t, "limits:\n  - {name: l, rate: 5/s, sharing: leased}\n")
	if !strings.Contains(s.log.String(), "leases of a former coordinator may be in use") || !strings.Contains(s.log.String(), "there is no state directory") {
		t.Errorf("the log: %s", s.log.String())
	}
	if a := s.do("GET", s.admin+"/readyz", ""); a.status != 503 || !strings.Contains(a.body, "recovering: it is not known yet which leases of a former coordinator are in use, for ") {
		t.Errorf("/readyz: %d %s", a.status, a.body)
	}
	// The first answer of the coordinator may take a moment.
	for {
		a := s.do("POST", s.http+"/v1/take", `{"attributes":{}}`)
		if a.status == http.StatusTooManyRequests && strings.Contains(a.body, `"reason":"recovering"`) && strings.Contains(a.body, "has just begun") {
			break
		}
		if a.status == http.StatusOK || time.Since(begin) > 4*time.Second {
			t.Fatalf("%v after the start: %d %s", time.Since(begin), a.status, a.body)
		}
	}
	if a := s.do("POST", s.http+"/v1/explain", `{"attributes":{}}`); !strings.Contains(a.body, `"reason":"recovering"`) {
		t.Errorf("explain: %s", a.body)
	}
	await := func(what string, f func() bool) {
		t.Helper()
		end, tick := time.After(30*time.Second), time.NewTicker(50*time.Millisecond)
		defer tick.Stop()
		for !f() {
			select {
			case <-end:
				t.Fatalf("not seen: %s", what)
			case <-tick.C:
			}
		}
	}
	await("ready", func() bool { return s.do("GET", s.admin+"/readyz", "").status == 200 })
	await("admitted", func() bool { return s.do("POST", s.http+"/v1/take", `{"attributes":{}}`).status == 200 })
	// Without limits that are lent nothing has to be learnt.
	if a := start(t, "limits: [{name: l, rate: 5/s}]\n"); a.do("GET", a.admin+"/readyz", "").status != 200 {
		t.Error("a server without leased limits learns")
	}
}

// TestStateDirectoryUsedTwice: the second server does not start, or starts without if nobody
// has chosen the directory.
func TestStateDirectoryUsedTwice(t *testing.T) {
	dir := t.TempDir()
	first := start(t, leasedConfig, stateIn(dir))
	if _, err := server.New(server.Options{StateDir: dir}); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("the second one: %v", err)
	}
	second := start(t, leasedConfig, func(o *server.Options) {
		o.StateDir, o.StateDirIfFree = dir, true
	})
	if !strings.Contains(second.log.String(), "nothing is kept for the next start") {
		t.Errorf("the log: %s", second.log.String())
	}
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(dir, "leases.json")); err != nil || strings.Count(string(text), "epoch") != 1 {
		t.Errorf("%s %v", text, err)
	}
	third := start(t, leasedConfig, stateIn(dir))
	until(t, third.hold("one"), func(l *leasepb.Share) bool { return l.GetGranted().GetRate() > 0 })
}

// TestEpochGoesUp: an instance that has heard of a later coordinator is believed, the log
// says so, and the epoch is kept.
func TestEpochGoesUp(t *testing.T) {
	dir := t.TempDir()
	s := start(t, leasedConfig, stateIn(dir))
	stream, err := leasepb.NewLeasesClient(s.conn).Hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const high = 1 << 61
	report := wants("one", "messages", "acme")
	report.Epoch = high
	if err := stream.Send(report); err != nil {
		t.Fatal(err)
	}
	g, err := stream.Recv()
	if err != nil || g.GetEpoch() <= high {
		t.Fatalf("it answers with epoch %d, %v", g.GetEpoch(), err)
	}
	if a := s.do("GET", s.admin+"/readyz", ""); a.status != 503 || strings.Count(s.log.String(), "heard a coordinator that this one does not know of") != 1 {
		t.Errorf("/readyz: %d %s; the log: %s", a.status, a.body, s.log.String())
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	next := start(t, leasedConfig, stateIn(dir))
	stream = next.hold("one")
	if h, err := stream.Recv(); err != nil || h.GetEpoch() <= g.GetEpoch() {
		t.Errorf("the next start has epoch %d after %d, %v", h.GetEpoch(), g.GetEpoch(), err)
	}
}
