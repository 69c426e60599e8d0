package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// start runs the real service: coordinator, nodes, NATS servers.
func start(t *testing.T, nodes int) *Service {
	t.Helper()
	s, err := NewService(Options{Nodes: nodes, Limits: "limits.yaml"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-ended:
		ended <- err
		t.Fatalf("it ended: %v", err)
	case <-time.After(time.Minute):
		t.Fatal("not ready after a minute")
	}
	return s
}

func mustDial(t *testing.T, url string) *caller {
	t.Helper()
	c, err := dial(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.conn.Close() })
	return c
}

func mustListen(t *testing.T, url string, name channelName, lastID string) *listener {
	t.Helper()
	l, err := listen(t.Context(), url, name, lastID)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	if e, err := l.next(); err != nil || e.kind != "attached" {
		t.Fatalf("%+v, %v", e, err)
	}
	return l
}

func (l *listener) want(t *testing.T, kind string) event {
	t.Helper()
	e, err := l.next()
	if err != nil || e.kind != kind {
		t.Fatalf("got %+v, %v, want a %s", e, err, kind)
	}
	return e
}

func get(t *testing.T, url string, into any) int {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if into != nil {
		if err := json.Unmarshal(text, into); err != nil {
			t.Fatalf("%s: %v: %s", url, err, text)
		}
	}
	return resp.StatusCode
}

// until publishes until the cost is as wanted: nodes hear of each other's subscribers a
// moment later.
func until(t *testing.T, c *caller, name channelName, cost int64) answer {
	t.Helper()
	for range 100 {
		a, err := c.publish(name, "hello")
		if err != nil {
			t.Fatal(err)
		}
		if a.status == http.StatusOK && a.Cost == cost {
			return a
		}
	}
	t.Fatalf("a publish never cost %d", cost)
	return answer{}
}

// A message published at one node reaches the subscribers at all, and costs one and one for
// each of them.
func TestPublish(t *testing.T) {
	s := start(t, 2)
	one, two := s.Nodes()[0].URL(), s.Nodes()[1].URL()
	name := channelName{"acme", "news"}
	var listeners []*listener
	for _, url := range []string{one, two, two} {
		listeners = append(listeners, mustListen(t, url, name, ""))
	}
	a := until(t, mustDial(t, one), name, 4)
	for i, l := range listeners {
		for {
			var m message
			if e := l.want(t, "message"); json.Unmarshal([]byte(e.data), &m) != nil || m.Data != "hello" || e.id != strconv.FormatUint(m.Position, 10) {
				t.Fatalf("subscriber %d: %+v", i, e)
			}
			if m.Position == a.Position {
				break
			}
		}
	}
	var live map[string]*tally
	for begin := time.Now(); ; { // a node that is slow to answer is left out
		status := get(t, two+"/live", &live)
		if acme := live["acme"]; status == 200 && acme != nil && acme.Admitted >= 1 && acme.Cost >= 4 && acme.P99 > 0 {
			break
		}
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("%d: %+v", status, live["acme"])
		}
	}
	t.Run("bad requests", func(t *testing.T) {
		for _, path := range []string{
			"/channels/news/history?account=", "/channels/a.b/history?account=acme", "/channels/*/history?account=acme",
			"/channels/news/history?account=acme&from=x", "/channels/news/history?account=acme&from=2&to=1", "/channels/news/events",
		} {
			if status := get(t, one+path, nil); status != http.StatusBadRequest {
				t.Errorf("%s: %d", path, status)
			}
		}
		if a, err := mustDial(t, one).publish(name, strings.Repeat("x", maxMessage+1)); err == nil || a.status != http.StatusBadRequest {
			t.Errorf("a message that is too long: %+v, %v", a, err)
		}
		if a, err := mustDial(t, one).publish(name, "\xff"); err == nil || a.status != http.StatusBadRequest {
			t.Errorf("a message that is no UTF-8: %+v, %v", a, err)
		}
	})
}

