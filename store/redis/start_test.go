package redis

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/store"
)

// door counts the connections that come to an address and hands them on.
type door struct {
	net.Listener
	came atomic.Int64
}

// openDoor serves each connection in a goroutine until the test ends.
func openDoor(t testing.TB, serve func(net.Conn)) *door {
	t.Helper()
	return openDoorAt(t, "127.0.0.1:0", serve)
}

func openDoorAt(t testing.TB, address string, serve func(net.Conn)) *door {
	t.Helper()
	listener, err := net.Listen("tcp4", address)
	if err != nil {
		t.Fatal(err)
	}
	d := &door{Listener: listener}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			d.came.Add(1)
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			wg.Go(func() {
				serve(conn)
				_ = conn.Close()
				mu.Lock()
				delete(open, conn)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return d
}

// doorTo counts the connections to another address.
func doorTo(t testing.TB, target string) *door {
	return openDoor(t, func(client net.Conn) {
		server, err := net.Dial("tcp4", target)
		if err != nil {
			return
		}
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(server, client); _ = server.Close() })
		_, _ = io.Copy(client, server)
		_ = client.Close()
		wg.Wait()
	})
}

func (d *door) address() string { return d.Addr().String() }

// bad is one way in which what is at the address is not what was hoped for.
type bad struct {
	name string
	opts Options
	door *door
	want string // in what Ready says

	lines *journal
	store *Store
}

func badStarts(t *testing.T) []*bad {
	one := func(name, target, want string, change func(*Options)) *bad {
		d := doorTo(t, target)
		b := &bad{name: name, door: d, want: want, opts: Options{Addrs: []string{d.address()}}}
		if change != nil {
			change(&b.opts)
		}
		return b
	}
	garbage := strings.Repeat("\x00\xff$9999999999\r\n*-7\r\nnonsense", 40)
	own := func(name, want string, change func(*Options), serve func(net.Conn)) *bad {
		d := openDoor(t, serve)
		b := &bad{name: name, door: d, want: want, opts: Options{Addrs: []string{d.address()}}}
		if change != nil {
			change(&b.opts)
		}
		return b
	}
	silent := func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }
	closes := func(net.Conn) {}

	plain := redistest.Start(t)
	secret := redistest.Start(t, "--requirepass", "open-sesame")
	users := redistest.Start(t)
	users.Do("ACL", "SETUSER", "app", "on", ">right-word", "~*", "&*", "+@all")
	replica := redistest.Start(t, "--replicaof", "127.0.0.1 "+plain.Addr()[strings.LastIndex(plain.Addr(), ":")+1:])
	secure, _ := redistest.StartTLS(t)
	node := redistest.Start(t, "--cluster-enabled", "yes")
	old := redistest.StartProxy(t, plain.Addr())
	old.Rewrite("7.0.15", "5.0.14")
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)

	return []*bad{
		one("no password", secret.Addr(), "password is needed", nil),
		one("wrong password", secret.Addr(), "password is wrong", func(o *Options) { o.Password = "not-this-one" }),
		one("wrong user's password", users.Addr(), "password is wrong", func(o *Options) { o.Username, o.Password = "app", "not-this-one" }),
		one("replica", replica.Addr(), "replica", nil),
		one("too old", old.Addr(), "too old", nil),
		one("web server", strings.TrimPrefix(web.URL, "http://"), "protocol of Redis", nil),
		own("garbage", "protocol of Redis", nil, func(c net.Conn) {
			_, _ = io.WriteString(c, garbage)
			silent(c)
		}),
		own("silent", "no answer in time", nil, silent),
		own("closing", "closed", nil, closes),
		own("silent cluster", "no answer in time", func(o *Options) { o.Topology = Cluster }, silent),
		own("closing cluster", "closed", func(o *Options) { o.Topology = Cluster }, closes),
		own("silent sentinel", "no answer in time", func(o *Options) { o.Topology, o.Master = Sentinel, "mymaster" }, silent),
		own("closing sentinel", "closed", func(o *Options) { o.Topology, o.Master = Sentinel, "mymaster" }, closes),
		one("TLS to a plain port", plain.Addr(), "", func(o *Options) { o.TLS = &tls.Config{} }),
		one("plain to a TLS port", secure.Addr(), "TLS", nil),
		one("node of a cluster", node.Addr(), "redis+cluster://", nil),
		one("no cluster", plain.Addr(), "redis://", func(o *Options) { o.Topology = Cluster }),
		one("no sentinel", plain.Addr(), "redis://", func(o *Options) { o.Topology, o.Master = Sentinel, "mymaster" }),
		own("nobody", "nobody listens", func(o *Options) { o.Addrs = []string{unusedAddress(t)} }, closes),
	}
}

