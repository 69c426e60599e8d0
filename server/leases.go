package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/admin"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/server/internal/spending"
)

// leases is the coordinator of the limits that are shared by leases, and the instance
// by which this server spends them.
type leases struct {
	*lending.Service
	own      *spending.Store
	state    *lending.State
	peers    *askPeers
	register *cluster.Witness  // of the members of a cluster; nil = there are none
	cluster  Cluster           // as it is asked for, or implied
	implied  bool              // it is of the services that share the store
	presence *cluster.Presence // of a member with one shard, so that its name is known; else nil
	node     string            // this member's name

	spendsOnly bool // the limits are lent elsewhere
	alone      bool // and nobody is named who lends them
}

// openLeases makes the coordinator, which lends nothing before it runs, and the store
// of this server's own leases, over that of all other limits.
func openLeases(behind *storage, set *rules.Set, o *Options) (leases, error) {
	l := leases{cluster: o.Cluster, implied: o.Cluster.URL == "" && behind.shared != nil, peers: &askPeers{options: o.peers()}}
	if l.implied {
		// Services that share the store elect the one that lends, as those of a cluster that names it do.
		l.cluster = Cluster{URL: behind.url, Node: cmp.Or(o.Cluster.Node, randomNode()), Shards: 1}
	}
	var err error
	if l.register, err = openCluster(l.cluster.URL); err != nil {
		return leases{}, err
	}
	l.state, err = l.openState(o)
	if err != nil {
		return leases{}, fmt.Errorf("server: state directory: %w", err)
	}
	options := lending.Options{Limits: set, State: *l.state, Raise: l.state.Raise, RaiseOf: l.state.RaiseOf, Logger: o.Logger}
	if options.Parent, err = o.Parent.options(); err != nil {
		return leases{}, errors.Join(err, l.state.Close(l.untouched(), l.state.Last))
	}
	o.Parent.warnOfSites(o, set)
	l.Service = lending.New(options, l.cluster.Shards)
	away := client.NewTransport(o.peers())
	ask := l.ask
	if options.Parent != nil {
		ask = nil // a site has its tokens by leases
	}
	l.own, err = spending.New(spending.Options{
		Store: behind, Limits: set, Logger: o.Logger, Away: l.register != nil,
		Connect: func(ctx context.Context) (spending.Stream, error) { return l.connect(ctx, away) },
		ShardOf: l.ShardOf, Ask: ask, Shards: l.Shards(),
	})
	if err != nil {
		return leases{}, errors.Join(fmt.Errorf("server: %w", err), l.state.Close(false, nil))
	}
	if d := l.recovering(); d > 0 {
		o.Logger.Warn("leases of a former coordinator may be in use: limits shared by leases lend nothing new until they have ended, and the server is not ready", "for", d.Round(time.Millisecond), "because", l.state.Why)
	}
	return l, nil
}

// openState reads what the former coordinator has kept.
func (l *leases) openState(o *Options) (*lending.State, error) {
	member := l.register != nil
	if member && (!l.implied || o.StateDir == "") {
		// What the former coordinator knew is in the cluster's backend.
		state := lending.FreshState(0)
		state.Recovery, state.Why = 0, ""
		return &state, nil
	}
	if o.StateDir == "" {
		state := lending.FreshState(0)
		return &state, nil
	}
	open := func() (lending.State, error) { return lending.OpenState(o.StateDir, 0, o.FirstStart) }
	if member {
		open = func() (lending.State, error) { return lending.OpenMemberState(o.StateDir, 0) }
	}
	state, err := open()
	if err != nil && o.StateDirIfFree {
		o.Logger.Warn("the state directory cannot be used, so nothing is kept for the next start", "directory", o.StateDir, "error", err)
		state, err = lending.FreshState(0), nil
		state.Why = "the state directory cannot be used"
		if member {
			state.Recovery, state.Why = 0, ""
		}
	}
	return &state, err
}

