package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/clusterurl"
	"github.com/stint-io/stint/store/redis"
)

// backendAnswers is how long the backend of a cluster has for its first answer. Not shorter: a server
// waits that long at its start.
const backendAnswers = 2 * time.Second

// examineCluster asks the backend that serve would use with the same --cluster.
func (r *doctorReport) examineCluster(ctx context.Context, url string) (err error) {
	if url == "alone" {
		return &exit{exitUsage, errors.New("--cluster alone is this process by itself: give the URL of a backend, such as etcd://127.0.0.1:2379/stint")}
	}
	r.Cluster = clusterurl.Redacted(url)
	register, err := clusterurl.Open(url)
	switch {
	case errors.Is(err, context.DeadlineExceeded): // a user is logged in at once
		r.unreachable(err)
		return nil
	case err != nil:
		return &exit{exitUsage, fmt.Errorf("--cluster: %w", err)}
	}
	defer func() { err = errors.Join(err, register.Close()) }()
	asking, cancel := context.WithTimeout(ctx, backendAnswers)
	defer cancel()
	begun := time.Now()
	if _, err := register.Read(asking, cluster.ShardsRecord); err != nil {
		r.unreachable(err)
		return nil
	}
	r.add(redis.Good, "backend", fmt.Sprintf("it answers in %v", time.Since(begun).Round(10*time.Microsecond)), "")
	survey, err := cluster.Examine(ctx, register)
	switch {
	case err != nil:
		r.add(redis.Bad, "records", err.Error(), "ask again; if a record is damaged, delete it while no member runs")
	case len(survey.Leaders) == 0 && len(survey.Members) == 0:
		r.add(redis.Bad, "records", "no member has written anything below this URL", "start a server with this --cluster; if one runs, compare its --cluster with this one: the prefix at the end must be the same")
	default:
		r.addLeaders(survey)
		r.addMembers(survey.Members)
	}
	return nil
}

func (r *doctorReport) unreachable(err error) {
	r.add(redis.Bad, "backend", fmt.Sprintf("it does not answer: %v", err), "start it, or correct the addresses, the user or the certificates in the URL; until it answers nobody leads, and leases end after five seconds")
}

// addLeaders says who leads. Records of scopes that nobody leads may be of a former number of shards, so
// the number of those that are led is what counts.
func (r *doctorReport) addLeaders(s cluster.Survey) {
	led := 0
	for _, l := range s.Leaders {
		if l.Alive {
			led++
			r.add(redis.Good, "leader", fmt.Sprintf("%s leads %s, epoch %d", named(l.Member), l.Scope, l.Epoch), "")
		}
	}
	if led >= max(1, s.Shards) {
		return
	}
	text := fmt.Sprintf("%d of %d shards have a leader", led, s.Shards)
	if led == 0 {
		text = "nobody leads"
		for _, l := range s.Leaders {
			how := fmt.Sprintf("has not renewed its record for %v", l.TTL)
			if l.Resigned {
				how = "gave its term up"
			}
			text += fmt.Sprintf("; the last leader of %s was %s, epoch %d, which %s", l.Scope, named(l.Member), l.Epoch, how)
		}
	}
	r.add(redis.Bad, "leader", text, "start a member; if some run, their logs say why none of them is elected")
}

// addMembers says which members there are.
func (r *doctorReport) addMembers(members []cluster.Present) {
	var alive []string
	for _, m := range members {
		if m.Alive {
			alive = append(alive, named(m.Member))
		}
	}
	if len(alive) > 0 {
		r.add(redis.Good, "members", fmt.Sprintf("%d: %s", len(alive), strings.Join(alive, ", ")), "")
	}
	for _, m := range slices.DeleteFunc(slices.Clone(members), func(m cluster.Present) bool { return m.Alive }) {
		r.add(redis.Warning, "members", named(m.Member)+" was killed, or does not reach the backend", "start it again; if it is gone for good, its record is deleted after a minute")
	}
}

// named is a member with its address.
func named(m cluster.Member) string {
	if m.Address == "" {
		return m.ID + " (its address is unknown)"
	}
	return m.ID + " at " + m.Address
}