// unusedAddress is one that nobody listens at.
func unusedAddress(t testing.TB) string {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

// ours are the goroutines that run this package's code or its client's.
func ours() (stacks []string) {
	buf := make([]byte, 8<<20)
	for _, g := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(g, "stint/store/redis.(*Store)") || strings.Contains(g, "stint/store/redis.(*breaker)") ||
			strings.Contains(g, "stint/store/redis.(*lane)") || strings.Contains(g, "redis/rueidis.") {
			stacks = append(stacks, g)
		}
	}
	return stacks
}

// awaitLeft waits until no more goroutines of ours are there than at first.
func awaitLeft(t testing.TB, first int) {
	t.Helper()
	deadline := time.After(3 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		left := ours()
		if len(left) <= first {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Errorf("%d goroutines of ours are left, %d were there before:\n%s", len(left), first, strings.Join(left, "\n\n"))
			return
		}
	}
}

func TestStartAmiss(t *testing.T) {
	list := badStarts(t)
	first, began := len(ours()), time.Now()
	for _, b := range list {
		b.lines = new(journal)
		b.opts.Logger = b.lines.logger()
		var err error
		if b.store, err = New(b.opts); err != nil {
			t.Fatalf("%s: %v", b.name, err)
		}
	}
	// One line for all attempts, and pauses between them that become longer, show after several.
	await(t, "five attempts of each", func() bool {
		return !slices.ContainsFunc(list, func(b *bad) bool { return b.opts.Addrs[0] == b.door.address() && b.door.came.Load() < 5 })
	})
	watched := time.Since(began)
	for _, b := range list {
		err := b.store.Ready()
		if err == nil {
			t.Errorf("%s: Ready says all is well", b.name)
			continue
		}
		lines, text := b.lines.all(), err.Error()
		t.Logf("%-22s %2d connections, %d lines: %s", b.name, b.door.came.Load(), len(lines), text)
		if !strings.Contains(text, b.want) || strings.Contains(text, "\n") {
			t.Errorf("%s: Ready says %q, want one line with %q", b.name, text, b.want)
		}
		// A busy machine may let an attempt to connect run out of time: one line more.
		late := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !strings.Contains(line, "no answer in time") })
		if len(lines) != 1 && (len(lines) != 2 || len(late) != 1) {
			t.Errorf("%s: %d lines were logged, want 1:\n%s", b.name, len(lines), b.lines)
		}
		for _, word := range []string{"not-this-one", "open-sesame"} {
			if strings.Contains(text+strings.Join(lines, ""), word) {
				t.Errorf("%s: a password is shown: %s\n%s", b.name, text, strings.Join(lines, "\n"))
			}
		}
		if n := b.door.came.Load(); n > int64(15*watched/time.Second) {
			t.Errorf("%s: %d connections in %v", b.name, n, watched)
		}
		one := []store.Charge{charge(bind(t, b.store, "l", still(1)), "k", 1)}
		quickest := patient
		for range 5 { // who is given no processor waits for one
			began := time.Now()
			if _, err := b.store.Take(t.Context(), one); err == nil {
				t.Errorf("%s: Take answered", b.name)
			}
			quickest = min(quickest, time.Since(began))
		}
		if quickest > 5*time.Millisecond {
			t.Errorf("%s: Take answered after %v, want an error at once", b.name, quickest)
		}
	}
	closeAll(t, list)
	awaitLeft(t, first)
}

func closeAll(t *testing.T, list []*bad) {
	var wg sync.WaitGroup
	machine, took := machineLate(t), make([]time.Duration, len(list))
	for i, b := range list {
		wg.Go(func() {
			began := time.Now()
			if err := b.store.Close(); err != nil {
				t.Errorf("%s: Close: %v", b.name, err)
			}
			took[i] = time.Since(began)
			if err := b.store.Close(); err != nil {
				t.Errorf("%s: Close again: %v", b.name, err)
			}
		})
	}
	wg.Wait()
	late := machine()
	for i, b := range list {
		if t.Logf("%s: Close took %v", b.name, took[i].Round(time.Millisecond)); took[i] > time.Second+2*late {
			t.Errorf("%s: Close took %v, want less than 1 s; the machine adds %v", b.name, took[i], late)
		}
	}
}