// One connection publishes more than its limit: it is told which, and when to try again.
// What it was refused costs its channel and its account nothing.
func TestRefusal(t *testing.T) {
	s := start(t, 2)
	url, b := s.Nodes()[0].URL(), newBook()
	begin, c := time.Now(), mustDial(t, url)
	for i := range 200 {
		b.note(c.publish(channelName{"acme", "busy-" + strconv.Itoa(i%10)}, "x"))
	}
	least := 150 - int64(50*time.Since(begin).Seconds()) // 50/s with a burst of 50
	if b.failed > 0 || b.nameless > 0 || b.refused[connectionIn+" rate_exceeded"] < least || len(b.refused) > 1 {
		t.Errorf("%d failed, %d without a name; refused by %v, want at least %d", b.failed, b.nameless, b.refused, least)
	}
	for i := range 10 {
		a, err := mustDial(t, url).publish(channelName{"acme", "busy-" + strconv.Itoa(i)}, "x")
		if err != nil || a.status != http.StatusOK {
			t.Errorf("another connection: %+v, %v", a, err)
		}
	}
	var live map[string]*tally
	if get(t, url+"/live", &live); live["acme"].Admitted != live["acme"].Cost || live["acme"].Refused[connectionIn] != b.refused[connectionIn+" rate_exceeded"] {
		t.Errorf("live: %+v", live["acme"])
	}
}

// One subscriber is sent more than its limit: the publishers are admitted, the others get
// everything, and this one is told of each gap and reads it from history.
func TestGapAndHistory(t *testing.T) {
	s := start(t, 2)
	one, two := s.Nodes()[0], s.Nodes()[1]
	name := channelName{"neighbour", "burst"}
	// A limit of the channel of 50 with a burst of 50 lets a second's worth through at
	// once; this subscriber has half of that, and next to nothing afterwards.
	two.takers.out.Rate, two.takers.out.Burst = limit.PerSecond(1), 25
	slow := mustListen(t, two.URL(), name, "")
	fast := mustListen(t, one.URL(), name, "")
	var positions []uint64
	until(t, mustDial(t, one.URL()), name, 3)
	for i := range 60 {
		a, err := mustDial(t, s.Nodes()[i%2].URL()).publish(name, fmt.Sprint("message ", i))
		if err != nil {
			t.Fatal(err)
		}
		if a.status == http.StatusOK {
			positions = append(positions, a.Position)
		}
	}
	last := positions[len(positions)-1]
	collect := func(l *listener) (messages []uint64, gaps []gapEvent) {
		for reached := uint64(0); reached < last; {
			e, err := l.next()
			if err != nil {
				t.Fatal(err)
			}
			if reached, err = strconv.ParseUint(e.id, 10, 64); err != nil {
				t.Fatal(err)
			}
			if e.kind == "message" {
				messages = append(messages, reached)
				continue
			}
			var g gapEvent
			if err := json.Unmarshal([]byte(e.data), &g); err != nil {
				t.Fatal(err)
			}
			gaps = append(gaps, g)
		}
		return messages, gaps
	}
	if messages, gaps := collect(fast); len(gaps) > 0 || !slices.Contains(messages, last) {
		t.Errorf("the other subscriber has %d messages and %v", len(messages), gaps)
	}
	messages, gaps := collect(slow)
	if len(gaps) == 0 || gaps[0].Limit != connectionOut || gaps[0].Reason != "rate_exceeded" {
		t.Fatalf("%d messages, gaps %+v", len(messages), gaps)
	}
	for _, g := range gaps {
		for path := g.History; path != ""; {
			var p page
			if status := get(t, one.URL()+path, &p); status != 200 {
				t.Fatalf("%s: %d", path, status)
			}
			for _, m := range p.Messages {
				messages = append(messages, m.Position)
			}
			if path = ""; p.Next > 0 {
				path = fmt.Sprintf("/channels/%s/history?account=%s&from=%d&to=%d", name.Channel, name.Account, p.Next, g.To)
			}
		}
	}
	slices.Sort(messages)
	for _, want := range positions {
		if n := len(messages) - len(slices.DeleteFunc(slices.Clone(messages), func(p uint64) bool { return p == want })); n != 1 {
			t.Errorf("position %d was seen %d times, want once, as a message or in the history of a gap", want, n)
		}
	}
	// Who comes back is told what it missed meanwhile.
	again, err := listen(t.Context(), two.URL(), name, strconv.FormatUint(positions[0], 10))
	if err != nil {
		t.Fatal(err)
	}
	defer again.close()
	again.want(t, "attached")
	var g gapEvent
	if e := again.want(t, "gap"); json.Unmarshal([]byte(e.data), &g) != nil || g.From != positions[0]+1 || g.To != last {
		t.Errorf("%+v, want from %d to %d", g, positions[0]+1, last)
	}
}

