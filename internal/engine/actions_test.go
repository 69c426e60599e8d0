package engine_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// TestBanTimeline is the example of an article, to the second: 2,000 requests in 1,200 s, then a ban
// that ends 3,600 s after the interval in which the client went over; and the same with from: now.
func TestBanTimeline(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for from, seconds := range map[string]int{"period_end": 1200 + 3600, "now": 600 + 3600} {
		b := newBench(t, `
limits:
  - name: article
    key: [ip]
    rate: 2000/1200s
    algorithm: sliding_window_log
    on_exceed: {ban: {for: 3600s, from: `+from+`}}
`)
		take := func(ip string) limit.Decision { return b.take(1, "ip="+ip) }
		// 2,500 in 600 s: the second half of a minute has the ones too many.
		begin, refused, banned := b.now.Load(), 0, 0
		for i := range 2500 {
			b.now.Store(begin + int64(i)*int64(600*time.Second)/2000)
			if i >= 2000 {
				b.now.Store(begin + int64(600*time.Second))
			}
			if d := take("192.0.2.7"); !d.Allowed {
				refused++
				if d.Refused().Reason == limit.ReasonBanned {
					banned++
				}
			}
		}
		if refused != 500 || banned != 500 {
			t.Errorf("%s: %d of 2,500 were refused, %d by the ban; want 500", from, refused, banned)
		}
		for second := 600; second <= seconds; second++ {
			b.now.Store(begin + int64(second)*int64(time.Second))
			d := take("192.0.2.7")
			if want := second >= seconds; d.Allowed != want {
				t.Fatalf("%s: second %d: %+v, want the ban to end at second %d", from, second, d, seconds)
			}
			if wait := time.Duration(seconds-second) * time.Second; d.RetryAfter() != wait {
				t.Fatalf("%s: second %d: retry after %v, want %v", from, second, d.RetryAfter(), wait)
			}
		}
		if d := take("192.0.2.8"); !d.Allowed {
			t.Errorf("%s: another client was refused", from)
		}
	}
}

// TestActions walks through what becomes of requests over a limit.
func TestActions(t *testing.T) {
	b := newBench(t, `
limits:
  - name: own
    match: {path: /own}
    rate: 1/h
    purpose: plan
    on_exceed: {reject: {status: 503, body: later, header: {X-Reason: quota}}}
  - {name: away, match: {path: /away}, rate: 1/h, on_exceed: {redirect: {location: /busy, status: 303}}}
  - {name: less, match: {path: /less}, rate: 1/h, on_exceed: tag}
  - {name: both, match: {path: /less}, rate: 2/h, on_exceed: {tag: {name: X-Serve, value: cache}, ban: {for: 1h, after: 3/h}, reject: 403}}
`)
	if d := b.take(1, "path=/own"); !d.Allowed || d.Action != nil || d.Results[0].Purpose != "plan" {
		t.Errorf("own: %+v", d)
	}
	if d := b.take(1, "path=/own"); d.Allowed || d.Status != 503 || !d.Action.HasBody || d.Action.Body != "later" || d.Action.Header[0].Value != "quota" {
		t.Errorf("own: %+v", d)
	}
	b.take(1, "path=/away")
	if d := b.take(1, "path=/away"); d.Allowed || d.Status != 303 || d.Action.Location != "/busy" {
		t.Errorf("away: %+v", d)
	}
	var got []string
	for range 5 {
		d := b.take(1, "path=/less")
		got = append(got, fmt.Sprintf("%v %d %v", d.Allowed, d.Status, d.Tags))
	}
	want := []string{
		"true 0 []",
		"true 0 [{X-RateLimit-Degraded less}]",
		"true 0 [{X-RateLimit-Degraded less} {X-Serve cache}]",
		"false 403 []", // banned
		"false 403 []",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	less, both := tallyOf(t, b, "less"), tallyOf(t, b, "both")
	if less.Tagged[limit.ReasonRate] != 4 || less.Allowed != 1 || both.Tagged[limit.ReasonRate] != 1 || both.Refused[limit.ReasonBanned]+both.Refused[limit.ReasonRate] != 2 {
		t.Errorf("counted: %+v %+v", less, both)
	}
	// A question changes nothing.
	before := b.peek(1, "path=/less")
	if after := b.peek(1, "path=/less"); before.Allowed || after.Allowed {
		t.Errorf("a peek: %+v, %+v", before, after)
	}
	x, err := explain.Request(context.Background(), b.Engine, limit.Request{Attributes: attributes("path=/away")})
	if err != nil || x.Limits[0].OnExceed != "redirect to /busy with 303" || len(x.Limits[0].Uncarried) != 1 {
		t.Errorf("explain: %+v, %v", x.Limits, err)
	}
}

// A limit that tags refuses no request and takes no more than it has; a limit that refuses, beside
// it, is charged as if it were not there.
func TestTagRefusesNothing(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		r := rand.New(rand.NewPCG(seed, 12))
		rate := 1 + r.IntN(5)
		b := newBench(t, fmt.Sprintf(`
limits:
  - {name: soft, key: [user], rate: %d/minute, algorithm: fixed_window, align: first_hit, on_exceed: tag}
  - {name: hard, key: [user], rate: 5/minute, algorithm: sliding_window_log}
`, rate))
		alone := newBench(t, "limits: [{name: hard, key: [user], rate: 5/minute, algorithm: sliding_window_log}]")
		admitted := 0
		for range 100 {
			d, want := b.take(1, "user=u"), alone.take(1, "user=u")
			if d.Allowed != want.Allowed || d.RetryAfter() != want.RetryAfter() {
				t.Fatalf("seed %d: %+v, want as without the tag: %+v", seed, d, want)
			}
			soft := &d.Results[0]
			if soft.Tagged == soft.Allowed || len(d.Tags) > 0 != (d.Allowed && soft.Tagged) {
				t.Fatalf("seed %d: %+v", seed, d)
			}
			if soft.ResetAfter == 0 || soft.ResetAfter == time.Minute {
				admitted = 0
			}
			if soft.Allowed && d.Allowed {
				if admitted++; admitted > rate {
					t.Fatalf("seed %d: %d without a tag in a minute, want at most %d", seed, admitted, rate)
				}
			}
			step := time.Duration(r.Int64N(int64(20 * time.Second)))
			b.advance(step)
			alone.advance(step)
		}
	}
}

