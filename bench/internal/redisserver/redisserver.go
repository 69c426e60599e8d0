// Package redisserver runs a real redis-server of the benchmark's own, on a free
// port of the loopback and without persistence, and reads what it has done.
package redisserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/bench/internal/process"
)

// Server is a running redis-server. It must be stopped.
type Server struct {
	Addr    string // host:port
	Version string

	process *process.Process
	client  rueidis.Client
	dir     string
}

// Start starts the redis-server that the PATH leads to and waits until it answers.
func Start(ctx context.Context) (s *Server, err error) {
	bin, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("redisserver: %w; install it, on Debian with apt-get install redis-server", err)
	}
	s = &Server{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	if s.Addr, err = process.FreeAddr(); err != nil {
		return nil, err
	}
	if s.dir, err = os.MkdirTemp("", "stint-redis-"); err != nil {
		return nil, fmt.Errorf("redisserver: %w", err)
	}
	host, port, err := net.SplitHostPort(s.Addr)
	if err != nil {
		return nil, fmt.Errorf("redisserver: %w", err)
	}
	s.process, err = process.Start(nil, bin, "--bind", host, "--port", port, "--dir", s.dir,
		"--save", "", "--appendonly", "no", "--daemonize", "no", "--loglevel", "warning")
	if err != nil {
		return nil, err
	}
	if err = s.ready(ctx); err != nil {
		return nil, err
	}
	info, err := s.info(ctx)
	s.Version = info["redis_version"]
	return s, err
}

// ready connects, at most for 10 seconds.
func (s *Server) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		c, err := Dial(s.Addr)
		if err == nil {
			s.client = c
			return nil
		}
		select {
		case <-s.process.Ended():
			return fmt.Errorf("redisserver: redis-server has ended, %s", s.process)
		case <-ctx.Done():
			return fmt.Errorf("redisserver: %s does not answer: %w; %s", s.Addr, err, s.process)
		case <-again.C:
		}
	}
}

// Dial connects to a standalone server.
func Dial(addr string) (rueidis.Client, error) {
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true})
	if err != nil {
		return nil, fmt.Errorf("redisserver: %w", err)
	}
	return c, nil
}

// Stop ends the server and removes what it left. It may be called again.
func (s *Server) Stop() error {
	if s.client != nil {
		s.client.Close()
	}
	if s.process != nil {
		s.process.Stop()
	}
	if s.dir == "" {
		return nil
	}
	return os.RemoveAll(s.dir)
}

// Ping makes round trips for d, one at a time, and returns their mean.
func (s *Server) Ping(ctx context.Context, d time.Duration) (time.Duration, error) {
	start := time.Now()
	for n := time.Duration(1); ; n++ {
		if err := s.client.Do(ctx, s.client.B().Ping().Build()).Error(); err != nil {
			return 0, fmt.Errorf("redisserver: PING: %w", err)
		}
		if t := time.Since(start); t >= d {
			return t / n, nil
		}
	}
}

// Work is what a server has done since it started.
type Work struct {
	CPU      time.Duration // of the process, in user mode and in the kernel
	Scripts  int64         // calls of EVAL, EVALSHA, FCALL
	Commands int64         // all calls, scripts and those made inside scripts included
}

// Since returns what was done after before.
func (w Work) Since(before Work) Work {
	return Work{w.CPU - before.CPU, w.Scripts - before.Scripts, w.Commands - before.Commands}
}

// Work reads the server's own counters.
func (s *Server) Work(ctx context.Context) (w Work, err error) {
	info, err := s.info(ctx)
	if err != nil {
		return w, err
	}
	for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info[name], 64)
		if err != nil {
			return w, fmt.Errorf("redisserver: INFO's %s: %w", name, err)
		}
		w.CPU += time.Duration(seconds * float64(time.Second))
	}
	for name, value := range info {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		calls, _, _ := strings.Cut(strings.TrimPrefix(value, "calls="), ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return w, fmt.Errorf("redisserver: INFO's %s: %w", name, err)
		}
		w.Commands += n
		if strings.HasPrefix(command, "eval") || strings.HasPrefix(command, "fcall") {
			w.Scripts += n
		}
	}
	return w, nil
}

func (s *Server) info(ctx context.Context) (map[string]string, error) {
	text, err := s.client.Do(ctx, s.client.B().Info().Section("all").Build()).ToString()
	if err != nil {
		return nil, fmt.Errorf("redisserver: INFO: %w", err)
	}
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[k] = v
		}
	}
	return info, nil
}
