package resp

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

const limits = `limits:
  - {name: per-ip, key: [ip], rate: 5/hour}
  - {name: flight, key: [job], algorithm: concurrency, max_in_flight: 1, timeout: 1h}
`

// newServer is a server with limits and a clock that stands.
func newServer(t testing.TB, adjust ...func(*Options)) *Server {
	t.Helper()
	now := func() limit.Time { return limit.At(time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)) }
	set, err := rules.Parse("limits.yaml", []byte(limits))
	if err != nil {
		t.Fatal(err)
	}
	st := memory.New(memory.Options{Now: now})
	e, err := engine.New(st, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Engine: e, Version: "test", Fault: func(command string, p any) { t.Errorf("%s: %v", command, p) }}
	if o.Buckets, err = override.NewBuckets(st); err != nil {
		t.Fatal(err)
	}
	o.Reservations = reserve.New(e, records.New(now, 0), slog.New(slog.DiscardHandler), func() time.Time { return time.Unix(0, int64(now())) })
	for _, f := range adjust {
		f(&o)
	}
	return New(o)
}

// script is what a client sends, and what it gets.
type script struct {
	in  io.Reader
	out bytes.Buffer
	net.Conn
}

func (s *script) Read(p []byte) (int, error)       { return s.in.Read(p) }
func (s *script) Write(p []byte) (int, error)      { return s.out.Write(p) }
func (s *script) SetDeadline(time.Time) error      { return nil }
func (s *script) SetReadDeadline(time.Time) error  { return nil }
func (s *script) SetWriteDeadline(time.Time) error { return nil }

// play sends input in pieces of at most so many bytes and returns the answers.
func play(s *Server, input string, piece int) string {
	p := &script{in: &pieces{strings.NewReader(input), piece}}
	c := s.conn(context.Background(), p)
	c.run()
	return p.out.String()
}

type pieces struct {
	r    io.Reader
	most int
}

func (p *pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), p.most)]) }

// array is a command as clients send it.
func array(words ...string) string {
	out := fmt.Sprintf("*%d\r\n", len(words))
	for _, w := range words {
		out += fmt.Sprintf("$%d\r\n%s\r\n", len(w), w)
	}
	return out
}

// ended is how many commands have ended that way.
func (f *figures) ended(how outcome) (n uint64) {
	for i := range f.commands {
		n += f.commands[i][how].Load()
	}
	return n
}

