package accesslog

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

var wanted = []string{"ip", "method", "path", "host", "user", "header:user-agent", "query:tenant", "header:x-api-key"}

// show writes a line that was read as name=value pairs.
func show(l *Line, names []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", time.Unix(0, int64(l.At)).UTC().Format(time.RFC3339Nano))
	if l.Coarse {
		b.WriteString(" coarse")
	}
	if l.Took >= 0 {
		fmt.Fprintf(&b, " took %v", time.Duration(l.Took))
	}
	if l.Status != 0 {
		fmt.Fprintf(&b, " %d", l.Status)
	}
	if l.Cost != 1 {
		fmt.Fprintf(&b, " cost %d", l.Cost)
	}
	for i, v := range l.Values {
		if v != "" {
			fmt.Fprintf(&b, " %s=%q", names[i], v)
		}
	}
	return b.String()
}

const (
	combinedLine = `192.0.2.7 - frank [10/Oct/2026:13:55:36 -0700] "GET /a%20b/../c?tenant=t%201&x HTTP/1.1" 200 2326 "-" "curl/8.0 \x22q\x22"`
	envoyLine    = `{"start_time":"2026-10-10T20:55:36.123Z","method":"POST","path":"/login?tenant=x","protocol":"HTTP/2","response_code":200,"duration":12,"authority":"Example.com:443","downstream_remote_address":"[2001:db8:1:2:3::4]:50012","user_agent":"a\u0022b","x_forwarded_for":null,"route":{"name":"r","path":"/no"},"bytes":[1,{"a":[]}]}`
	caddyLine    = `{"level":"info","ts":1791665736.5,"logger":"http.log.access","request":{"remote_ip":"127.0.0.1","client_ip":"192.0.2.9","method":"GET","host":"localhost","uri":"/x?tenant=1","headers":{"User-Agent":["curl/7"],"X-Api-Key":["k","l"]}},"user_id":"","duration":0.5,"status":429}`
)

// Each format as its servers write it, line by line.
func TestFormats(t *testing.T) {
	for _, c := range []struct{ name, format, line, want string }{
		{"combined", "", combinedLine, `2026-10-10T20:55:36Z coarse 200 ip="192.0.2.7" method="GET" path="/c" user="frank" header:user-agent="curl/8.0 \"q\"" query:tenant="t 1"`},
		{"combined with more", "", combinedLine + ` "203.0.113.9" 0.002`, `2026-10-10T20:55:36Z coarse 200 ip="192.0.2.7" method="GET" path="/c" user="frank" header:user-agent="curl/8.0 \"q\"" query:tenant="t 1"`},
		{"apache escapes quotes by a backslash", "", `::1 - - [10/Oct/2026:13:55:36 +0000] "GET / HTTP/1.0" 200 - "-" "a \"b\" c"`, `2026-10-10T13:55:36Z coarse 200 ip="::1" method="GET" path="/" header:user-agent="a \"b\" c"`},
		{"common", "", `h - - [10/Oct/2026:13:55:36 +0000] "GET http://e.org/p HTTP/1.0" 404 5`, `2026-10-10T13:55:36Z coarse 404 ip="h" method="GET" path="/p"`},
		{"a request that was none", "combined", `192.0.2.7 - - [10/Oct/2026:13:55:36 +0000] "\x16\x03\x01" 400 0 "-" "-"`, `2026-10-10T13:55:36Z coarse 400 ip="192.0.2.7"`},
		{"log_format", `$msec|$remote_addr|$request_method|$request_uri|$http_x_api_key|${request_time}s`, "1791665736.250|2001:db8::1|PUT|/a//b|key|0.250s", `2026-10-10T20:55:36Z took 250ms ip="2001:db8::1" method="PUT" path="/a/b" header:x-api-key="key"`},
		{"envoy", "", envoyLine, `2026-10-10T20:55:36.123Z took 12ms 200 ip="2001:db8:1:2:3::4" method="POST" path="/login" host="example.com" header:user-agent="a\"b" query:tenant="x"`},
		{"caddy", "", caddyLine, `2026-10-10T20:55:36Z took 500ms 429 ip="192.0.2.9" method="GET" path="/x" host="localhost" header:user-agent="curl/7" query:tenant="1" header:x-api-key="k"`},
	} {
		f, err := ParseFormat(c.format, c.line)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		p, err := f.Parser(Want{Attributes: wanted})
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		l := Line{Values: make([]string, len(wanted))}
		for range 2 { // the second is read by what the first has taught
			if err := p.Parse(c.line, &l); err != nil {
				t.Errorf("%s: %v", c.name, err)
			} else if got := show(&l, wanted); got != c.want {
				t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
			}
		}
	}
}

