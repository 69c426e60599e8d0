package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
)

func TestLeasedLimits(t *testing.T) {
	s := mustParse(t, `limits:
  - name: plain
    rate: 10/s
    sharing: leased
  - name: full
    key: [account]
    rate: 10000/s
    sharing: leased
    lease: {allocation: max_min, safe: 100/s, guarantees: {9: 5/s, 0: 500/s}}
  - name: proportional
    rate: 10000/s
    sharing: leased
    lease: {allocation: proportional}
  - name: places
    algorithm: concurrency
    max_in_flight: 9
    sharing: leased
    lease: {safe: 1, guarantees: {3: 2}}
`)
	if w := s.Warnings(); len(w) > 0 {
		t.Errorf("warnings: %v", w)
	}
	for i, want := range []Lease{
		{},
		{
			Safe:       limit.PerSecond(100),
			Guarantees: []Guarantee{{Band: 0, Rate: limit.PerSecond(500)}, {Band: 9, Rate: limit.PerSecond(5)}},
		},
		{Allocation: AllocationProportional},
		{SafePlaces: 1, Guarantees: []Guarantee{{Band: 3, Places: 2}}},
	} {
		got := s.Limits()[i].Lease
		if got.Allocation != want.Allocation || got.Safe != want.Safe || got.SafePlaces != want.SafePlaces || !slices.Equal(got.Guarantees, want.Guarantees) {
			t.Errorf("limit %d: %+v, want %+v", i, got, want)
		}
	}
}

// Guarantees are good exactly when the limit, and each override, has their sum.
func TestGuaranteesAboveTheLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	periods := []struct {
		unit    string
		perHour int64
	}{{"s", 3600}, {"minute", 60}, {"hour", 1}, {"10s", 360}}
	rate := func(most int64) (text string, perHour int64) {
		p := periods[r.IntN(len(periods))]
		n := 1 + r.Int64N(most)
		return fmt.Sprintf("%d/%s", n, p.unit), n * p.perHour
	}
	refused := 0
	for range 2000 {
		base, has := rate(100)
		over, has2 := rate(100)
		first, a := rate(40)
		second, b := rate(40)
		src := fmt.Sprintf("limits: [{name: a, key: user, rate: %s, sharing: leased, lease: {guarantees: {1: %s, 7: %s}}, overrides: [{when: {user: u}, rate: %s}]}]", base, first, second, over)
		_, err := Parse("f", []byte(src))
		if want := a+b > min(has, has2); (err != nil) != want {
			t.Fatalf("%s: %v", src, err)
		}
		if err != nil {
			refused++
		}
	}
	if refused < 200 || refused > 1800 {
		t.Fatalf("%d of 2000 refused: the files try one side only", refused)
	}
}

func TestLeasedWarnings(t *testing.T) {
	for src, want := range map[string]string{
		"rate: 8/day, sharing: leased":                       "rounded down to 92 millionths",
		"rate: 9/s, sharing: leased, shadow: true":           "shadow and enforce",
		"rate: 9/s, sharing: leased, enforce: 50%, key: [a]": "shadow and enforce",
		"rate: 9/s, sharing: suppressed, shadow: true":       "shadow and enforce",
	} {
		if w := mustParse(t, "limits: [{name: a, "+src+"}]").Warnings(); len(w) != 1 || !strings.Contains(w[0].Message, want) {
			t.Errorf("%s: %v, want %q", src, w, want)
		}
	}
}

// A key says which override holds, as the request does whose key it is.
func TestVariantByKey(t *testing.T) {
	s := mustParse(t, `limits:
  - name: a
    key: [user, ip]
    rate: 10/s
    sharing: leased
    overrides:
      - {when: {user: acme}, rate: 20/s}
      - {when: {user: "b*", ip: 10.0.0.0/8}, rate: 30/s}
      - {when: 'attributes["user"] == "cel"', rate: 40/s}
`)
	l := s.Limits()[0]
	for _, c := range []struct {
		user, ip string
		rate     int64
	}{
		{"acme", "192.0.2.7", 20},
		{"acme2", "192.0.2.7", 10},
		{"bob", "10.1.2.3", 30},
		{"bob", "::ffff:10.1.2.3", 30},
		{"bob", "11.1.2.3", 10},
		{"cel", "2001:db8::1", 40},
		{"x", "not an address", 10},
		{strings.Repeat("b", 200), "10.1.2.3", 10},
	} {
		attrs := []limit.Attribute{{Name: "user", Value: c.user}, {Name: "ip", Value: c.ip}}
		matched, _ := s.Match("", attrs, nil, nil)
		key, ok := l.KeyOf(c.user, c.ip)
		if !ok || len(matched) != 1 || string(matched[0].Key) != string(key) {
			t.Fatalf("%v: the key is %q, of a request it is %q", c, key, matched[0].Key)
		}
		told, ok := l.KeyAttributes(key)
		if !ok {
			t.Fatalf("%v: %q is not a key", c, key)
		}
		if v := s.VariantFor(l, told); v.Policy.Rate != limit.PerSecond(c.rate) {
			t.Errorf("%v: %v, want %d/s", c, v.Policy.Rate, c.rate)
		}
		values := make([]string, len(told))
		for i := range told {
			values[i] = told[i].Value
		}
		if again, ok := l.KeyOf(values...); ok && string(again) != string(key) {
			t.Errorf("%v: the key of %v is %q, want %q", c, told, again, key)
		}
	}
	if _, ok := l.KeyOf("one"); ok {
		t.Error("one value is a key of two")
	}
	for _, key := range []string{"", "\x01a", "\x01a\x01b\x01c", "\x05a\x01b", "\xfd\x01\x02\x03\x04\x01b", "\x01a\xfd\x01", "\xf0\x01b"} {
		if attrs, ok := l.KeyAttributes([]byte(key)); ok {
			t.Errorf("%q is a key: %v", key, attrs)
		}
	}
}

// Busy is another word for max_min. The thresholds of the rule that it stood for are read, and warned of.
func TestBusyIsMaxMin(t *testing.T) {
	for options, warnings := range map[string]int{
		"allocation: busy": 0, "allocation: busy, guarantees: {1: 5/s}": 0,
		"allocation: busy, tolerance: 0.2": 1, "allocation: busy, change: 0.01": 1, "allocation: busy, tolerance: 0.05, change: 0.05": 2,
	} {
		s := mustParse(t, "limits:\n  - {name: l, rate: 100/s, sharing: leased, lease: {"+options+"}}\n")
		if got := s.Limits()[0].Lease.Allocation; got != AllocationMaxMin {
			t.Errorf("%s: %v", options, got)
		}
		if got := s.Warnings(); len(got) != warnings {
			t.Errorf("%s: %v, want %d warnings", options, got, warnings)
		}
	}
}
