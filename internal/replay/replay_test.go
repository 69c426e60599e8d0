package replay_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/accesslog"
	"github.com/stint-io/stint/internal/replay"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

const perClient = "limits:\n  - {name: c, key: [ip], rate: 1/s, burst: 2}\n"

// csv writes requests at milliseconds since a start, for an address each.
func csv(at ...int64) string {
	var b strings.Builder
	b.WriteString("time,ip\n")
	for _, ms := range at {
		fmt.Fprintf(&b, "%d,192.0.2.7\n", 1791640500_000+ms)
	}
	return b.String()
}

// Times that go backwards are put in order as far as --reorder goes; what is later is decided at the time of
// the line in front of it, and counted.
func TestBackwards(t *testing.T) {
	var got []string
	note := func(l *accesslog.Line, d *limit.Decision) {
		got = append(got, fmt.Sprintf("%d:%v", (int64(l.At)-1791640500e9)/1e6, d.Allowed))
	}
	r := play(t, perClient, &replay.Options{OnDecision: note}, csv(0, 3000, 2000, 2100, 2200, 9000))
	if want := "[0:true 2000:true 2100:true 2200:false 3000:true 9000:true]"; fmt.Sprint(got) != want {
		t.Errorf("got %v, want %s", got, want)
	}
	if r.Backwards.Lines != 3 || r.Backwards.Most != time.Second || r.Backwards.Late != 0 {
		t.Errorf("%+v", r.Backwards)
	}
	got = nil
	r = play(t, perClient, &replay.Options{OnDecision: note, Reorder: -1}, csv(0, 3000, 2000, 2100, 2200, 9000))
	if want := "[0:true 3000:true 2000:true 2100:false 2200:false 9000:true]"; fmt.Sprint(got) != want || r.Backwards.Late != 3 {
		t.Errorf("got %v (%+v), want %s", got, r.Backwards, want)
	}
}

// Requests of which only the second is known are spread over it, in their order.
func TestSpread(t *testing.T) {
	var text strings.Builder
	for i := range 12 {
		fmt.Fprintf(&text, "192.0.2.7 - - [10/Oct/2026:13:55:%02d +0000] \"GET / HTTP/1.1\" 200 1\n", i/4)
	}
	var at []int64
	o := replay.Options{OnDecision: func(l *accesslog.Line, _ *limit.Decision) { at = append(at, int64(l.At)/1e6%60_000) }}
	const limits = "limits:\n  - {name: all, rate: 4/s, burst: 1}\n"
	if r := play(t, limits, &o, text.String()); r.Refused != 0 {
		t.Errorf("%d refused of 4/s at 4/s: %v", r.Refused, at)
	}
	if fmt.Sprint(at) != "[0 250 500 750 1000 1250 1500 1750 2000 2250 2500 2750]" {
		t.Errorf("at %v", at)
	}
	o.Bunched = true
	if r := play(t, limits, &o, text.String()); r.Refused != 9 {
		t.Errorf("%d refused of 12 in three bunches with a burst of 1, want 9", r.Refused)
	}
}

