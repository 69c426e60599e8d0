package configstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/cluster"
)

const (
	// reportInterval is how often a member writes its report without a change. Not more often: it is a
	// write of the register for each member. Not less: people want to know who is there.
	reportInterval = 10 * time.Second

	// reportRetry is how long after a failure it is written again.
	reportRetry = time.Second

	// reportTime bounds a call.
	reportTime = 2 * time.Second

	// staleAfter is when a report does not count: its member has missed two.
	staleAfter = 3 * reportInterval

	// forgottenAfter is when the report of a member that was killed is deleted, at the next push.
	forgottenAfter = 24 * time.Hour

	maxReason = 1000

	// maxNumber is a version above which a report is not believed: nobody pushes so often, and numbers go
	// on from there. JSON readers of other languages keep integers exact up to it.
	maxNumber = 1 << 53
)

// Report says what a member enforces.
type Report struct {
	Version uint64 `json:"version"`          // in force
	SHA256  string `json:"sha256,omitempty"` // of it
	// Refused is the version that the member does not enforce although it is the latest, and Reason
	// says why; 0 = there is none.
	Refused uint64    `json:"refused,omitempty"`
	Reason  string    `json:"reason,omitempty"`
	Program string    `json:"program,omitempty"` // its version
	Time    time.Time `json:"time"`              // when it was written, by the member's clock
}

// Stale reports whether a member has ended without a word, or does not reach the register.
func (r *Report) Stale(now time.Time) bool { return now.Sub(r.Time) > staleAfter }

// Members returns the reports of all members, by their names.
func (s *Store) Members(ctx context.Context) (map[string]Report, error) {
	list, err := s.register.List(ctx, membersPrefix)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	all := map[string]Report{}
	for k, record := range list {
		var r Report
		if err := json.Unmarshal(record.Value, &r); err != nil {
			r = Report{Reason: "its report is damaged"}
		}
		all[strings.TrimPrefix(k, membersPrefix)] = r
	}
	return all, nil
}

// Publish writes what current returns as the report of a member: at once, when changed receives, and
// every ten seconds. When ctx has ended it deletes the report and returns.
func (s *Store) Publish(ctx context.Context, node string, changed <-chan struct{}, current func() Report) {
	key, revision := membersPrefix+node, uint64(0)
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), reportTime)
			defer cancel()
			_, _ = s.register.Swap(ending, key, revision, nil) // or it is stale soon
			return
		case <-changed:
		case <-next.C:
		}
		r := current()
		r.Time = time.Now().UTC().Truncate(time.Millisecond)
		r.Reason = strings.ToValidUTF8(r.Reason[:min(len(r.Reason), maxReason)], "")
		pause := reportInterval
		if written, err := s.report(ctx, key, revision, &r); err == nil {
			revision = written
		} else {
			pause = reportRetry
		}
		next.Reset(pause)
	}
}

// report writes one report. The record may be that of an earlier run of the member.
func (s *Store) report(ctx context.Context, key string, revision uint64, r *Report) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, reportTime)
	defer cancel()
	text, err := marshal(r)
	if err != nil {
		return 0, err
	}
	written, err := s.register.Swap(ctx, key, revision, text)
	if !errors.Is(err, cluster.ErrChanged) {
		return written, err
	}
	record, err := s.register.Read(ctx, key)
	if err != nil {
		return 0, err
	}
	return s.register.Swap(ctx, key, record.Revision, text)
}

// highest returns the highest version that one of the reports says is enforced.
func highest(reports map[string]cluster.Record) uint64 {
	most := uint64(0)
	for _, record := range reports {
		var r Report
		if json.Unmarshal(record.Value, &r) == nil && r.Version < maxNumber {
			most = max(most, r.Version)
		}
	}
	return most
}

// forget deletes those of the reports whose members ended long ago.
func (s *Store) forget(ctx context.Context, reports map[string]cluster.Record) {
	for k, record := range reports {
		var r Report
		if json.Unmarshal(record.Value, &r) != nil || time.Since(r.Time) > forgottenAfter {
			_, _ = s.register.Swap(ctx, k, record.Revision, nil)
		}
	}
}