// recovering is for how long yet limits shared by leases lend nothing new; 0 = they do, or
// there are none.
func (l *leases) recovering() time.Duration {
	if !l.Leasing() {
		return 0
	}
	return l.Service.Recovering()
}

// run lends, and spends, until ctx ends. The coordinator begins before this server's
// own instance and ends after it, which gives back what it holds. It reports whether
// nothing was lent at the end.
func (l *leases) run(ctx context.Context, o *Options) (nothingLent bool) {
	lends, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var coordinator sync.WaitGroup
	coordinator.Go(func() {
		defer l.beginPresence()() // others see this member until it has resigned
		nothingLent = l.Service.Run(lends)
	})
	spends, stopSpending := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSpending()
	defer context.AfterFunc(ctx, func() {
		draining, cancel := context.WithTimeout(lends, time.Second)
		defer cancel()
		l.Drain(draining)
		stopSpending()
	})()
	if l.alone || l.implied && l.AwaitLeasing(spends) != nil {
		<-ctx.Done()
	} else if err := l.own.Run(spends); err != nil {
		o.Logger.Error("the server cannot spend leases itself: limits shared by leases answer as their on_store_failure says", "error", err)
		<-ctx.Done()
	}
	stop()
	coordinator.Wait()
	l.peers.close("")
	return nothingLent
}

// drain lends nothing more, before the streams of instances end: what is lent afterwards does not reach them, and the
// successor has to count it as spent. Without other members it does nothing.
func (l *leases) drain() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if l.Drain(ctx) {
		<-time.After(lending.Arrives)
	}
}

// beginPresence keeps the record that says that this member is there, until stop.
func (l *leases) beginPresence() (stop func()) {
	if l.presence == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { l.presence.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
	}
}

// untouched says, of leases that were never run, whether nothing was lent at the start.
func (l *leases) untouched() bool { return l.state.Recovery == 0 }

// reload makes the limits of set those that are lent and spent.
func (l *leases) reload(set *rules.Set) {
	if l.spendsOnly {
		l.own.Reload(set, nil)
		return
	}
	l.own.Reload(set, l.Service.Reload)
}

// close keeps what the next start has to know.
func (l *leases) close(nothingLent bool) error {
	var closed error
	if l.register != nil {
		closed = l.register.Close()
	}
	var last []byte
	if nothingLent {
		last = l.Last()
	}
	if err := l.state.Close(nothingLent, last); err != nil {
		return errors.Join(fmt.Errorf("server: state directory: %w", err), closed)
	}
	return closed
}

// instances returns what metrics show of each instance; not when that takes long.
func (l *leases) instances() (all []admin.Instance, others int, ok bool) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	figures, others, ok := l.Instances(ctx)
	for _, f := range figures {
		all = append(all, admin.Instance(f))
	}
	return all, others, ok
}

// metrics returns what metrics show of leased limits; nil when there is none.
func (l *leases) metrics() *admin.Leases {
	f := l.Figures()
	if !l.Leasing() && f.Instances == 0 {
		return nil
	}
	out := &admin.Leases{
		Streams: f.Streams, Instances: f.Instances, Resources: f.Resources, Recovering: f.Recovering,
		Reports: f.Reports, Grants: f.Grants, Asks: f.Asks, Unlent: f.Unlent, StreamsRefused: f.StreamsRefused, Expired: f.Expired,
		Failures: f.Broken + f.Panics, Refused: f.Refused,
	}
	for _, one := range l.Usage() {
		out.Usage = append(out.Usage, admin.LeaseUsage{Limit: one.Limit, Admitted: one.Admitted, Refused: one.Refused})
	}
	for _, one := range f.Limits {
		out.Limits = append(out.Limits, admin.LeasedLimit{
			Limit: one.Limit, Capacity: one.Capacity, Lent: one.Lent, Wanted: one.Wanted, Free: one.Free,
			Saturated: one.Saturated, SaturatedSeconds: one.SaturatedSeconds,
			Suppressed: one.Suppressed, Reject: one.Reject,
		})
	}
	return out
}
