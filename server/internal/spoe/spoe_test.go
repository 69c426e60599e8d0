package spoe

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

const limits = `limits:
  - {name: per-ip, key: [ip], rate: 5/hour}
  - {name: per-key, key: ["header:x-api-key"], rate: 2/hour, on_exceed: {reject: 403}}
  - {name: login, match: {path: /login, method: POST}, key: [ip], rate: 1/hour, on_exceed: {redirect: "https://example.com/busy"}}
  - {name: less, match: {path: /less}, key: [ip], rate: 1/hour, on_exceed: tag}
`

// newServer is a server with limits and a clock that stands.
func newServer(t testing.TB) *Server {
	t.Helper()
	now := func() limit.Time { return limit.At(time.Date(2026, 11, 24, 10, 0, 0, 0, time.UTC)) }
	set, err := rules.Parse("limits.yaml", []byte(limits))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{Now: now}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{Engine: e, Fault: func(call string, p any) { t.Errorf("%s: %v", call, p) }})
}

// gateway is one end of a connection: what it sends is in, what it gets is out.
type gateway struct {
	in  io.Reader
	out bytes.Buffer
	net.Conn
}

func (g *gateway) Read(p []byte) (int, error)       { return g.in.Read(p) }
func (g *gateway) Write(p []byte) (int, error)      { return g.out.Write(p) }
func (g *gateway) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)} }
func (g *gateway) SetDeadline(time.Time) error      { return nil }
func (g *gateway) SetReadDeadline(time.Time) error  { return nil }
func (g *gateway) SetWriteDeadline(time.Time) error { return nil }

type pieces struct {
	r    io.Reader
	most int
}

func (p *pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), p.most)]) }

// play sends frames in pieces of so many bytes and returns the answers as text, one a line.
func play(t testing.TB, s *Server, input []byte, piece int) []string {
	t.Helper()
	g := &gateway{in: &pieces{bytes.NewReader(input), piece}}
	newConn(context.Background(), s, g).run()
	return read(t, g.out.Bytes())
}

// frame is a frame as a gateway writes it.
func frameOf(kind frameType, flags uint32, stream, id uint64, payload ...[]byte) []byte {
	b := append([]byte{0, 0, 0, 0, byte(kind)}, binary.BigEndian.AppendUint32(nil, flags)...)
	b = appendVarint(appendVarint(b, stream), id)
	return end(append(b, bytes.Join(payload, nil)...), 0)
}

func helloOf(versions string, most uint64, more ...[]byte) []byte {
	p := appendPairText(nil, "supported-versions", versions)
	p = appendPairNumber(p, "max-frame-size", most)
	p = appendPairText(p, "capabilities", "fragmentation,pipelining,async")
	return frameOf(frameHello, flagFin, 0, 0, append([][]byte{p}, more...)...)
}

func notifyOf(stream, id uint64, args ...[]byte) []byte {
	m := append(appendText(nil, "check"), byte(len(args)))
	return frameOf(frameNotify, flagFin, stream, id, append([][]byte{m}, args...)...)
}

func argText(name, s string) []byte { return appendPairText(nil, name, s) }

func argNumber(name string, kind byte, n uint64) []byte {
	return appendVarint(append(appendText(nil, name), kind), n)
}

func argIP(ip string) []byte {
	addr := net.ParseIP(ip)
	if four := addr.To4(); four != nil {
		return append(append(appendText(nil, "ip"), typeIPv4), four...)
	}
	return append(append(appendText(nil, "ip"), typeIPv6), addr...)
}

// read writes frames of an agent as text.
func read(t testing.TB, b []byte) (lines []string) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Fatalf("an answer that is no frame: %v", err)
		}
	}
	for len(b) > 0 {
		n := binary.BigEndian.Uint32(b)
		h, p, err := parseHeader(b[prefixLen : prefixLen+n])
		must(err)
		b = b[prefixLen+n:]
		line := fmt.Sprintf("%d %d/%d", h.kind, h.stream, h.frame)
		for len(p) > 0 {
			if h.kind == frameAck {
				if p[0] != actionSet || p[1] != setArgs || p[2] != scopeTransaction {
					t.Fatalf("no set-var of a transaction: %v", p[:3])
				}
				p = p[3:]
			}
			var name []byte
			var v value
			name, p, err = text(p)
			must(err)
			v, p, err = typed(p)
			must(err)
			line += fmt.Sprintf(" %s=%s", name, shownValue(&v))
		}
		lines = append(lines, line)
	}
	return lines
}

