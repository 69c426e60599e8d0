// Package statsd sends counters to a StatsD server. It counts nothing itself, and never makes its caller wait.
package statsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultInterval is that of Envoy's rate limit service.
	DefaultInterval = 10 * time.Second

	writeTime = time.Second // for dialling, and for one flush
	datagram  = 1432        // bytes that fit a network of 1500 with its headers
)

// Options say where counters go. Check them with [Options.Check].
type Options struct {
	URL      string        // tcp://host:port, udp://host:port, or dogstatsd://host:port: UDP with tags as Datadog writes them
	Interval time.Duration // from 100 ms; 0 = DefaultInterval
	Tags     []string      // name=value
	Logger   *slog.Logger
	// Read gives the counters as they are now; the names never go away, and the values never shrink.
	Read func(each func(name string, value uint64))
}

// Check returns what is wrong with o.
func (o *Options) Check() error {
	kind, address, _ := strings.Cut(o.URL, "://")
	if kind != "tcp" && kind != "udp" && kind != "dogstatsd" {
		return errors.New("statsd: the URL is not one of StatsD, want tcp://HOST:PORT, udp://HOST:PORT or dogstatsd://HOST:PORT")
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("statsd: the address %q: %w, write it as localhost:8125", address, err)
	}
	if o.Interval != 0 && o.Interval < 100*time.Millisecond {
		return fmt.Errorf("statsd: the interval is %v, want at least 100ms, such as 10s", o.Interval)
	}
	for _, t := range o.Tags {
		if name, value, ok := strings.Cut(t, "="); !ok || name == "" || value == "" || strings.ContainsAny(t, ":|#,\n ") {
			return fmt.Errorf("statsd: the tag %q is not NAME=VALUE of letters, digits, dots, hyphens and underscores", t)
		}
	}
	return nil
}

// Sender sends. Make it with [New], and run it once.
type Sender struct {
	o       Options
	network string
	address string
	before  string // what stands between a name and its value
	after   string // what ends a line
	conn    net.Conn
	sent    map[string]uint64
	failing bool
}

// New returns a sender of options that were checked.
func New(o Options) *Sender {
	if o.Interval == 0 {
		o.Interval = DefaultInterval
	}
	s := &Sender{o: o, sent: map[string]uint64{}, after: "|c\n"}
	s.network, s.address, _ = strings.Cut(o.URL, "://")
	tags := slices.Sorted(slices.Values(o.Tags))
	if s.network == "dogstatsd" {
		s.network = "udp"
		if len(tags) > 0 {
			s.after = "|c|#" + strings.ReplaceAll(strings.Join(tags, ","), "=", ":") + "\n"
		}
	} else {
		for _, t := range tags {
			s.before += ".__" + t
		}
	}
	s.before += ":"
	return s
}

// Run sends, each interval, by how much each counter has grown, until ctx ends, and then once more. What cannot be sent is
// sent later.
func (s *Sender) Run(ctx context.Context) {
	tick := time.NewTicker(s.o.Interval)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-ctx.Done():
			done = true
		case <-tick.C:
		}
		err := s.flush()
		switch {
		case err != nil && !s.failing:
			s.o.Logger.Warn("statistics cannot be sent, and are sent later", "to", s.address, "error", err)
		case err == nil && s.failing:
			s.o.Logger.Info("statistics are sent again", "to", s.address)
		}
		s.failing = err != nil
	}
	if s.conn != nil {
		_ = s.conn.Close()
	}
}

// flush sends what has grown.
func (s *Sender) flush() error {
	now := map[string]uint64{}
	var lines, names []string
	s.o.Read(func(name string, value uint64) {
		now[name] = value
		was := s.sent[name]
		if value < was {
			was = 0 // counted anew
		}
		if grown := value - was; grown > 0 {
			lines, names = append(lines, name+s.before+strconv.FormatUint(grown, 10)+s.after), append(names, name)
		}
	})
	if len(lines) == 0 {
		return nil
	}
	if s.conn == nil {
		conn, err := net.DialTimeout(s.network, s.address, writeTime)
		if err != nil {
			return err
		}
		s.conn = conn
	}
	if err := s.conn.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return err
	}
	var packet bytes.Buffer
	most := datagram
	if s.network == "tcp" {
		most = 1 << 16
	}
	first := 0 // of the packet
	for i, line := range lines {
		packet.WriteString(line)
		if i == len(lines)-1 || packet.Len()+len(lines[i+1]) > most {
			if _, err := s.conn.Write(packet.Bytes()); err != nil {
				_ = s.conn.Close()
				s.conn = nil
				return err
			}
			for ; first <= i; first++ {
				s.sent[names[first]] = now[names[first]] // what comes after may fail
			}
			packet.Reset()
		}
	}
	s.sent = now
	return nil
}
