package cluster

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// TestRosterByHand: a member is alive for three intervals after its last change, and its record is dead
// after sixty.
func TestRosterByHand(t *testing.T) {
	oneGoroutine(t)
	r := newRoster(Member{ID: "b"}, time.Second)
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	seen := func(a, c uint64) map[string]sighting {
		m := map[string]sighting{"presence/a": {member: Member{ID: "a"}, revision: a}}
		if c > 0 {
			m["presence/c"] = sighting{member: Member{ID: "c"}, revision: c}
		}
		return m
	}
	for _, step := range []struct {
		now    float64
		list   map[string]sighting
		alive  string
		stable bool
		dead   int
	}{
		{0, seen(1, 0), "a b", false, 0},
		{2, seen(2, 0), "a b", false, 0},
		{2.9, nil, "a b", false, 0},
		{3, nil, "a b", true, 0}, // three intervals since the set has changed
		{4, seen(3, 9), "a b c", false, 0},
		{5, seen(4, 9), "a b c", false, 0},
		{6.9, seen(5, 9), "a b c", false, 0},
		{7, seen(6, 9), "a b", false, 0}, // c was silent for three
		{9.9, seen(7, 9), "a b", false, 0},
		{10, seen(8, 9), "a b", true, 0},
		{13, nil, "b", false, 0}, // and the list is old
		{16, nil, "b", false, 0},
		{20, seen(8, 9), "b", false, 0}, // the first after an outage, to which a has not written yet
		{21, seen(9, 9), "a b", false, 0},
		{23, seen(10, 9), "a b", false, 0},
		{24, seen(10, 9), "a b", true, 0},
		{63.9, seen(11, 9), "a b", false, 0},
		{64, seen(12, 9), "a b", false, 1}, // c has been silent for sixty
		{65, seen(13, 0), "a b", false, 0},
		{66, seen(14, 9), "a b c", false, 0}, // it was deleted and is back
	} {
		var dead []string
		if step.list != nil {
			dead = r.list(at(step.now), step.list)
		}
		r.count(at(step.now))
		var ids []string
		for _, m := range r.alive {
			ids = append(ids, m.ID)
		}
		if got := strings.Join(ids, " "); got != step.alive || r.stable(at(step.now)) != step.stable || len(dead) != step.dead {
			t.Errorf("at %v s: alive %q, stable %v, %d dead; want %q, %v, %d", step.now, got, r.stable(at(step.now)), len(dead), step.alive, step.stable, step.dead)
		}
	}
}

// TestRosterOfRandomMembers: whoever wrote within the last interval is alive at each list, whoever was
// silent for four is not, and this member always is.
func TestRosterOfRandomMembers(t *testing.T) {
	oneGoroutine(t)
	for seed := range seeding.Draw(t, 100) {
		r := rand.New(rand.NewPCG(seed, 3))
		self := Member{ID: "self"}
		roster := newRoster(self, time.Second)
		records, last := map[string]sighting{}, map[string]time.Duration{}
		revision, now := uint64(0), time.Duration(0)
		for range 200 {
			now += time.Duration(r.Int64N(int64(time.Second)))
			for i := range 6 {
				id := fmt.Sprint("m", i)
				if r.IntN(10) < 3 {
					revision++
					records["presence/"+id] = sighting{member: Member{ID: id}, revision: revision}
					last["presence/"+id] = now
				}
			}
			if r.IntN(20) == 0 {
				key := fmt.Sprint("presence/m", r.IntN(6))
				delete(records, key)
				delete(last, key)
			}
			roster.list(now, maps.Clone(records))
			if !slices.Contains(roster.alive, self) || !slices.IsSortedFunc(roster.alive, func(a, b Member) int { return strings.Compare(a.ID, b.ID) }) {
				t.Fatalf("seed %d: %v", seed, roster.alive)
			}
			for key, at := range last {
				alive := slices.Contains(roster.alive, records[key].member)
				if now-at <= time.Second && !alive || now-at > 4*time.Second && alive {
					t.Fatalf("seed %d at %v: %s wrote at %v, alive %v", seed, now, key, at, alive)
				}
			}
		}
	}
}