// TestAnswers walks through every command, whole and byte by byte.
func TestAnswers(t *testing.T) {
	flat := func(pairs ...any) string {
		out := ""
		for _, p := range pairs {
			switch v := p.(type) {
			case string:
				out += fmt.Sprintf("$%d\r\n%s\r\n", len(v), v)
			case int:
				out += fmt.Sprintf(":%d\r\n", v)
			case nil:
				out += "$-1\r\n"
			}
		}
		return out
	}
	decision := func(allowed int, of any, quota, remaining, retry, reset int, reason any) string {
		rest := flat("allowed", allowed, "limit", of, "quota", quota, "remaining", remaining, "retry_after_ms", retry, "reset_after_ms", reset, "delay_ms", 0, "reason", reason)
		if allowed == 1 {
			return "*16\r\n" + rest
		}
		return "*18\r\n" + rest + flat("status", 429)
	}
	steps := []struct{ in, out string }{
		{"PING\r\n", "+PONG\r\n"},
		{"\r\n  \r\nping  hello\n", "$5\r\nhello\r\n"},
		{array("CL.THROTTLE", "user123", "15", "30", "60"), "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n"}, // as redis-cell's page shows
		{array("cl.throttle", "user123", "15", "30", "60", "15"), "*5\r\n:0\r\n:16\r\n:0\r\n:-1\r\n:32\r\n"},
		{array("CL.THROTTLE", "user123", "15", "30", "60"), "*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:32\r\n"},
		{array("CL.THROTTLE", "user123", "15", "30", "60", "0"), "*5\r\n:0\r\n:16\r\n:0\r\n:-1\r\n:32\r\n"},
		{array("CL.THROTTLE", "user123", "15", "30", "60", "17"), "*5\r\n:1\r\n:16\r\n:0\r\n:-1\r\n:32\r\n"},
		{"CL.THROTTLE user9 0 1 1\r\n", "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:1\r\n"},
		{array("GCRA", "g", "4", "5", "60.5", "tokens", "3"), "*5\r\n:0\r\n:5\r\n:2\r\n:-1\r\n:37\r\n"},
		{array("GCRA", "g", "4", "5", "60.5"), "*5\r\n:0\r\n:5\r\n:1\r\n:-1\r\n:49\r\n"},
		{array("RL.PEEK", "5", "ip", "192.0.2.7"), decision(1, "per-ip", 5, 5, -1, 0, nil)},
		{array("RL.TAKE", "5", "ip", "192.0.2.7"), decision(1, "per-ip", 5, 0, -1, 3600000, nil)},
		{array("RL.TAKE", "1", "ip", "192.0.2.7"), decision(0, "per-ip", 5, 0, 720000, 3600000, "rate_exceeded")},
		{array("RL.TAKE", "1", "user", "u"), "*16\r\n" + flat("allowed", 1, "limit", nil) + "$5\r\nquota\r\n:9223372036854775807\r\n$9\r\nremaining\r\n:9223372036854775807\r\n" + flat("retry_after_ms", -1, "reset_after_ms", 0, "delay_ms", 0, "reason", nil)},
		{array("CL.THROTTLE", "user123", "15", "30", "1"), "*5\r\n:1\r\n:16\r\n:0\r\n:32\r\n:32\r\n"}, // other terms, the same bucket
		{array("DEL", "user123", "nobody", "user9"), ":2\r\n"},
		{array("CL.THROTTLE", "user123", "15", "30", "1"), "*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:1\r\n"},
		{array("MULTI"), "+OK\r\n"},
		{array("CL.THROTTLE", "m", "1", "1", "3600"), "+QUEUED\r\n"},
		{array("MULTI"), "-ERR MULTI calls can not be nested\r\n"},
		{array("CL.THROTTLE", "m", "1", "0", "3600"), "+QUEUED\r\n"},
		{array("RL.PEEK", "5", "ip", "192.0.2.8"), "+QUEUED\r\n"},
		{array("EXEC"), "*3\r\n*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:3600\r\n-ERR count is \"0\", want a whole number from 1 to 999999999999999999\r\n" + decision(1, "per-ip", 5, 5, -1, 0, nil)},
		{array("EXEC"), "-ERR EXEC without MULTI\r\n"},
		{array("DISCARD"), "-ERR DISCARD without MULTI\r\n"},
		{array("MULTI") + array("CL.THROTTLE", "m", "1", "1", "3600") + array("DISCARD"), "+OK\r\n+QUEUED\r\n+OK\r\n"},
		{array("MULTI") + array("CL.THROTTLE", "m") + array("DEL", "m") + array("EXEC"), "+OK\r\n-ERR wrong number of arguments for 'CL.THROTTLE' command, want CL.THROTTLE key max_burst count period [quantity]\r\n" +
			"+QUEUED\r\n-EXECABORT Transaction discarded because of previous errors.\r\n"},
		{array("MULTI") + array("EXEC"), "+OK\r\n*0\r\n"},
		{array("CL.THROTTLE", "m", "1", "1", "3600"), "*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:7200\r\n"}, // only the first was taken
		{array("MULTI") + array("DEL", "m") + array("RESET") + array("EXEC"), "+OK\r\n+QUEUED\r\n+RESET\r\n-ERR EXEC without MULTI\r\n"},
		{array("SELECT", "0"), "+OK\r\n"},
		{array("CLIENT", "SETNAME", "me"), "+OK\r\n"},
		{array("CLIENT", "GETNAME"), "$2\r\nme\r\n"},
		{array("CLIENT", "SETINFO", "LIB-NAME", "x"), "+OK\r\n"},
		{array("CONFIG", "GET", "save"), "*0\r\n"},
		{array("COMMAND", "DOCS"), "*0\r\n"},
		{array("ECHO", ""), "$0\r\n\r\n"},
		{array("QUIT"), "+OK\r\n"},
		{array("PING"), ""}, // nothing after QUIT
	}
	for _, piece := range []int{1 << 20, 1, 7} {
		in, want := "", ""
		for _, s := range steps {
			in, want = in+s.in, want+s.out
		}
		if got := play(newServer(t), in, piece); got != want {
			t.Errorf("in pieces of %d:\n got %q\nwant %q", piece, got, want)
		}
	}
}