func shownValue(v *value) string {
	switch v.kind {
	case typeBool:
		return fmt.Sprint(v.flag)
	case typeString:
		return fmt.Sprintf("%q", v.bytes)
	default:
		n, _ := v.signed()
		return fmt.Sprint(n)
	}
}

var greeting = helloOf("2.0", 16380)

const greeted = `101 0/0 version="2.0" max-frame-size=16380 capabilities="pipelining"`

// conversation plays frames one after the other, each after the answer to the last, and returns the answers.
func conversation(t *testing.T, s *Server, frames ...[]byte) []string {
	t.Helper()
	var all []string
	for _, f := range frames {
		got := play(t, s, slices.Concat(greeting, f), 1<<20)
		if len(got) != 2 || got[0] != greeted {
			t.Fatalf("%q", got)
		}
		all = append(all, got[1])
	}
	return all
}

func TestWalkThrough(t *testing.T) {
	ip, key := argIP("192.0.2.7"), argText("header:x-api-key", "k")
	null := append(appendText(nil, "header:x-api-key"), typeNull)
	post := [][]byte{argIP("192.0.2.8"), argText("method", "POST"), argText("path", "/a/../log%69n")}
	got := conversation(t, newServer(t),
		notifyOf(7, 1, ip, null),
		notifyOf(300, 5000, ip, argNumber("cost", typeInt32, 3)),
		notifyOf(7, 2, ip, argNumber("cost", typeUint64, 2)),
		notifyOf(7, 3, ip, argNumber("cost", typeInt64, 0)),
		notifyOf(7, 4, argText("ip", "::ffff:192.0.2.7"), argText("cost", "1")),
		notifyOf(7, 5, ip),
		notifyOf(8, 1, key), notifyOf(8, 1, key), notifyOf(8, 1, key),
		notifyOf(9, 1, post...), notifyOf(9, 1, post...),
		notifyOf(9, 1, argIP("2001:db8::1"), argText("path", "/less")), notifyOf(9, 1, argIP("2001:db8::1"), argText("path", "/less")),
		notifyOf(9, 1),
	)
	head := func(line string, n int) string { return strings.Join(strings.Split(line, " ")[:n], " ") }
	const yes, no = "allowed=true refused=false status=200 quota=5 remaining=", "allowed=false refused=true status=429 retry_after="
	for i, want := range []string{
		"103 7/1 " + yes + `4 limit="per-ip" ratelimit="\"per-ip\";r=4;t=2880" ratelimit_policy="\"per-ip\";q=5;w=3600"`,
		"103 300/5000 " + yes + `1 limit="per-ip" ratelimit="\"per-ip\";r=1;t=720" ratelimit_policy="\"per-ip\";q=5;w=3600"`,
		"103 7/2 " + no + `720 reason="rate_exceeded" quota=5 remaining=1 limit="per-ip"`,
		"103 7/3 " + yes + `1 limit="per-ip"`,
		"103 7/4 " + yes + `0 limit="per-ip"`,
		"103 7/5 " + no + `720 reason="rate_exceeded" quota=5 remaining=0 limit="per-ip"`,
		"103 8/1 allowed=true refused=false status=200 quota=2 remaining=1",
		"103 8/1 allowed=true refused=false status=200 quota=2 remaining=0",
		`103 8/1 allowed=false refused=true status=403 retry_after=1800 reason="rate_exceeded" quota=2 remaining=0 limit="per-key"`,
		"103 9/1 allowed=true refused=false status=200 quota=1 remaining=0",
		`103 9/1 allowed=false refused=true status=302 retry_after=3600 reason="rate_exceeded" quota=1 remaining=0 limit="login" location="https://example.com/busy"`,
		"103 9/1 allowed=true refused=false status=200 quota=1 remaining=0",
		"103 9/1 allowed=true refused=false status=200",
		"103 9/1 allowed=true refused=false status=200",
	} {
		if !strings.HasPrefix(got[i], want) {
			t.Errorf("answer %d is\n%s\nwant\n%s", i, got[i], want)
		}
	}
	for i, want := range map[int]string{
		2: `content_type="application/problem+json" body="{\"type\":`, 8: "content_type=", 12: `x_ratelimit_degraded="less"`,
	} {
		if !strings.Contains(got[i], want) {
			t.Errorf("answer %d has no %s: %s", i, want, got[i])
		}
	}
	if got[13] != "103 9/1 allowed=true refused=false status=200" {
		t.Errorf("no limit applies: %s", head(got[13], 1))
	}
}

