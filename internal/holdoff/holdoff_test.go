package holdoff

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/answer/reader"
	"github.com/stint-io/stint/limit"
)

const second = limit.Time(time.Second)

func quota(name string, remaining int64, reset time.Duration) reader.Quota {
	return reader.Quota{Policy: name, Remaining: remaining, Reset: reset}
}

func TestHolds(t *testing.T) {
	wait := reader.Standing{RetryAfter: 7 * time.Second, Wait: true}
	for _, tt := range []struct {
		name        string
		s           reader.Standing
		refused     bool
		same, other limit.Time // until when the scope and another one are held
	}{
		{"nothing said", reader.Standing{}, true, 0, 0},
		{"Retry-After of a refusal", wait, true, 7, 7},
		{"Retry-After of another answer", wait, false, 0, 0},
		{"longer than may be", reader.Standing{RetryAfter: reader.Longest, Wait: true}, true, 60, 60},
		{"policy used up by an admitted request", reader.Standing{Quotas: []reader.Quota{quota("a", 0, 5*time.Second), quota("b", 1, 9*time.Second)}}, false, 5, 0},
		{"policy that says no time", reader.Standing{Quotas: []reader.Quota{quota("a", 0, limit.Never)}}, false, 0, 0},
		{"policy that refuses", reader.Standing{RetryAfter: 7 * time.Second, Wait: true, Quotas: []reader.Quota{quota("a", 0, 7*time.Second)}}, true, 7, 0},
		{"policy that refuses without Retry-After", reader.Standing{Quotas: []reader.Quota{quota("a", 0, 5*time.Second)}}, true, 5, 0},
		{"redirect that has a Retry-After", reader.Standing{RetryAfter: 9 * time.Second, Wait: true, Quotas: []reader.Quota{quota("a", 0, 5*time.Second)}}, false, 5, 0},
		{"policy that refuses and says no time", reader.Standing{RetryAfter: 7 * time.Second, Wait: true, Quotas: []reader.Quota{quota("a", 0, limit.Never)}}, true, 7, 0},
		{"refused for another reason than its policies", reader.Standing{RetryAfter: 7 * time.Second, Wait: true, Quotas: []reader.Quota{quota("a", 3, 9*time.Second)}}, true, 7, 7},
		{"without names", reader.Standing{Quotas: []reader.Quota{{Reset: 5 * time.Second}}}, false, 5, 5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, now := New(time.Minute), 1000*second
			b.Heard(now, "/login", tt.s, tt.refused)
			for scope, want := range map[string]limit.Time{"/login": tt.same, "/home": tt.other} {
				got, _ := b.Until(now, scope)
				if want > 0 {
					want = now + want*second
				}
				if got != want {
					t.Errorf("%s is held until %v, want %v", scope, got, want)
				}
			}
		})
	}
}

// TestSharedPolicy: two scopes that met the same policy are held back by it together, and by its
// partition alone; an answer that overtakes another does not shorten a hold.
func TestSharedPolicy(t *testing.T) {
	b, now := New(time.Minute), 1000*second
	b.Heard(now, "/a", reader.Standing{Quotas: []reader.Quota{quota("all", 5, 0)}}, false)
	b.Heard(now, "/b", reader.Standing{Quotas: []reader.Quota{quota("all", 0, 9*time.Second)}}, false)
	b.Heard(now, "/b", reader.Standing{Quotas: []reader.Quota{quota("all", 0, 3*time.Second)}}, false)
	if got, by := b.Until(now, "/a"); got != now+9*second || by != "all" {
		t.Errorf("/a is held until %v by %s, want 9 s by all", got-now, by)
	}
	b.Heard(now, "/c", reader.Standing{Quotas: []reader.Quota{{Policy: "all", Partition: "other", Remaining: 3}}}, false)
	if got, _ := b.Until(now, "/c"); got > now {
		t.Error("a partition is held back for another one")
	}
	if b.Latest() != now+9*second {
		t.Errorf("the last hold ends at %v", b.Latest())
	}
}

// TestBounds: whatever a server names, the book stays small, no hold is longer than Longest, and
// one that is in force is not forgotten for others that are not.
func TestBounds(t *testing.T) {
	r := seeding.Rand(t)
	b, now := New(time.Minute), 1000*second
	b.Heard(now, "/kept", reader.Standing{Quotas: []reader.Quota{quota("kept", 0, time.Minute)}}, false)
	for i := range 20_000 {
		s := reader.Standing{RetryAfter: time.Duration(r.Int64N(int64(reader.Longest))), Wait: r.IntN(2) == 0}
		for range r.IntN(16) {
			s.Quotas = append(s.Quotas, quota(fmt.Sprint(r.IntN(1000)), r.Int64N(2), time.Duration(r.Int64N(int64(time.Hour)))))
		}
		b.Heard(now, fmt.Sprint("/", i), s, false)
		if len(b.policies) > maxPolicies || len(b.scopes) > maxScopes {
			t.Fatalf("%d policies and %d scopes", len(b.policies), len(b.scopes))
		}
		if b.Latest() > now+60*second {
			t.Fatalf("held for %v", time.Duration(b.Latest()-now))
		}
	}
	if b.policies[policy{"kept", ""}] != now+60*second {
		t.Error("a hold in force was forgotten")
	}
	now += 61 * second // the others are not in force any more, and make room
	b.Heard(now, "/new", reader.Standing{Quotas: []reader.Quota{quota("new", 0, time.Second)}}, false)
	if until, by := b.Until(now, "/new"); until != now+second || by != "new" {
		t.Errorf("held until %v by %s, want a second by the new policy", until, by)
	}
}