// RESP3 has maps, null, and the same numbers.
func TestThree(t *testing.T) {
	got := play(newServer(t), array("HELLO", "3", "SETNAME", "app")+array("RL.TAKE", "1", "ip", "::1")+array("CL.THROTTLE", "a", "1", "1", "1"), 1<<20)
	for _, want := range []string{"%7\r\n$6\r\nserver\r\n$5\r\nstint\r\n", "$5\r\nproto\r\n:3\r\n", "%8\r\n$7\r\nallowed\r\n:1\r\n", "$6\r\nreason\r\n_\r\n", "*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:1\r\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not in %q", want, got)
		}
	}
	if got := play(newServer(t), array("HELLO", "4")+array("HELLO", "2", "AUTH"), 99); !strings.HasPrefix(got, "-NOPROTO ") || strings.Count(got, "-ERR syntax error") != 1 {
		t.Errorf("%q", got)
	}
}

// A block has bounds, and one that is too long takes nothing. A client that goes before EXEC has taken nothing either.
func TestBlockBounds(t *testing.T) {
	s := newServer(t)
	one := array("CL.THROTTLE", "k", "999", "1", "3600")
	look := array("CL.THROTTLE", "k", "999", "1", "3600", "0")
	for _, c := range []struct {
		in        string
		remaining int
	}{
		{array("MULTI") + strings.Repeat(one, MaxBlockCommands+1) + array("EXEC"), 1000},
		{array("MULTI") + one + array("RL.TAKE", "1", "ip", strings.Repeat("x", 40_000)) + array("RL.TAKE", "1", "ip", strings.Repeat("x", 40_000)) + array("EXEC"), 1000},
		{array("MULTI") + one + array("NO.SUCH") + array("EXEC"), 1000},
		{array("MULTI") + one, 1000},
		{array("MULTI") + strings.Repeat(one, 400) + array("EXEC"), 600},
		{array("MULTI") + strings.Repeat(one, MaxBlockCommands) + array("EXEC"), 0},
	} {
		before := s.figures.ended(failed)
		got := play(s, c.in, 1<<20)
		if errors := strings.Count("\n"+got, "\n-"); s.figures.ended(failed)-before != uint64(errors) {
			t.Errorf("%d errors are counted of %d in %.200q", s.figures.ended(failed)-before, errors, got)
		}
		if aborted := strings.Contains(got, "\r\n-EXECABORT "); strings.Contains(c.in, array("EXEC")) && aborted != (c.remaining == 1000) {
			t.Errorf("%.200q", got)
		}
		if got, want := play(s, look, 99), fmt.Sprintf("*5\r\n:0\r\n:1000\r\n:%d\r\n", c.remaining); !strings.HasPrefix(got, want) {
			t.Errorf("%.100q: %q, want %q", c.in, got, want)
		}
	}
}

