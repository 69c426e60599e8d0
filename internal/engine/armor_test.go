package engine_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/redis"
)

func armorEngine(t *testing.T, st store.Store, policy string) *engine.Engine {
	t.Helper()
	set, err := rules.Parse("armor.yaml", []byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(st, set, engine.Options{Derive: func(*rules.Set) engine.Deriver { return derivesIP{} }})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// derivesIP stands for a server, which derives user_ip from ip where its own files name no header fields.
type derivesIP struct{}

func (derivesIP) Derives(name string) bool { return name == "user_ip" }
func (derivesIP) Needs([]string) []string  { return []string{"ip"} }

func (derivesIP) Translates(string) bool                                { return false }
func (derivesIP) Translate(entries []limit.Attribute) []limit.Attribute { return entries }
func (derivesIP) Derive(_ []string, attrs []limit.Attribute) []limit.Attribute {
	ip, ok := limit.Request{Attributes: attrs}.Get("ip")
	if !ok {
		return attrs
	}
	return append(slices.Clone(attrs), limit.Attribute{Name: "user_ip", Value: ip})
}

// counts is a deriver that counts how often it derives.
type counts struct {
	derivesIP
	n *int
}

func (c counts) Derive(names []string, attrs []limit.Attribute) []limit.Attribute {
	*c.n++
	return c.derivesIP.Derive(names, attrs)
}

// Attributes are derived once for a request, whichever way it takes.
func TestDerivedOnce(t *testing.T) {
	for _, text := range []string{
		"limits: [{name: a, key: [user_ip], rate: 3/h, burst: 3}, {name: flight, key: [user_ip], algorithm: concurrency, max_in_flight: 9, timeout: 1h}]",
		"limits: [{name: a, key: [user_ip], rate: 3/h, burst: 3}, {name: queue, match: {queue: yes}, key: [user_ip], rate: 1/s, on_exceed: {queue: {max_wait: 1s}}}]",
	} {
		n := 0
		e, err := engine.New(memory.New(memory.Options{}), parse(t, text), engine.Options{Derive: func(*rules.Set) engine.Deriver { return counts{n: &n} }})
		if err != nil {
			t.Fatal(err)
		}
		req := limit.Request{Attributes: attributes("ip=192.0.2.7"), Cost: 1}
		for i, way := range []func() error{
			func() error { _, err := e.Take(t.Context(), req); return err },
			func() error { _, err := e.TakeWithin(t.Context(), req, time.Second); return err },
			func() error { _, err := e.TakeInLine(t.Context(), req, time.Second); return err },
			func() error { return e.Finish(t.Context(), req, 1) },
			func() error { return e.Keep(t.Context(), req, 1) },
			func() error { _, _, _, err := e.TakeParts(t.Context(), req); return err },
		} {
			n = 0
			if err := way(); err != nil || n != 1 {
				t.Errorf("%s: way %d derives %d times, %v", text, i, n, err)
			}
		}
		d, err := e.Take(t.Context(), limit.Request{Attributes: req.Attributes, Peek: true})
		if err != nil || d.Allowed || d.Results[0].Limit != "a" {
			t.Errorf("what is derived is not used: %+v, %v", d, err)
		}
	}
}

func ask(t *testing.T, e *engine.Engine, attributes ...string) limit.Decision {
	t.Helper()
	var req limit.Request
	for i := 0; i < len(attributes); i += 2 {
		req.Attributes = append(req.Attributes, limit.Attribute{Name: attributes[i], Value: attributes[i+1]})
	}
	d, err := e.Take(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// policyOf is a policy of one rule for everybody.
func policyOf(action, options string) string {
	return `{name: edge, rules: [{action: ` + action + `, priority: 1000, match: {versionedExpr: SRC_IPS_V1, config: {srcIpRanges: ["*"]}},
  rateLimitOptions: {conformAction: allow, exceedAction: "deny(403)", rateLimitThreshold: {count: 2000, intervalSec: 1200}, ` + options + `}}]}`
}

// The article's example, E26: a client that sends 2,500 within 1,200 seconds has exactly 500 refused,
// whenever in them they come, and is admitted again as the first ones leave the window.
func TestArmorThrottle(t *testing.T) {
	for _, spread := range []time.Duration{0, time.Second, 1199 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			e := armorEngine(t, memory.New(memory.Options{}), policyOf("throttle", "enforceOnKey: IP"))
			refused := 0
			for i := range 2500 {
				d := ask(t, e, "ip", "192.0.2.1")
				if !d.Allowed {
					refused++
				}
				if !d.Allowed && d.Status != 403 {
					t.Fatalf("status %d", d.Status)
				}
				if i < 2499 {
					time.Sleep(spread / 2500)
				}
			}
			if refused != 500 {
				t.Errorf("over %v: %d of 2500 refused, want 500", spread, refused)
			}
			if d := ask(t, e, "ip", "192.0.2.2"); !d.Allowed {
				t.Error("another client is refused")
			}
		})
	}
}

// A client above 2,000 is banned until its interval of 1,200 seconds has ended and 3,600 seconds more; E26.
func TestArmorBanTimeline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := armorEngine(t, memory.New(memory.Options{}), policyOf("rate_based_ban", "banDurationSec: 3600, enforceOnKey: IP"))
		time.Sleep(777 * time.Millisecond)
		begin := time.Now()
		at := func(d time.Duration) limit.Decision {
			time.Sleep(time.Until(begin.Add(d)))
			return ask(t, e, "ip", "192.0.2.1")
		}
		for i := range 2000 {
			if d := ask(t, e, "ip", "192.0.2.1"); !d.Allowed {
				t.Fatalf("request %d: %+v", i, d)
			}
		}
		const until = (1200 + 3600) * time.Second
		for _, c := range []struct {
			at      time.Duration
			allowed bool
		}{
			{600 * time.Second, false},
			{1199 * time.Second, false},
			{1200 * time.Second, false}, // the interval has ended, the ban has not
			{3600 * time.Second, false},
			{until - time.Second, false},
			{until - time.Nanosecond, false},
			{until, true},
		} {
			d := at(c.at)
			if d.Allowed != c.allowed {
				t.Errorf("after %v: allowed %v", c.at, d.Allowed)
			}
			if !d.Allowed && (d.RetryAfter() != until-c.at || !strings.Contains(fmt.Sprint(d.Results), "banned")) {
				t.Errorf("after %v: again in %v, want %v: %+v", c.at, d.RetryAfter(), until-c.at, d.Results)
			}
		}
	})
}