// Both gauges: connections of an account in all nodes, and channels; a place comes back when
// its connection ends, and a channel's when its last subscriber has gone.
func TestGauges(t *testing.T) {
	s := start(t, 2)
	n := s.Nodes()[0]
	name := channelName{"small", "one"}
	first := mustListen(t, n.URL(), name, "")
	second := mustListen(t, n.URL(), name, "")
	count := func() (with, without int) {
		a := n.takers.attach
		a.mu.Lock()
		defer a.mu.Unlock()
		if p := a.channels[name.key()]; p != nil {
			return len(p.with), len(p.without)
		}
		return 0, 0
	}
	if with, without := count(); with != 1 || without != 1 {
		t.Errorf("%d with a channel's place and %d without, want 1 and 1", with, without)
	}
	await := func(with, without int) {
		t.Helper()
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for late := time.After(30 * time.Second); ; {
			a, b := count()
			if a == with && b == without {
				return
			}
			select {
			case <-late:
				t.Fatalf("%d with a channel's place and %d without, want %d and %d", a, b, with, without)
			case <-tick.C:
			}
		}
	}
	first.close()
	await(1, 0) // the channel's place stays with who stays
	second.close()
	await(0, 0)
	var full string
	for open, begin := 0, time.Now(); open <= 20; {
		asked := time.Now()
		l, err := listen(t.Context(), n.URL(), channelName{"small", "c" + strconv.Itoa(open)}, "")
		if err == nil {
			defer l.close()
			open++
			continue
		}
		if full = err.Error(); open == 20 {
			break
		}
		// A node that has too few places asks for more, and refuses when the coordinator does
		// not answer within 50 ms, as on a busy machine.
		if now := time.Now(); now.Sub(asked) < 50*time.Millisecond || now.Sub(begin) > 30*time.Second {
			t.Fatalf("refused after %d channels and %v, want 20: %s", open, now.Sub(asked), full)
		}
		full = "" // of 21
	}
	if !strings.Contains(full, "429") || !strings.Contains(full, channelMax) || !strings.Contains(full, "concurrency_exceeded") {
		t.Errorf("at 21 channels: %s", full)
	}
}