// A reservation is taken, renewed and committed, and each answer says so.
func TestReserve(t *testing.T) {
	s := newServer(t)
	got := play(s, array("RL.RESERVE", "3", "60000", "ip", "a", "CHARGE"), 999)
	at := strings.Index(got, "id\r\n$26\r\n")
	if at < 0 || !strings.Contains(got, "state\r\n$4\r\nopen") {
		t.Fatalf("%q", got)
	}
	id := got[at+9 : at+9+26]
	for _, c := range []struct{ in, want string }{
		{array("RL.RENEW", id, "1"), "used\r\n:1\r\n"},
		{array("RL.COMMIT", id, "2"), "actual\r\n:2\r\n"},
		{array("RL.COMMIT", id, "2"), "committed"},
		{array("RL.COMMIT", id, "3"), "-SETTLED "},
		{array("RL.RELEASE", id), "-SETTLED "},
		{array("RL.RELEASE", "nobody's"), "-NOTFOUND "},
		{array("RL.PEEK", "3", "ip", "a"), "remaining\r\n:3\r\n"},
		{array("RL.RESERVE", "9", "1", "ip", "a"), "-ERR "}, // the time is too short
		{array("RL.RESERVE", "9", "2000", "ip"), "-ERR wrong number"},
		{array("RL.RESERVE", "9", "2000", "ip", "b"), "clamped\r\n:1\r\n"},
		{array("RL.RESERVE", "1", "2000", "ip", "b"), "allowed\r\n:0\r\n"},
	} {
		if got := play(s, c.in, 999); !strings.Contains(got, c.want) {
			t.Errorf("%q: %q, want %q", c.in, got, c.want)
		}
	}
}

// A permit in flight comes with the answer, and goes with RL.FINISH.
func TestFinish(t *testing.T) {
	s := newServer(t)
	got := play(s, array("RL.TAKE", "1", "job", "j"), 999)
	_, permit, ok := strings.Cut(got, "permit\r\n:")
	if !ok {
		t.Fatalf("%q", got)
	}
	if got := play(s, array("RL.TAKE", "1", "job", "j"), 999); !strings.Contains(got, "allowed\r\n:0") || !strings.Contains(got, "concurrency") {
		t.Errorf("%q", got)
	}
	if got := play(s, array("RL.FINISH", strings.TrimSpace(permit), "job", "j")+array("RL.TAKE", "1", "job", "j"), 999); !strings.HasPrefix(got, "+OK\r\n") || !strings.Contains(got, "allowed\r\n:1") {
		t.Errorf("%q", got)
	}
}