// Several logs, one of them packed, are as one log in the order of times, whatever their own order.
func TestLogsAreMerged(t *testing.T) {
	r := seeding.Rand(t)
	parts := make([]strings.Builder, 3)
	var whole strings.Builder
	at := int64(1791640500_000)
	for i := range 20_000 {
		at += 1 + r.Int64N(40)
		line := fmt.Sprintf(`{"time":%d,"ip":"192.0.2.%d","n":%d}`+"\n", at, r.IntN(30), i)
		whole.WriteString(line)
		parts[r.IntN(3)].WriteString(line)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.WriteString(z, parts[1].String()); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	want, got := play(t, perClient, &replay.Options{}, whole.String()), play(t, perClient, &replay.Options{}, parts[2].String(), packed.String(), parts[0].String())
	if want.Refused == 0 || want.Refused != got.Refused || want.Requests != 20_000 || got.Requests != 20_000 || fmt.Sprint(want.Limits[0].Keys) != fmt.Sprint(got.Limits[0].Keys) {
		t.Errorf("one log: %d of %d refused, three: %d of %d", want.Refused, want.Requests, got.Refused, got.Requests)
	}
}

// Lines that cannot be read are counted and shown with their numbers, and change nothing else; a log without
// a line that can be read, and one that is cut, are errors.
func TestBadLogs(t *testing.T) {
	text := "\x00\x01\xff\n" + csv(0, 1) + "nonsense\n" + strings.Repeat("x", 2<<20) + "\n" + strings.TrimPrefix(csv(2), "time,ip\n") + "\x16\x03"
	r := play(t, perClient, &replay.Options{}, text)
	if r.Requests != 3 || r.Bad != 4 || r.Lines != 7 || r.Refused != 1 {
		t.Errorf("%d requests, %d of %d lines bad, %d refused: %v", r.Requests, r.Bad, r.Lines, r.Refused, r.Unread)
	}
	if len(r.Unread) != 4 || r.Unread[0].Line != 1 || r.Unread[1].Line != 5 && r.Unread[1].Line != 6 {
		t.Errorf("%v", r.Unread)
	}
	set, err := rules.Parse("x", []byte(perClient))
	if err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := io.WriteString(z, csv(make([]int64, 50_000)...)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"": "empty", "a\nb\n": "x:1: ", packed.String()[:packed.Len()-20]: "unexpected EOF"} {
		_, err := replay.Run(context.Background(), replay.Options{Set: set, Logs: []replay.Log{{Name: "x", Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }}}})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: %v, want %s", text, err, want)
		}
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = replay.Run(ended, replay.Options{Set: set, Logs: []replay.Log{{Name: "x", Open: func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(csv(1, 2, 3))), nil }}}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want that the context ended", err)
	}
}

// What changes between two configurations is counted request by request, and drawn.
func TestAgainst(t *testing.T) {
	set, err := rules.Parse("old", []byte("limits:\n  - {name: c, key: [ip], rate: 1/s, burst: 4}\n  - {name: gone, rate: 1/hour, shadow: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	// At once: 2 of 6 by the new limit, 4 by the old one.
	r := play(t, perClient, &replay.Options{Against: set}, csv(0, 1, 2, 3, 4, 5))
	if r.Refused != 4 || r.Against.Refused != 2 || r.Against.NewlyRefused != 2 || r.Against.NewlyAdmitted != 0 || r.Limits[0].Newly != 2 || r.Against.Limits[1].Shadow != 5 {
		t.Errorf("%+v\n%+v", r, r.Against)
	}
	var text, svg bytes.Buffer
	if err := errors.Join(r.WriteText(&text), r.WriteChart(&svg, "a <title>")); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"newly refused: 2, newly admitted: 0", "2 refused", "gone", "c, newly refused:\n  ip=192.0.2.7"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	for _, want := range []string{"all requests: 4 of 6 refused (66.7 %)", "a &lt;title&gt;", "refused most: ip=192.0.2.7 4 times"} {
		if !strings.Contains(svg.String(), want) {
			t.Errorf("no %q in the chart", want)
		}
	}
	for dec := xml.NewDecoder(&svg); ; {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// Requests in flight end when the log says; the limit holds in between.
func TestInFlight(t *testing.T) {
	text := "start_time,duration_ms\n1791640500000,100\n1791640500010,1000\n1791640500050,10\n1791640500099,10\n1791640500100,10\n1791640500105,10\n"
	r := play(t, "limits:\n  - {name: f, algorithm: concurrency, max_in_flight: 2, timeout: 1m}\n", &replay.Options{}, text)
	if r.Refused != 3 || r.Limits[0].Refused != 3 {
		t.Errorf("%d refused, want 3: those at 50, 99 and 105 ms", r.Refused)
	}
}

// Lines have the plans of their customers, as in a service.
func TestPlans(t *testing.T) {
	const files = `
plans:
  - {name: free, limits: [{name: messages, rate: 1/day, algorithm: fixed_window}]}
  - {name: pro, limits: [{name: messages, rate: 9/day, algorithm: fixed_window}]}
customers: {by: ip, default: free, list: {192.0.2.7: pro}}
`
	lines := csv(0, 1, 2) + "1791640500003,192.0.2.8\n1791640500004,192.0.2.8\n"
	r := play(t, files, &replay.Options{}, lines)
	if r.Admitted != 4 || r.Refused != 1 {
		t.Errorf("%d admitted and %d refused, want 4 and 1", r.Admitted, r.Refused)
	}
}