// An account at a hundred times its limit, over both nodes: at most 1.05 of it in any
// second, and each refusal says by which limit.
func TestBreach(t *testing.T) {
	s := start(t, 2)
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	b := newBook()
	var wg sync.WaitGroup
	const callers, perSecond = 50, 2500
	for i := range callers {
		c := mustDial(t, s.Nodes()[i%2].URL())
		wg.Go(func() {
			name := channelName{"loud", "c" + strconv.Itoa(i)}
			if err := pace(ctx, func() float64 { return perSecond / callers }, float64(i)/callers, func() error {
				a, err := c.publish(name, "x")
				b.note(a, err)
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	worst := b.worstSecond()
	t.Logf("%d attempts, %d admitted, at most %d in a second, refused %v", b.attempted, len(b.times), worst, b.refused)
	if worst > 105 || len(b.times) < 200 || b.nameless > 0 || b.failed > 0 || b.refused[messagesRate+" rate_exceeded"] == 0 {
		t.Errorf("at most %d in any second, want 105; %d admitted; %d refusals without a name", worst, len(b.times), b.nameless)
	}
}

// Publishes that cost 1,001 among publishes that cost 1: at most 1.05 of the limit in cost in
// any second, neither kind is starved, and each subscriber has every message or is told.
func TestCrowd(t *testing.T) {
	begin := time.Now()
	c, err := runCrowd(t.Context(), 2, "limits.yaml", 1500*time.Millisecond)
	took := time.Since(begin)
	if err != nil {
		t.Fatal(err)
	}
	refused, nameless := c.refused()
	fits := crowdLimit*(took.Seconds()+0.05) > float64((1+crowdSize)*c.big.attempted) // with its burst
	if most := c.worstSecond(); most > crowdLimit*105/100 || nameless > 0 || c.big.failed+c.small.failed > 0 || !fits && refused[messagesRate+" rate_exceeded"] == 0 {
		t.Errorf("at most %d in any second, limit %d; refused by %v, %d without a name", most, crowdLimit, refused, nameless)
	}
	// Those to a crowd are twice the limit.
	if big, small := int64(len(c.big.times)), int64(len(c.small.times)); 4*big < c.big.attempted || 3*small < 2*c.small.attempted || big == 0 || small == 0 {
		t.Errorf("admitted %d of %d to a crowd and %d of %d to nobody, want a quarter and two thirds", big, c.big.attempted, small, c.small.attempted)
	}
	for i, r := range c.readers {
		if r.messages+r.dropped == 0 {
			t.Errorf("subscriber %d has nothing", i)
		}
	}
}

// The load generator, over its pipe.
func TestLoad(t *testing.T) {
	s := start(t, 2)
	plan, err := json.Marshal(loadPlan{URLs: []string{s.Nodes()[0].URL(), s.Nodes()[1].URL()}, Account: "loud", Channels: 10})
	if err != nil {
		t.Fatal(err)
	}
	in, say := io.Pipe()
	hear, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := runLoad(t.Context(), in, out)
		_ = out.CloseWithError(err)
		ended <- err
	}()
	lines := bufio.NewScanner(hear)
	fmt.Fprintf(say, "%s\n", plan)
	if !lines.Scan() || lines.Text() != "ready" {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for _, n := range s.Nodes() { // each has heard of the subscribers at the other
		for i := range 10 {
			for late := time.Now().Add(10 * time.Second); n.presence.subscribers(channelName{"loud", "c" + strconv.Itoa(i)}) == 0; <-tick.C {
				if time.Now().After(late) {
					t.Fatalf("no subscriber of channel %d", i)
				}
			}
		}
	}
	begin, attempted := time.Now(), int64(0)
	fmt.Fprintln(say, 500)
	for attempted < 250 && time.Since(begin) < time.Minute {
		<-tick.C
		var live map[string]*tally
		if get(t, s.Nodes()[0].URL()+"/live", &live); live["loud"] != nil {
			attempted = live["loud"].Attempted
		}
	}
	_ = say.Close()
	var r loadReport
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &r) != nil {
		t.Fatalf("%q, %v", lines.Text(), lines.Err())
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	// Each channel begins at once, and is late rather than too early. Its subscriber may
	// leave before its last publish is admitted, which costs one less.
	most := 10 + int64(500*time.Since(begin).Seconds())
	if r.Attempted < 250 || r.Attempted > most || r.Admitted == 0 || r.WorstSecond > 105 || r.Failed+r.Nameless > 0 || r.Cost > 2*int64(r.Admitted) || r.Cost < 2*int64(r.Admitted)-10 {
		t.Errorf("%+v", r)
	}
}

func TestRunRefuses(t *testing.T) {
	for _, args := range [][]string{nil, {"fly"}, {"serve", "-nodes", "0"}, {"serve", "-limits", "none.yaml"}, {"demo", "-x"}} {
		if err := run(t.Context(), args, strings.NewReader(""), io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}

func TestHistogram(t *testing.T) {
	var h, o histogram
	for i := range 1000 {
		h.add(time.Duration(i+1) * time.Millisecond)
	}
	o.merge(&h)
	for q, want := range map[float64]time.Duration{0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond} {
		if got := o.quantile(q); got < want*9/10 || got > want*11/10 {
			t.Errorf("quantile %v is %v, want about %v", q, got, want)
		}
	}
	if (&histogram{}).quantile(0.5) != 0 {
		t.Error("an empty histogram has a quantile")
	}
}

func TestWorstSecond(t *testing.T) {
	times := []admission{{1.5e9, 1}, {0, 3}, {1e9 - 1, 4}, {1e9, 5}}
	if got := worst(times); got != 10 {
		t.Errorf("got %d, want 10: 4, 5 and 1 within a second", got)
	}
}

func TestListenerReads(t *testing.T) {
	l := &listener{r: bufio.NewReader(strings.NewReader(":\n\nevent: gap\nid: 7\ndata: {}\n\n"))}
	if e, err := l.next(); err != nil || e != (event{"gap", "7", "{}"}) {
		t.Errorf("%+v, %v", e, err)
	}
}