// CSV: the first line names the columns; fields that flags name go before all others.
func TestColumns(t *testing.T) {
	names := `time;client_ip;method;"path";account;units;user`
	f, err := ParseFormat(Auto, names)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Names(names+"\r") || f.Names("x") {
		t.Error("the line of names is not known again")
	}
	want := []string{"ip", "method", "path", "user", "account"}
	p, err := f.Parser(Want{Attributes: want, Fields: map[string]string{"user": "account"}, Cost: "units"})
	if err != nil {
		t.Fatal(err)
	}
	l := Line{Values: make([]string, len(want))}
	for _, c := range []struct{ line, want string }{
		{`2026-10-10 20:55:36,5;1.2.3.4:80;GET;/a;acme;7;x`, `2026-10-10T20:55:36.5Z cost 7 ip="1.2.3.4" method="GET" path="/a" user="acme"`},
		{`"2026-10-10T20:55:36+02:00";1.2.3.4;GET;"/a;""b""";acme;0;x`, `2026-10-10T18:55:36Z coarse cost 0 ip="1.2.3.4" method="GET" path="/a;\"b\"" user="acme"`},
		{`1791665736123;-;;;;1;`, `2026-10-10T20:55:36.123Z`},
		{`1791665736123;-;;;;many;`, ErrCost.Error()},
		{`1791665736123;-`, ErrCost.Error()},
		{`;;;;;1;`, ErrTime.Error()},
		{`1791665736123;;;;;1;;`, ErrShape.Error()},
		{`"1791665736123;;;;;1;`, ErrShape.Error()},
		{`"1791665736123"x;;;;;1;`, ErrShape.Error()},
	} {
		got := ""
		if err := p.Parse(c.line, &l); err != nil {
			got = err.Error()
		} else {
			got = show(&l, want)
		}
		if got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.line, got, c.want)
		}
	}
}

// Formats that cannot be read say why.
func TestFormatFaults(t *testing.T) {
	for _, c := range []struct{ format, first, want string }{
		{"combind", "", `unknown format "combind"`},
		{"$remote_addr$msec", "", "nothing between $remote_addr and $msec"},
		{"$remote_addr ${msec", "", "without its }"},
		{"$remote_addr $ ", "", "without the name"},
		{"$remote_addr $status", "", "no time"},
		{"csv", "a,b", "one of them time"},
		{"", "hello", "the first line is neither"},
		{"", "", "the first line is neither"},
	} {
		f, err := ParseFormat(c.format, c.first)
		if err == nil {
			_, err = f.Parser(Want{})
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q, %q: %v, want %s", c.format, c.first, err, c.want)
		}
	}
}

// Times in all forms are those that package time reads; what is no time is none.
func TestTimes(t *testing.T) {
	var c clock
	start := time.Date(1999, 12, 31, 23, 59, 58, 0, time.UTC)
	for i := range 3000 {
		at := start.Add(time.Duration(i) * (31*time.Hour + 1234567891*time.Nanosecond))
		zone := time.FixedZone("", (i%53-26)*1800)
		for _, layout := range []string{"02/Jan/2006:15:04:05 -0700", time.RFC3339Nano, "2006-01-02 15:04:05.000", "2006-01-02T15:04:05-0700"} {
			local := at.In(zone)
			if layout == "2006-01-02 15:04:05.000" {
				local = at
			}
			text := local.Format(layout)
			want, err := time.Parse(layout, text)
			if err != nil {
				t.Fatal(err)
			}
			if got, _, ok := c.parse(text); !ok || got != limit.At(want) {
				t.Fatalf("%s is %v (%v), want %v", text, got, ok, limit.At(want))
			}
		}
		for _, text := range []string{fmt.Sprint(at.Unix()), fmt.Sprint(at.UnixMilli()), fmt.Sprint(at.UnixMicro()), fmt.Sprint(at.UnixNano()), fmt.Sprintf("%d.%09d", at.Unix(), at.Nanosecond())} {
			got, coarse, ok := c.parse(text)
			want := at.UnixNano()
			switch len(text) {
			case len("946684798"), len("1000000000"):
				want = at.Truncate(time.Second).UnixNano()
			case len("946684798000"), len("1000000000000"):
				want = at.Truncate(time.Millisecond).UnixNano()
			case len("946684798000000"), len("1000000000000000"):
				want = at.Truncate(time.Microsecond).UnixNano()
			}
			if !ok || int64(got) != want || coarse != (len(text) <= 10) {
				t.Fatalf("%s is %v (%v, %v), want %v", text, got, coarse, ok, want)
			}
		}
	}
	for _, text := range []string{
		"", "yesterday", "32/Jan/2026:00:00:00 +0000", "30/Feb/2026:00:00:00 +0000", "01/jan/2026:00:00:00 +0000", "01/Jan/2026:24:00:00 +0000",
		"01/Jan/1926:00:00:00 +0000", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00.Z", "2026-01-01T00:00:00 Berlin", "9999-01-01T00:00:00Z",
		"1234567", "99999999999999999999999", "1791665736.", "1791665736.x", "179166573600.5",
	} {
		if got, _, ok := c.parse(text); ok {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// Nothing is allocated for lines that have nothing to decode.
func TestParseDoesNotAllocate(t *testing.T) {
	plain := `192.0.2.7 - frank [10/Oct/2026:13:55:36 -0700] "GET /api/orders?id=7 HTTP/1.1" 200 2326 "-" "curl/8.0"`
	for name, line := range map[string]string{
		"combined": plain,
		"json":     `{"start_time":"2026-10-10T20:55:36.123Z","method":"POST","path":"/login","duration":12,"downstream_remote_address":"192.0.2.7","x":{"y":[1,2]}}`,
	} {
		f, err := ParseFormat(Auto, line)
		if err != nil {
			t.Fatal(err)
		}
		p, err := f.Parser(Want{Attributes: wanted})
		if err != nil {
			t.Fatal(err)
		}
		l := Line{Values: make([]string, len(wanted))}
		if n := testing.AllocsPerRun(100, func() {
			if err := p.Parse(line, &l); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}
