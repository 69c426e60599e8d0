package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ShardsRecord is the key of the record about the number of shards: a decimal number.
const ShardsRecord = "shards"

// surveyEvery is how often a survey looks. A leader renews its record four times in a TTL.
const surveyEvery = DefaultTTL / renewalsPerTTL

// Present is a member that has a record. Alive says that the record was written while it was watched.
type Present struct {
	Member Member
	Alive  bool
}

// Survey is what the register says of a cluster, for one who takes no part.
type Survey struct {
	Leaders []Leader  // by scope
	Members []Present // by ID
	Shards  int       // 0 = no member has written how many there are
}

// Examine watches the records until each of them has changed, or has been silent for so long that nobody
// counts on it. It writes nothing. An error says that the register does not answer, or that a record is
// not understood.
func Examine(ctx context.Context, r Register) (Survey, error) {
	before, shards, err := readSurvey(ctx, r)
	if err != nil {
		return Survey{}, err
	}
	alive := map[string]bool{}
	tick := time.NewTicker(surveyEvery)
	defer tick.Stop()
	for begun := time.Now(); before.waits(alive, time.Since(begun)); {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return Survey{}, ctx.Err()
		}
		now, _, err := readSurvey(ctx, r)
		if err != nil {
			return Survey{}, err
		}
		for key, one := range now {
			// One that is new is alive as well: it takes the place of what it was before.
			if was, ok := before[key]; !ok || was.revision != one.revision {
				alive[key], before[key] = true, one
			}
		}
		// A member that ends deletes its record.
		maps.DeleteFunc(before, func(key string, _ surveyed) bool { _, ok := now[key]; return !ok })
	}
	s := Survey{Shards: shards}
	for key, one := range before {
		if one.claim == nil {
			s.Members = append(s.Members, Present{one.member, alive[key]})
			continue
		}
		l := one.claim.leader(strings.TrimPrefix(key, leaderPrefix))
		l.Alive = alive[key] && !l.Resigned
		s.Leaders = append(s.Leaders, l)
	}
	slices.SortFunc(s.Leaders, func(a, b Leader) int { return cmp.Compare(a.Scope, b.Scope) })
	slices.SortFunc(s.Members, func(a, b Present) int { return cmp.Compare(a.Member.ID, b.Member.ID) })
	return s, nil
}

// surveyed is a record that a survey watches.
type surveyed struct {
	revision uint64
	claim    *claim // of a leader; nil = it is one of presence
	member   Member
}

type surveyedRecords map[string]surveyed

// waits says whether a record that has not changed yet may be of a process that lives.
func (s surveyedRecords) waits(alive map[string]bool, watched time.Duration) bool {
	for key, one := range s {
		bound := silentTimes * DefaultPresence
		if one.claim != nil {
			if bound = patience(one.claim.ttl()); one.claim.Resigned {
				continue
			}
		}
		if !alive[key] && watched < bound {
			return true
		}
	}
	return false
}

// readSurvey reads all records of leaders and members, and the number of shards.
func readSurvey(ctx context.Context, r Register) (surveyedRecords, int, error) {
	out := surveyedRecords{}
	leaders, err := r.List(ctx, leaderPrefix)
	if err != nil {
		return nil, 0, err
	}
	for key, record := range leaders {
		claim, err := decodeClaim(record.Value)
		if err != nil {
			return nil, 0, fmt.Errorf("%s: %w", key, err)
		}
		out[key] = surveyed{revision: record.Revision, claim: claim}
	}
	members, err := r.List(ctx, presencePrefix)
	if err != nil {
		return nil, 0, err
	}
	for key, record := range members {
		one := surveyed{revision: record.Revision}
		if json.Unmarshal(record.Value, &one.member) == nil {
			out[key] = one
		}
	}
	record, err := r.Read(ctx, ShardsRecord)
	if err != nil || record.Revision == 0 {
		return out, 0, err
	}
	shards, err := strconv.Atoi(string(record.Value))
	if err != nil {
		return nil, 0, fmt.Errorf("cluster: the record %s is no number: %.20q", ShardsRecord, record.Value)
	}
	return out, shards, nil
}
