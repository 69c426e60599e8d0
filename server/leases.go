package server

import (
	"fmt"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/admin"
	"github.com/stint-io/stint/server/internal/lease"
)

// leases is the coordinator of the limits that are shared by leases.
type leases struct {
	*lease.Service
	state lease.State
}

// openLeases makes the coordinator, which lends nothing before it runs.
func openLeases(set *rules.Set, o *Options) (leases, error) {
	state := lease.Fresh(0)
	if o.StateDir != "" {
		var err error
		if state, err = lease.OpenState(o.StateDir, 0); err != nil {
			return leases{}, fmt.Errorf("server: state directory: %w", err)
		}
	}
	return leases{lease.New(lease.Options{Limits: set, State: state, Logger: o.Logger}), state}, nil
}

// close keeps what the next start has to know.
func (l *leases) close(nothingLent bool) error {
	if err := l.state.Close(nothingLent); err != nil {
		return fmt.Errorf("server: state directory: %w", err)
	}
	return nil
}

// metrics returns what metrics show of leased limits; nil when there is none.
func (l *leases) metrics() *admin.Leases {
	f := l.Figures()
	if !l.Leasing() && f.Instances == 0 {
		return nil
	}
	out := &admin.Leases{
		Streams: f.Streams, Instances: f.Instances, Resources: f.Resources, Learning: f.Learning,
		Reports: f.Reports, Grants: f.Grants, StreamsRefused: f.StreamsRefused, Expired: f.Expired,
		Failures: f.Broken + f.Panics, Refused: f.Refused,
	}
	for _, one := range f.Limits {
		out.Limits = append(out.Limits, admin.LeasedLimit{
			Limit: one.Limit, Capacity: one.Capacity, Lent: one.Lent, Wanted: one.Wanted, Free: one.Free,
			Saturated: one.Saturated, SaturatedSeconds: one.SaturatedSeconds,
		})
	}
	return out
}