// badInput is what a stranger may send: the error begins with want, and nothing is taken.
var badInput = []struct{ in, want string }{
	{"*1\r\n*1\r\n$4\r\nPING\r\n", "-ERR Protocol error: expected '$'"},
	{strings.Repeat("*1\r\n", 50_000), "-ERR Protocol error: expected '$'"},
	{"*1\r\n$1073741824\r\n", "-ERR Protocol error: invalid bulk length"},
	{"*1\r\n$99999999999999999999\r\n", "-ERR Protocol error: invalid bulk length"},
	{"*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length"},
	{"*1\r\n$x\r\n", "-ERR Protocol error: invalid bulk length"},
	{"*10000000\r\n", "-ERR Protocol error: invalid multibulk length"},
	{"*99999999999999999999\r\n", "-ERR Protocol error: invalid multibulk length"},
	{"*1x\r\n", "-ERR Protocol error: invalid multibulk length"},
	{"*1\r\n$4\r\nPINGPING\r\n", "-ERR Protocol error: a bulk string is longer"},
	{"*1\r\n$4\r\nPINGxx", "-ERR Protocol error: a bulk string is longer"},
	{"*2\r\n$40000\r\n" + strings.Repeat("a", 40000) + "\r\n$40000\r\n", "-ERR Protocol error: invalid bulk length"},
	{strings.Repeat("a", 5000), "-ERR Protocol error: too big inline request"},
	{"\x16\x03\x01\x02\x00\n", "-ERR Protocol error: "}, // TLS to a plain port
	{"PING \"a\"\r\n", "-ERR Protocol error: "},
	{"POST / HTTP/1.1\r\nHost: x\r\n\r\nCL.THROTTLE a 1 1 1\r\n", "HTTP/1.1 400 Bad Request"},
	{"POST /\r\nHost: x\r\n\r\nCL.THROTTLE a 1 1 1\r\n", "-ERR this is no HTTP port"},
	{"GET / HTTP/1.1\r\nHost: x\r\n\r\nCL.THROTTLE a 1 1 1\r\n", "HTTP/1.1 400 Bad Request"},
	{array("EVAL", "x"), "-ERR unknown command"},
	{array("a\r\nb+OK"), "-ERR unknown command"},
	{array(""), "-ERR unknown command"},
	{array("CL.THROTTLE"), "-ERR wrong number of arguments"},
	{array("CL.THROTTLE", "a", "-1", "1", "1"), "-ERR max_burst is"},
	{array("CL.THROTTLE", "a", "1", "0", "1"), "-ERR count is"},
	{array("CL.THROTTLE", "a", "1", "1", "0"), "-ERR period is"},
	{array("CL.THROTTLE", "a", "1", "1", "1", "x"), "-ERR quantity is"},
	{array("CL.THROTTLE", "a", "1", "1", "99999999999"), "-ERR period is"},
	{array("CL.THROTTLE", "a", "999999999", "1", "9999999"), "-ERR bad limit: the bucket fills in more than 73 years"},
	{array("CL.THROTTLE", "a", "1", "9999999999", "1"), "-ERR bad limit: the rate is above"},
	{array("GCRA", "a", "1", "1", "NaN"), "-ERR period is"},
	{array("GCRA", "a", "1", "1", "-1"), "-ERR period is"},
	{array("GCRA", "a", "1", "1", "1e-10"), "-ERR period is"},
	{array("GCRA", "a", "1", "1", "1", "TOKENS"), "-ERR syntax error"},
	{array("GCRA", "a", "1", "1", "1", "NUM_REQUESTS", "1"), "-ERR syntax error"},
	{array("RL.TAKE", "0", "a", "b"), "-ERR cost is"},
	{array("RL.TAKE", "1", "a", "b", "c"), "-ERR an attribute has a name and no value"},
	{array("RL.TAKE", "1", "a", "b", "a", "c"), "-ERR the attribute a stands there twice"},
	{array("RL.TAKE", "1", "", "b"), "-ERR the name of an attribute"},
	{array("RL.TAKE", "1", "a\xff", "b"), "-ERR the name of an attribute is not valid UTF-8"},
	{array("RL.FINISH", "x", "a", "b"), "-ERR permit is"},
	{array("RL.COMMIT", "x", "-1"), "-ERR actual is"},
	{array("RL.RENEW", "x", "y"), "-ERR used is"},
	{array("SELECT", "1"), "-ERR there are no databases"},
	{array("AUTH", "x"), "-ERR AUTH was sent"},
	{array("CLIENT", "SETNAME", "a b"), "-ERR the name of a connection"},
	{array("CLIENT", "KILL"), "-ERR unknown subcommand"},
	{array("CLIENT", "TRACKING", "ON"), "-ERR decisions are not cached"},
	{array("CONFIG", "SET", "a", "b"), "-ERR the configuration"},
}

func TestBadInput(t *testing.T) {
	for _, c := range badInput {
		for _, piece := range []int{1 << 20, 1000, 1} {
			s := newServer(t)
			got := play(s, c.in, piece)
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("%.60q in pieces of %d: %.200q, want %q", c.in, piece, got, c.want)
			}
			for line := range strings.SplitSeq(strings.TrimSuffix(got, "\r\n"), "\r\n") {
				if !strings.HasPrefix(line, "-") && !strings.HasPrefix(c.want, "HTTP/") {
					t.Errorf("%.60q: more than errors: %q", c.in, got)
				}
			}
			if got := play(s, array("CL.THROTTLE", "a", "0", "1", "1"), 99); !strings.HasPrefix(got, "*5\r\n:0\r\n") {
				t.Errorf("%.60q has taken something: %q", c.in, got)
			}
		}
	}
}