func TestHandshake(t *testing.T) {
	check := append(appendText(nil, "healthcheck"), typeBool|boolTrue)
	noCheck := append(appendText(nil, "healthcheck"), typeBool)
	engineID := argText("engine-id", "e")
	for name, c := range map[string]struct {
		in   []byte
		want string
	}{
		"a check":               {slices.Concat(helloOf("2.0", 16380, check), notifyOf(1, 1, argIP("192.0.2.1"))), greeted},
		"no check":              {helloOf("2.0", 16380, noCheck, engineID), greeted},
		"versions":              {helloOf("1.0, 2.1 ", 256), `101 0/0 version="2.0" max-frame-size=256 capabilities="pipelining"`},
		"larger frames":         {helloOf("2.0", 1<<31), `101 0/0 version="2.0" max-frame-size=65536 capabilities="pipelining"`},
		"no common version":     {helloOf("1.5, 3.0", 16380), `102 0/0 status-code=8`},
		"small frames":          {helloOf("2.0", 255), `102 0/0 status-code=9`},
		"nothing":               {frameOf(frameHello, flagFin, 0, 0), `102 0/0 status-code=5`},
		"no size":               {frameOf(frameHello, flagFin, 0, 0, argText("supported-versions", "2.0")), `102 0/0 status-code=6`},
		"no capabilities":       {frameOf(frameHello, flagFin, 0, 0, argText("supported-versions", "2.0"), appendPairNumber(nil, "max-frame-size", 999)), `102 0/0 status-code=7`},
		"a number for text":     {frameOf(frameHello, flagFin, 0, 0, appendPairNumber(nil, "supported-versions", 2)), `102 0/0 status-code=5`},
		"a stream":              {frameOf(frameHello, flagFin, 1, 0), `102 0/0 status-code=4`},
		"a query before":        {notifyOf(1, 1, argIP("192.0.2.1")), `102 0/0 status-code=4`},
		"leave before":          {frameOf(frameDisconnect, flagFin, 0, 0), `102 0/0 status-code=0`},
		"no capability offered": {frameOf(frameHello, flagFin, 0, 0, argText("supported-versions", "2"), appendPairNumber(nil, "max-frame-size", 999), argText("capabilities", "")), `101 0/0 version="2.0" max-frame-size=999 capabilities=""`},
	} {
		if got := play(t, newServer(t), c.in, 1<<20); len(got) != 1 || !strings.HasPrefix(got[0], c.want) {
			t.Errorf("%s: %q, want %s", name, got, c.want)
		}
	}
	bye := play(t, newServer(t), slices.Concat(greeting, frameOf(frameDisconnect, flagFin, 0, 0, appendPairNumber(nil, "status-code", 0))), 1<<20)
	if len(bye) != 2 || bye[1] != `102 0/0 status-code=0 message="bye"` {
		t.Errorf("leave: %q", bye)
	}
}

