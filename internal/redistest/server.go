package redistest

import (
	"crypto/tls"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Server is one redis-server on a loopback port. [Start], [StartTLS],
// [StartCluster] and [StartSentinel] make it; the zero value is of no use.
// Its methods are safe for concurrent use, as far as they may fail the test
// where they are called.
type Server struct {
	t        testing.TB
	port     int
	dir      string   // working directory, the same for each run
	args     []string // the whole command line
	first    []string // the command it is given after each start, nil = none
	password string   // of the default user, "" = none
	log      transcript
	files    certificates // empty without TLS
	tls      *tls.Config  // nil without TLS

	control control

	mu struct {
		sync.Mutex
		run    *process // nil before the first
		frozen bool
	}
}

// Start starts one redis-server on a free loopback port, without persistence, and
// stops it when the test ends. It returns when the server answers.
//
// args are further arguments of redis-server, such as "--maxmemory", "10mb". With
// "--requirepass" the methods of the Server use that password.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := newServer(t, t.TempDir(), args...)
	s.launch()
	s.awaitAnswer()
	return s
}

// newServer returns a server that is not running yet. It stops when the test ends.
func newServer(t testing.TB, dir string, args ...string) *Server {
	t.Helper()
	s := prepare(t, dir)
	port := strconv.Itoa(s.port)
	s.args = append([]string{
		"--port", port,
		"--bind", "127.0.0.1",
		"--dir", s.dir,
		"--save", "",
		"--appendonly", "no",
		// A replica is in step at once instead of after five seconds.
		"--repl-diskless-sync-delay", "0",
		// Tests may use DEBUG SLEEP and the like.
		"--enable-debug-command", "local",
	}, args...)
	s.password = passwordIn(args)
	return s
}

// prepare returns a server with a port and a folder and no command line.
func prepare(t testing.TB, dir string) *Server {
	t.Helper()
	s := &Server{t: t, port: ReservePort(t), dir: dir}
	s.control.address = s.Addr()
	t.Cleanup(s.finish)
	return s
}

// passwordIn returns the password that redis-server arguments set.
func passwordIn(args []string) string {
	for i := len(args) - 2; i >= 0; i-- {
		if strings.EqualFold(args[i], "--requirepass") {
			return args[i+1]
		}
	}
	return ""
}

// replicating returns args for servers that may be each other's replicas.
func replicating(args []string) []string {
	more := []string{"--repl-ping-replica-period", "1"}
	if password := passwordIn(args); password != "" {
		more = append(more, "--masterauth", password)
	}
	return append(more, args...)
}

// Addr returns the server's address as 127.0.0.1:port, running or not.
func (s *Server) Addr() string { return loopback(s.port) }

// URL returns redis://127.0.0.1:port, or rediss:// for a server of [StartTLS]. It
// has no password and names no files.
func (s *Server) URL() string {
	if s.tls != nil {
		return "rediss://" + s.Addr()
	}
	return "redis://" + s.Addr()
}

// Freeze stops the server where it is (SIGSTOP), as if its host hung: connections
// stay open, new ones are accepted by the kernel, nothing is answered. It returns
// when the server has stopped.
func (s *Server) Freeze() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signal(stop)
	until(s.t, "redis-server to stop at "+s.Addr(), func() (bool, string) {
		stopped, err := halted(s.mu.run.pid())
		if err != nil {
			s.t.Fatalf("redistest: freezing %s: %v", s.Addr(), err)
		}
		return stopped, "some of its threads run"
	})
	s.mu.frozen = true
}

// Thaw lets a frozen server go on (SIGCONT). It changes nothing for others.
func (s *Server) Thaw() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.signal(goOn)
	s.mu.frozen = false
}

// signal sends a signal to the running server. The caller holds s.mu.
func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	if s.mu.run == nil || s.mu.run.ended() {
		s.t.Fatalf("redistest: %v for redis-server at %s, which is not running: call Restart first", sig, s.Addr())
	}
	if err := s.mu.run.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("redistest: %v for redis-server at %s: %v", sig, s.Addr(), err)
	}
}

// Kill ends the server (SIGKILL), frozen or not, and returns when it has ended.
// Killing it again does nothing.
func (s *Server) Kill() {
	s.mu.Lock()
	if s.mu.run != nil {
		s.mu.run.stop()
	}
	s.mu.frozen = false
	s.mu.Unlock()
	s.control.close()
}

// Restart starts the server again on the same port with the same arguments and
// folder, and returns when it answers. Its data are gone, unless its arguments
// have it save them ("--appendonly", "yes"); a node of a cluster and a sentinel
// know their part still. A server that runs is killed first.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	s.launch()
	s.awaitAnswer()
}

// launch runs the server and does not wait for it.
func (s *Server) launch() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.run = launch(s.t, s.dir, &s.log, s.args)
}

// running returns the server's process, or nil when it does not run.
func (s *Server) running() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.run == nil || s.mu.run.ended() {
		return nil
	}
	return s.mu.run
}

// answers reports whether the server runs and is not frozen.
func (s *Server) answers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.run != nil && !s.mu.run.ended() && !s.mu.frozen
}

// awaitAnswer waits until the server answers a PING, and gives it its first
// command.
func (s *Server) awaitAnswer() {
	s.t.Helper()
	until(s.t, "redis-server to answer at "+s.Addr(), func() (bool, string) {
		if s.running() == nil {
			s.t.Fatalf("redistest: redis-server for %s ended as it started. It wrote:\n%s", s.Addr(), s.log.String())
		}
		if _, err := s.Try("PING"); err != nil {
			return false, err.Error()
		}
		return true, ""
	})
	if s.first != nil {
		s.Do(s.first...)
	}
}

// finish stops the server at the end of the test.
func (s *Server) finish() {
	s.Kill()
	if s.t.Failed() {
		s.t.Logf("redis-server at %s wrote:\n%s", s.Addr(), s.log.String())
	}
}