// Requests that no limit matches are counted once each, with the reason.
func TestUnlimitedRequestsAreCounted(t *testing.T) {
	b := newBench(t, "limits: [{name: a, match: {path: /a}, key: [user], rate: 100/h}, {name: free, match: {path: /free}, unlimited: true}]")
	noMatch, unknown := uint64(0), uint64(0)
	check := func(b *bench, what any) {
		t.Helper()
		got := b.Unlimited()
		if got[engine.NoMatch] != noMatch || got[engine.UnknownDomain] != unknown {
			t.Errorf("%v: %v, want %d without a match and %d of an unknown domain", what, got, noMatch, unknown)
		}
	}
	ask := func(attrs ...string) {
		t.Helper()
		b.take(1, attrs...)
		b.peek(1, attrs...)
		check(b, attrs)
	}
	ask("path=/a", "user=u")
	noMatch++
	ask("path=/b")
	ask("path=/a") // the limit a counts it
	ask("path=/free")
	q := &engine.Query{Domain: "nowhere", Descriptors: []engine.Descriptor{{Attributes: attributes("k=v"), Cost: 1}, {Cost: 1}}}
	if err := b.Decide(context.Background(), q); err != nil {
		t.Fatal(err)
	}
	unknown++
	ask("path=/a", "user=u")
	// A rule without a limit says that nothing is to be limited.
	free := newBench(t, "domain: d\ndescriptors: [{key: k}, {key: j, rate_limit: {unit: day, requests_per_unit: 9}}]")
	for _, pair := range []string{"k=v", "other=v"} {
		q := &engine.Query{Domain: "d", Descriptors: []engine.Descriptor{{Attributes: attributes(pair), Cost: 1}}}
		if err := free.Decide(context.Background(), q); err != nil {
			t.Fatal(err)
		}
	}
	unknown = 0
	check(free, "a rule without a limit, and no rule")
}

// Bans survive a reload, also one that changes the limit, and are gone with it.
func TestBansSurviveAReload(t *testing.T) {
	const limits = "limits: [{name: a, key: [ip], rate: %s, on_exceed: {ban: {for: %s, after: 2/minute}}}]"
	b := newBench(t, fmt.Sprintf(limits, "1/minute", "1h"))
	for range 3 {
		b.take(1, "ip=192.0.2.7")
	}
	bans := func() int {
		k, _ := b.BanKeeper()
		n := 0
		for _, of := range b.Banners("a") {
			list, _, err := k.Bans(context.Background(), of.Counters, "", 10)
			if err != nil {
				t.Fatal(err)
			}
			n += len(list)
		}
		return n
	}
	for _, next := range []string{fmt.Sprintf(limits, "1/minute", "1h"), fmt.Sprintf(limits, "500/minute", "2h")} {
		if err := b.Swap(parse(t, next)); err != nil {
			t.Fatal(err)
		}
		if d := b.take(1, "ip=192.0.2.7"); d.Allowed || bans() != 1 {
			t.Errorf("after %s: %+v, %d bans", next, d, bans())
		}
	}
}