// Two servers, in two regions, share one count by one Redis: exactly 2,000 are admitted, and a ban holds for
// both.
func TestArmorCountsOnceForAllRegions(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	addr := redistest.Start(t).Addr()
	open := func(policy string) [2]*engine.Engine {
		var both [2]*engine.Engine
		for i := range both {
			st, err := redis.New(redis.Options{Addrs: []string{addr}, Timeout: 5 * time.Second})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { st.Close() })
			both[i] = armorEngine(t, st, policy)
		}
		return both
	}
	both := open(policyOf("throttle", "enforceOnKey: IP"))
	allowed := 0
	for i := range 2500 {
		if ask(t, both[i%2], "ip", "192.0.2.1").Allowed {
			allowed++
		}
	}
	if allowed != 2000 {
		t.Errorf("%d of 2500 admitted in two regions, want 2000", allowed)
	}
	both = open(strings.Replace(policyOf("rate_based_ban", "banDurationSec: 3600, enforceOnKey: IP"), "count: 2000", "count: 20", 1))
	for range 21 {
		ask(t, both[0], "ip", "192.0.2.3")
	}
	if d := ask(t, both[1], "ip", "192.0.2.3"); d.Allowed || d.RetryAfter() < 4790*time.Second || d.RetryAfter() > 4800*time.Second {
		t.Errorf("banned by one region, the other says %+v", d)
	}
}