// TestCloseSilent closes stores of many addresses that say nothing, while they
// connect to the first of them.
func TestCloseSilent(t *testing.T) {
	var list []*bad
	first := len(ours())
	for _, topology := range []Topology{Standalone, Sentinel, Cluster} {
		o := Options{Topology: topology}
		if topology == Sentinel {
			o.Master = "mymaster"
		}
		var doors []*door
		for range 6 {
			d := openDoor(t, func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
			doors, o.Addrs = append(doors, d), append(o.Addrs, d.address())
		}
		b := &bad{name: o.String(), lines: new(journal)}
		o.Logger = b.lines.logger()
		var err error
		if b.store, err = New(o); err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
		await(t, "an attempt", func() bool {
			return slices.ContainsFunc(doors, func(d *door) bool { return d.came.Load() > 0 })
		})
	}
	closeAll(t, list)
	awaitLeft(t, first)
}

// TestStartLate starts the server after the store.
func TestStartLate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Kill()
	s, err := New(quiet(server.Addr()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	await(t, "an attempt to fail", func() bool { return s.Ready() != errConnecting })
	if s.Ready() == nil {
		t.Error("Ready before there is a server")
	}
	server.Restart()
	began, machine := time.Now(), machineLate(t)
	awaitReady(t, s)
	t.Logf("ready %v after the server", time.Since(began).Round(time.Millisecond))
	if took, late := time.Since(began), machine(); took > 2500*time.Millisecond+2*late {
		t.Errorf("ready %v after the server, want within the longest pause of 2 s; the machine adds up to twice %v", took, late)
	}
	c := bind(t, s, "l", still(10))
	if ok, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 1)}); !ok || err != nil {
		t.Errorf("Take: %v, %v", ok, err)
	}
}

// TestForbidden has users who may do everything but one thing.
func TestForbidden(t *testing.T) {
	for _, f := range []struct {
		rule   string
		harm   bool   // requests cannot be decided
		reason string // in Ready, where there is harm
	}{
		{"-evalsha", true, "permission"},
		{"-eval", true, "permission"},
		{"-mget", true, "permission"},
		{"-set", true, "permission"},
		{"-hello", false, ""}, // as with AUTH, nobody can be denied it
		{"resetkeys ~other:*", true, "permission"},
		{"-publish", false, ""},
		{"-subscribe", false, ""},
		{"-zadd", false, ""},
		{"-client", false, ""},
	} {
		t.Run(f.rule, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			server.Do(append([]string{"ACL", "SETUSER", "app", "reset", "on", ">right-word", "~*", "&*", "+@all"}, strings.Fields(f.rule)...)...)
			d := doorTo(t, server.Addr())
			lines := new(journal)
			s, err := New(Options{Addrs: []string{d.address()}, Timeout: patient, Username: "app", Password: "right-word", Logger: lines.logger()})
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			c := bind(t, s, "l", still(1<<40))
			l := startLoad(t, 4, 5*time.Millisecond, func(int) (store.Charge, bool, error) {
				one := []store.Charge{charge(c, "k", 1)}
				ok, err := s.Take(t.Context(), one)
				return one[0], ok, err
			})
			l.each(t, 100)
			unready, why := 0, ""
			for range 20 {
				if err := s.Ready(); err != nil {
					unready, why = unready+1, err.Error()
				}
				l.each(t, 2)
			}
			l.end()
			w := lines.all()
			t.Logf("admitted %d, errors %d, connections %d, calls %d, lines %d, not ready %d of 20: %s", l.admitted.Load(), l.errs.Load(), d.came.Load(), s.Stats().Calls, len(w), unready, why)
			if len(w) > 4 {
				t.Errorf("%d lines were logged, such as\n%s", len(w), lines)
			}
			if d.came.Load() > 12 {
				t.Errorf("%d connections in 0.8 s", d.came.Load())
			}
			switch {
			case f.harm && (l.admitted.Load() > 0 || unready < 20 || !strings.Contains(why, f.reason)):
				t.Errorf("admitted %d, not ready %d of 20 times (%s), want never ready for %q", l.admitted.Load(), unready, why, f.reason)
			case !f.harm && (l.admitted.Load() == 0 || unready > 0):
				t.Errorf("admitted %d, not ready %d of 20 times: %s", l.admitted.Load(), unready, why)
			}
		})
	}
}