// TestKnownMembers: a member that has gone is known for 3600 lists, with the address that it had last, however long the
// register does not answer in between.
func TestKnownMembers(t *testing.T) {
	oneGoroutine(t)
	r := newRoster(Member{ID: "self"}, time.Second)
	now, revision := time.Duration(0), uint64(0)
	list := func(n int, records ...Member) {
		for range n {
			now, revision = now+time.Second, revision+1
			seen := map[string]sighting{"presence/self": {member: Member{ID: "self"}, revision: revision}}
			for _, m := range records {
				seen["presence/"+m.ID] = sighting{member: m, revision: revision}
			}
			r.list(now, seen)
		}
	}
	known := func(when string, want ...Member) {
		t.Helper()
		if got := (&Presence{roster: r}).Known(); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	a, moved, b := Member{"a", "1.2.3.4:1"}, Member{"a", "1.2.3.4:2"}, Member{"b", "1.2.3.4:3"}
	list(3)
	known("alone")
	list(5, b, a)
	known("both live", a, b)
	list(1, moved)
	known("it has moved", moved, b)
	now += 100 * time.Hour
	list(3598, moved)
	known("3599 lists later", moved, b)
	list(1)
	known("3600 lists later", moved)
	list(3600)
	known("an hour later")
}

// TestEscape: no two IDs have one key, and each key is one of a Register.
func TestEscape(t *testing.T) {
	oneGoroutine(t)
	keys := map[string]string{}
	for _, id := range []string{"a", "a_b", "a/b", "a b", "a_20b", "a_2fb", "Ä", "é.x-y", "_", "__", "_5f"} {
		key := presencePrefix + escape(id)
		if was, ok := keys[key]; ok || !isKey(key) {
			t.Errorf("%q is %q, as %q", id, key, was)
		}
		keys[key] = id
	}
}

// TestYield: where another member should lead, a candidate waits half a TTL longer for it, and no
// longer: it takes the record if nobody else does.
func TestYield(t *testing.T) {
	oneGoroutine(t)
	leaves := func(preferred, resigns bool) (leader *node, took time.Duration) {
		w := newWorld(t, 0, 1, faults{delay: 10 * time.Millisecond})
		a := w.members[0]
		a.step(tick{})
		w.runUntil("A leads", a.leads)
		b, c := w.join("B", "runB"), w.join("C", "runC")
		b.cfg.yield = func(holder string) bool {
			if holder != a.cfg.self.ID && holder != c.cfg.self.ID {
				t.Errorf("B asks about %q", holder)
			}
			return true
		}
		b.step(tick{})
		if preferred {
			c.step(tick{})
		}
		w.run(ttl)
		begun := w.now
		if resigns {
			a.step(retire{stop: true})
		} else {
			a.cut = true
			begun += patience(ttl)
		}
		w.runUntil("one leads", func() bool { return b.leads() || c.leads() })
		if c.leads() {
			return c, w.now - begun
		}
		return b, w.now - begun
	}
	if leader, took := leaves(true, true); leader.name != "C" || took > ttl/renewalsPerTTL+100*time.Millisecond {
		t.Errorf("%s leads after %v, want C at once", leader.name, took)
	}
	if leader, took := leaves(false, true); leader.name != "B" || took < ttl/yieldPart || took > ttl/yieldPart+ttl/renewalsPerTTL+100*time.Millisecond {
		t.Errorf("%s leads after %v, want B after %v", leader.name, took, ttl/yieldPart)
	}
	if leader, took := leaves(true, false); leader.name != "C" || took > ttl/renewalsPerTTL+100*time.Millisecond {
		t.Errorf("%s leads %v after the term of one that is silent, want C at once", leader.name, took)
	}
	if leader, took := leaves(false, false); leader.name != "B" || took < ttl/yieldPart-ttl/renewalsPerTTL || took > ttl/yieldPart+ttl/renewalsPerTTL+100*time.Millisecond {
		t.Errorf("%s leads %v after the term of one that is silent, want B after %v", leader.name, took, ttl/yieldPart)
	}
}