// Up to three keys together; what a request lacks counts as one value, USER_IP falls back to the address, and a
// value counts by its first 128 bytes.
func TestArmorKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		policy := strings.Replace(policyOf("throttle", "enforceOnKeyConfigs: [{enforceOnKeyType: USER_IP}, {enforceOnKeyType: HTTP_COOKIE, enforceOnKeyName: session}, {enforceOnKeyType: HTTP_HEADER, enforceOnKeyName: X-Key}]"), "count: 2000", "count: 1", 1)
		policy = strings.Replace(policy, "{name: edge,", "{name: edge, advancedOptionsConfig: {userIpRequestHeaders: [True-Client-IP, X-Real]},", 1)
		e := armorEngine(t, memory.New(memory.Options{}), policy)
		long := strings.Repeat("x", 128)
		for i, c := range []struct {
			attributes string
			allowed    bool
		}{
			{"ip 192.0.2.1 cookie:session a header:x-key k", true},
			{"ip 192.0.2.1 cookie:session a header:x-key k", false},
			{"ip 192.0.2.1 cookie:session b header:x-key k", true},
			{"ip 192.0.2.1 cookie:session a header:x-key l", true},
			{"ip 192.0.2.2 cookie:session a header:x-key k", true},
			{"ip 192.0.2.1 header:x-key k", true}, // without the cookie: one key
			{"ip 192.0.2.1 header:x-key k", false},
			{"ip 192.0.2.1 cookie:session a header:x-key " + long + "1", true},
			{"ip 192.0.2.1 cookie:session a header:x-key " + long + "2", false}, // the same 128 bytes
			{"ip 192.0.2.1 cookie:session a header:x-key k header:true-client-ip 198.51.100.1", true},
			{"ip 192.0.2.9 cookie:session a header:x-key k header:true-client-ip 198.51.100.1", false},
			{"ip 192.0.2.9 cookie:session a header:x-key k header:true-client-ip nonsense header:x-real 198.51.100.1", false},
			{"ip 192.0.2.1 cookie:session a header:x-key k header:true-client-ip nonsense", false}, // the address
			{"ip 2001:db8::1 cookie:session a header:x-key k", true},
			{"ip 2001:db8::2 cookie:session a header:x-key k", false}, // of one /64
		} {
			if d := ask(t, e, strings.Fields(c.attributes)...); d.Allowed != c.allowed {
				t.Errorf("%d: %.90s: allowed %v", i, c.attributes, d.Allowed)
			}
		}
	})
}

// armorModel is what Cloud Armor's documentation says, said again: rules in the order of priority, the first
// that matches decides.
type armorModel struct {
	rules []modelRule
	logs  map[string][]time.Time // of a throttle, by rule and key
	bans  map[string]*modelBan
}

type modelRule struct {
	priority, count, ban, threshold int
	interval                        int
	action, network, prefix         string
	preview                         bool
	key                             string
}

type modelBan struct {
	begin, until time.Time
	attempts     int
}

func (m *armorModel) decide(now time.Time, ip, path string) (allowed bool, status int) {
	for i, r := range m.rules {
		if r.network != "" && !netip.MustParsePrefix(r.network).Contains(netip.MustParseAddr(ip)) || !strings.HasPrefix(path, r.prefix) || r.preview {
			continue
		}
		key := fmt.Sprint(i)
		switch r.key {
		case "IP":
			key += ip
		case "HTTP_PATH":
			key += path
		}
		interval := time.Duration(r.interval) * time.Second
		switch r.action {
		case "allow":
			return true, 0
		case "deny(404)":
			return false, 404
		case "throttle":
			log := slices.DeleteFunc(m.logs[key], func(t time.Time) bool { return !t.After(now.Add(-interval)) })
			if allowed = len(log) < r.count; allowed {
				log = append(log, now)
			}
			m.logs[key] = log
			return allowed, 429
		}
		b := m.bans[key]
		if b == nil || !now.Before(b.begin.Add(interval)) && !now.Before(b.until) {
			b = &modelBan{begin: now}
			m.bans[key] = b
		}
		if b.attempts++; b.attempts > r.count+r.threshold {
			b.until = b.begin.Add(interval + time.Duration(r.ban)*time.Second)
		}
		return b.attempts <= r.count, 429
	}
	return true, 0
}

