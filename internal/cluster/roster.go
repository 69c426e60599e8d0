package cluster

import (
	"maps"
	"slices"
	"strings"
	"time"
)

// roster is who is alive, by the records of members as they were listed. It is pure: times are those of
// one process's monotonic clock since any instant.
//
// A member is alive from the first time that its record is seen until the record has not changed for
// silentFor. Clocks of members are not compared.
type roster struct {
	self    Member
	silent  time.Duration // after which a member is not alive
	forget  time.Duration // after which its record may be deleted
	seen    map[string]sighting
	listed  time.Duration // when the records were listed last
	changed time.Duration // when the set of those alive changed last
	alive   []Member      // by ID, with self

	// known are the others that were alive at one of the last knownLists lists, by ID. Lists are counted, and not
	// time: while the register does not answer, no member is forgotten.
	known map[string]acquaintance
	lists int
}

// acquaintance is a member, and the last list at which it was alive.
type acquaintance struct {
	member Member
	list   int
}

// sighting is a record of a member.
type sighting struct {
	member   Member
	revision uint64
	since    time.Duration // when this revision was seen first
}

func newRoster(self Member, every time.Duration) *roster {
	return &roster{
		self: self, silent: silentTimes * every, forget: forgetTimes * every,
		seen: map[string]sighting{}, listed: -silentTimes * every, alive: []Member{self},
		known: map[string]acquaintance{},
	}
}

// list takes the records as they are at now, by key. It returns the keys of those that are long dead.
func (r *roster) list(now time.Duration, records map[string]sighting) (dead []string) {
	if now-r.listed >= r.silent {
		r.changed = now // whoever lives may not have written yet
	}
	r.listed = now
	for key := range r.seen {
		if _, ok := records[key]; !ok {
			delete(r.seen, key)
		}
	}
	for key, one := range records {
		if was, ok := r.seen[key]; ok && was.revision == one.revision {
			one.since = was.since
		} else {
			one.since = now
		}
		r.seen[key] = one
		if now-one.since >= r.forget {
			dead = append(dead, key)
		}
	}
	r.count(now)
	r.lists++
	for _, m := range r.alive {
		if m.ID != r.self.ID {
			r.known[m.ID] = acquaintance{m, r.lists}
		}
	}
	maps.DeleteFunc(r.known, func(_ string, a acquaintance) bool { return r.lists-a.list >= knownLists })
	return dead
}

// count notes who is alive at now.
func (r *roster) count(now time.Duration) {
	alive := []Member{r.self}
	for _, one := range r.seen {
		if one.member.ID != r.self.ID && now-one.since < r.silent {
			alive = append(alive, one.member)
		}
	}
	slices.SortFunc(alive, func(a, b Member) int { return strings.Compare(a.ID, b.ID) })
	if !slices.Equal(alive, r.alive) {
		r.alive, r.changed = alive, now
	}
}

// stable says whether the same members have been alive for a while, by lists without a gap.
func (r *roster) stable(now time.Duration) bool {
	return now-r.listed < r.silent && now-r.changed >= r.silent
}