// A thousand commands at once are answered in order, and by few writes; a buffer that a long command needed is given up.
func TestPipeline(t *testing.T) {
	s := newServer(t)
	in := strings.Repeat(array("CL.THROTTLE", "k", "9999", "1", "1"), 1000)
	w := &writes{}
	c := s.conn(t.Context(), &script{in: strings.NewReader(in)})
	c.conn.(*script).Conn = nil
	c.conn = &counted{c.conn.(*script), w}
	c.run()
	r := bufio.NewReader(&c.conn.(*counted).out)
	for i := range 1000 {
		var limited, most, left, retry, reset int
		if _, err := fmt.Fscanf(r, "*5\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n:%d\r\n", &limited, &most, &left, &retry, &reset); err != nil || left != 9999-i || reset != i+1 {
			t.Fatalf("answer %d: %d %d, %v", i, left, reset, err)
		}
	}
	if reads := len(in)/firstBuffer + 2; w.n > reads {
		t.Errorf("%d writes for some %d reads", w.n, reads)
	}
	long := &reader{}
	if err := long.fill(strings.NewReader("PING\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := long.next(); err != nil {
		t.Fatal(err)
	}
	text := array("ECHO", strings.Repeat("x", 60_000))
	for from := strings.NewReader(text); ; {
		if err := long.fill(from); err != nil {
			t.Fatal(err)
		}
		if args, err := long.next(); err == nil {
			if len(args) != 2 || len(args[1]) != 60_000 || len(long.buf) > MaxCommand {
				t.Errorf("%d arguments, a buffer of %d", len(args), len(long.buf))
			}
			break
		} else if !errors.Is(err, errIncomplete) {
			t.Fatal(err)
		}
	}
	if err := long.fill(strings.NewReader("PING\r\n")); err != nil || len(long.buf) != firstBuffer {
		t.Errorf("a buffer of %d is kept, %v", len(long.buf), err)
	}
}

type writes struct{ n int }

type counted struct {
	*script
	w *writes
}

func (c *counted) Write(p []byte) (int, error) { c.w.n++; return c.script.Write(p) }

// TestNothingIsAllocated: a command that takes from a bucket leaves nothing for the collector.
func TestNothingIsAllocated(t *testing.T) {
	in := []byte(array("CL.THROTTLE", "some-key", "100", "1000", "1") + array("GCRA", "some-key", "100", "1000", "1", "TOKENS", "1"))
	p := &script{}
	c := newServer(t).conn(t.Context(), p)
	from := bytes.NewReader(nil)
	if n := testing.AllocsPerRun(1000, func() {
		from.Reset(in)
		p.out.Reset()
		if c.reader.fill(from) != nil || c.batch() != nil || !c.flush() {
			t.Fatal("not answered")
		}
	}); n != 0 {
		t.Errorf("%v allocations for two commands", n)
	}
}

// A connection too many is told so; one that ends makes room. Serve ends when all have.
func TestTooManyConnections(t *testing.T) {
	s := newServer(t, func(o *Options) { o.MaxConnections = 1 })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, t.Context(), l) }()
	dial := func() (net.Conn, string) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "PING\r\n")
		line, _ := bufio.NewReader(c).ReadString('\n')
		return c, line
	}
	first, line := dial()
	if line != "+PONG\r\n" {
		t.Fatalf("%q", line)
	}
	second, line := dial()
	if !strings.HasPrefix(line, "-ERR max number of clients") && line != "" { // reset, for what it has sent
		t.Errorf("one too many: %q", line)
	}
	if s.figures.refused.Load() != 1 {
		t.Errorf("%d refused", s.figures.refused.Load())
	}
	_, _ = first.Close(), second.Close()
	for { // until the server has seen the end of the first
		c, line := dial()
		_ = c.Close()
		if line == "+PONG\r\n" {
			break
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A fault in one command ends its connection, is told, and leaves the others alone.
func TestFault(t *testing.T) {
	told := ""
	s := newServer(t, func(o *Options) {
		o.Engine, o.Fault = nil, func(command string, _ any) { told = command }
	})
	if got := play(s, array("RL.TAKE", "1", "a", "b"), 999); got != "" || told != "RL.TAKE" {
		t.Errorf("%q, %q", got, told)
	}
	if got := play(s, array("PING"), 999); got != "+PONG\r\n" {
		t.Errorf("%q", got)
	}
}