// drawArmor draws a policy and its model.
func drawArmor(rng *rand.Rand) (string, *armorModel) {
	m := &armorModel{logs: map[string][]time.Time{}, bans: map[string]*modelBan{}}
	var texts []string
	for i := range 1 + rng.IntN(6) {
		r := modelRule{
			priority: (i*7919 + rng.IntN(7000)) * 3, count: 1 + rng.IntN(6), ban: 1 + rng.IntN(20), interval: 1 + rng.IntN(12), preview: rng.IntN(6) == 0,
			action: []string{"allow", "deny(404)", "throttle", "throttle", "rate_based_ban", "rate_based_ban"}[rng.IntN(6)],
			key:    []string{"ALL", "IP", "HTTP_PATH"}[rng.IntN(3)],
		}
		match := `{versionedExpr: SRC_IPS_V1, config: {srcIpRanges: ["*"]}}`
		switch rng.IntN(3) {
		case 0:
			r.network = fmt.Sprintf("10.0.%d.0/24", rng.IntN(3))
			match = `{versionedExpr: SRC_IPS_V1, config: {srcIpRanges: ["` + r.network + `"]}}`
		case 1:
			r.network, r.prefix = "10.0.0.0/15", fmt.Sprintf("/%c", 'a'+rng.IntN(3))
			match = `{expr: {expression: "request.path.startsWith('` + r.prefix + `') && inIpRange(origin.ip, '10.0.0.0/15')"}}`
		}
		options := fmt.Sprintf(`, rateLimitOptions: {conformAction: allow, exceedAction: deny-429, rateLimitThreshold: {count: %d, intervalSec: %d}, enforceOnKey: %s`, r.count, r.interval, r.key)
		if r.action == "rate_based_ban" {
			options += fmt.Sprintf(", banDurationSec: %d", r.ban)
			if rng.IntN(2) == 0 {
				r.threshold = 1 + rng.IntN(4)
				options += fmt.Sprintf(", banThreshold: {count: %d, intervalSec: %d}", r.threshold, r.interval)
			}
		}
		if options += "}"; r.action == "allow" || r.action == "deny(404)" {
			options = ""
		}
		texts = append(texts, fmt.Sprintf(`{action: "%s", priority: %d, preview: %v, match: %s%s}`, r.action, r.priority, r.preview, match, options))
		m.rules = append(m.rules, r)
	}
	slices.SortFunc(m.rules, func(a, b modelRule) int { return a.priority - b.priority })
	rng.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	return "{name: p, rules: [" + strings.Join(texts, ", ") + "]}", m
}

// Policies drawn at random decide as the model does, request by request.
func TestArmorAgainstAModel(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 300) {
		rng := rand.New(rand.NewPCG(seed, 26))
		synctest.Test(t, func(t *testing.T) {
			policy, m := drawArmor(rng)
			e := armorEngine(t, memory.New(memory.Options{}), policy)
			for step := range 120 {
				time.Sleep(time.Duration(rng.IntN(4)) * 500 * time.Millisecond)
				ip, path := fmt.Sprintf("10.%d.%d.%d", rng.IntN(3), rng.IntN(3), rng.IntN(2)), fmt.Sprintf("/%c/%d", 'a'+rng.IntN(3), rng.IntN(2))
				want, status := m.decide(time.Now(), ip, path)
				d := ask(t, e, "ip", ip, "path", path)
				if d.Allowed != want || !want && d.Status != status {
					t.Fatalf("seed %d, step %d: %s %s: allowed %v with %d, the model says %v with %d\n%s\n%+v", seed, step, ip, path, d.Allowed, d.Status, want, status, policy, d.Results)
				}
			}
		})
	}
}