// badFrames end a connection. Each would take from per-ip if it were believed in part.
var badFrames = map[string]struct {
	in     []byte
	status status
}{
	"garbage":                    {[]byte("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), statusTooBig},
	"TLS":                        {[]byte{0x16, 3, 1, 0, 200, 1, 0, 0, 196, 3, 3}, statusTooBig},
	"4 GiB":                      {[]byte{0xff, 0xff, 0xff, 0xff, 3, 0, 0, 0, 1, 1, 1}, statusTooBig},
	"one byte above":             {binary.BigEndian.AppendUint32(nil, 16381), statusTooBig},
	"no length":                  {make([]byte, 32), statusInvalid},
	"shorter than its header":    {[]byte{0, 0, 0, 6, 3, 0, 0, 0, 1, 1}, statusInvalid},
	"half":                       {notifyOf(1, 1, argIP("192.0.2.7"))[:20], statusInvalid},
	"half a length":              {[]byte{0, 0}, statusInvalid},
	"a fragment":                 {frameOf(frameNotify, 0, 1, 1, appendText(nil, "check"), []byte{1}, argIP("192.0.2.7")), statusFragment},
	"a further fragment":         {frameOf(frameUnset, flagFin, 1, 1), statusFragment},
	"an abort":                   {frameOf(frameNotify, flagFin|flagAbort, 1, 1, appendText(nil, "check"), []byte{1}, argIP("192.0.2.7")), statusInvalid},
	"a second hello":             {greeting, statusInvalid},
	"an unknown type":            {frameOf(77, flagFin, 1, 1), statusInvalid},
	"an agent's type":            {frameOf(frameAck, flagFin, 1, 1), statusInvalid},
	"a number of 70 bits":        {frameOf(frameNotify, flagFin, 1, 1, bytes.Repeat([]byte{0xff}, 12)), statusInvalid},
	"a stream of 70 bits":        {end(append([]byte{0, 0, 0, 0, 3, 0, 0, 0, 1}, bytes.Repeat([]byte{0xff}, 20)...), 0), statusInvalid},
	"a name of 4 GiB":            {frameOf(frameNotify, flagFin, 1, 1, appendVarint(nil, 1<<32), []byte("x")), statusInvalid},
	"a name of 2^64":             {frameOf(frameNotify, flagFin, 1, 1, appendVarint(nil, math.MaxUint64), []byte("x")), statusInvalid},
	"no count":                   {frameOf(frameNotify, flagFin, 1, 1, appendText(nil, "check")), statusInvalid},
	"fewer arguments":            {frameOf(frameNotify, flagFin, 1, 1, appendText(nil, "check"), []byte{2}, argIP("192.0.2.7")), statusInvalid},
	"a value of 4 GiB":           {notifyOf(1, 1, argIP("192.0.2.7"), appendVarint(append(appendText(nil, "a"), typeString), 1<<32)), statusInvalid},
	"half an address":            {notifyOf(1, 1, append(appendText(nil, "ip"), typeIPv4, 1, 2)), statusInvalid},
	"half a long address":        {notifyOf(1, 1, append(appendText(nil, "ip"), typeIPv6, 1, 2)), statusInvalid},
	"a type that does not exist": {notifyOf(1, 1, argIP("192.0.2.7"), append(appendText(nil, "a"), 12)), statusInvalid},
	"no type":                    {notifyOf(1, 1, argIP("192.0.2.7"), appendText(nil, "a")), statusInvalid},
	"bytes after the end":        {frameOf(frameNotify, flagFin, 1, 1, appendText(nil, "check"), []byte{1}, argIP("192.0.2.7"), []byte{9}), statusInvalid},
}

// badQueries are well formed and mean nothing: they are answered, take nothing, and the connection goes on.
var badQueries = map[string][]byte{
	"a cost below 0":      notifyOf(1, 1, argIP("192.0.2.7"), argNumber("cost", typeInt64, math.MaxUint64)),
	"a cost of 32 bits":   notifyOf(1, 1, argIP("192.0.2.7"), argNumber("cost", typeInt32, math.MaxUint64)),
	"a cost above 2^63":   notifyOf(1, 1, argIP("192.0.2.7"), argNumber("cost", typeUint64, math.MaxUint64)),
	"a cost of words":     notifyOf(1, 1, argIP("192.0.2.7"), argText("cost", "many")),
	"a cost that is true": notifyOf(1, 1, argIP("192.0.2.7"), append(appendText(nil, "cost"), typeBool|boolTrue)),
	"no name":             notifyOf(1, 1, argIP("192.0.2.7"), argText("", "a")),
	"a long name":         notifyOf(1, 1, argIP("192.0.2.7"), argText(strings.Repeat("n", maxName+1), "a")),
	"two messages":        frameOf(frameNotify, flagFin, 1, 1, appendText(nil, "check"), []byte{1}, argIP("192.0.2.7"), appendText(nil, "check"), []byte{1}, argIP("192.0.2.7")),
	"too many arguments":  notifyOf(1, 1, slices.Repeat([][]byte{argIP("192.0.2.7")}, maxAttributes+1)...),
}

// remaining asks what the limit per-ip has left for the client of the bad frames, on a connection of its own.
func remaining(t *testing.T, s *Server) string {
	t.Helper()
	got := conversation(t, s, notifyOf(1, 1, argIP("192.0.2.7"), argNumber("cost", typeUint32, 0)))[0]
	_, got, _ = strings.Cut(got, "remaining=")
	return got[:1]
}

func TestBadFramesEndTheConnectionAndTakeNothing(t *testing.T) {
	for name, c := range badFrames {
		for _, piece := range []int{1, 3, 1 << 20} {
			s := newServer(t)
			got := play(t, s, slices.Concat(greeting, c.in), piece)
			want := fmt.Sprintf("102 0/0 status-code=%d ", c.status)
			if len(got) != 2 || !strings.HasPrefix(got[1], want) {
				t.Errorf("%s in pieces of %d: %q, want %s", name, piece, got, want)
			}
			if left := remaining(t, s); left != "5" {
				t.Errorf("%s: %s remain, want 5", name, left)
			}
			if s.figures.protocol.Load() != 1 {
				t.Errorf("%s: %d protocol errors are counted", name, s.figures.protocol.Load())
			}
		}
	}
}

func TestBadQueriesAreAnsweredAndTakeNothing(t *testing.T) {
	for name, in := range badQueries {
		s := newServer(t)
		got := play(t, s, slices.Concat(greeting, in, frameOf(frameDisconnect, flagFin, 0, 0)), 1<<20)
		if len(got) != 3 || !strings.HasPrefix(got[1], `103 1/1 error="bad_request: `) {
			t.Errorf("%s: %q", name, got)
		}
		if left := remaining(t, s); left != "5" {
			t.Errorf("%s: %s remain, want 5", name, left)
		}
	}
}

// Whatever fits into a frame is answered within the frame that was agreed upon: what is too long is left out, the decision
// never.
func TestAnswersFitIntoFrames(t *testing.T) {
	for _, most := range []uint64{256, 300, 512, 1024} {
		s := newServer(t)
		in := helloOf("2.0", most)
		in = append(in, slices.Concat(slices.Repeat([][]byte{notifyOf(1, 1, argIP("192.0.2.7"), argText("header:x-api-key", "k"))}, 6)...)...)
		g := &gateway{in: bytes.NewReader(in)}
		newConn(t.Context(), s, g).run()
		for b := g.out.Bytes(); len(b) > 0; {
			n := binary.BigEndian.Uint32(b)
			if uint64(n) > most {
				t.Errorf("a frame of %d bytes, at most %d were agreed upon", n, most)
			}
			b = b[prefixLen+n:]
		}
		refusals := 0
		for _, line := range read(t, g.out.Bytes())[1:] {
			if strings.Contains(line, "allowed=false refused=true status=403 retry_after=1800") {
				refusals++
			}
		}
		if refusals != 4 {
			t.Errorf("frames of %d: %d refusals, want 4", most, refusals)
		}
	}
}

func TestVarints(t *testing.T) {
	for _, v := range []uint64{0, 1, 239, 240, 2287, 2288, 264431, 264432, 33818863, 33818864, 4328786159, 4328786160, math.MaxInt64, math.MaxUint64 - 1, math.MaxUint64} {
		b := appendVarint(nil, v)
		got, rest, err := varint(append(b, 0xaa))
		if err != nil || got != v || len(rest) != 1 {
			t.Errorf("%d is %x, read as %d with %d bytes left: %v", v, b, got, len(rest), err)
		}
		for cut := range b {
			if _, _, err := varint(b[:cut]); err == nil {
				t.Errorf("%x of %x was read", b[:cut], b)
			}
		}
	}
	// The widths of the protocol's own table.
	for v, width := range map[uint64]int{239: 1, 240: 2, 2287: 2, 2288: 3, 264431: 3, 264432: 4, 33818863: 4, 33818864: 5} {
		if n := len(appendVarint(nil, v)); n != width {
			t.Errorf("%d takes %d bytes, want %d", v, n, width)
		}
	}
}
