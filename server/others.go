package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/tables"
	"github.com/stint-io/stint/internal/gen/memberpb"
	"github.com/stint-io/stint/internal/keyadmin"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/server/internal/members"
	"github.com/stint-io/stint/store"
)

// others are the other members of a cluster whose members have counters of their own: each keeps the usage of all.
// A nil *others has none.
type others struct {
	leases *leases
	peers  *askPeers
	fan    *usage.Fan
	shared store.Records  // in the register of the cluster: all members see the same
	keys   *keyadmin.Keys // of this member
}

// openOthers returns the members that l finds. outlives says that own outlives a kill of this process.
func openOthers(l *leases, own store.Records, outlives bool, o *Options) *others {
	all := &others{leases: l, peers: &askPeers{options: o.peers()}, shared: tables.New(l.register, nil)}
	all.fan = usage.NewFan(usage.FanOptions{Own: own, Outlives: outlives, Others: all.there, Send: all.send, Logger: o.Logger})
	return all
}

// there are the members that are alive, without this one.
func (o *others) there() (list []usage.Other) {
	alive, self := o.leases.members()
	for _, m := range alive {
		if m.ID != self && m.Address != "" {
			list = append(list, usage.Other{Name: m.ID, Address: m.Address})
		}
	}
	return list
}

// members returns the members that are alive as far as is known, and which of them this one is.
func (l *leases) members() (alive []cluster.Member, self string) {
	if l.presence != nil {
		alive = l.presence.Members()
	} else {
		alive = l.Members()
	}
	return alive, l.node
}

func (o *others) send(ctx context.Context, address string, m usage.Message) (usage.Reply, error) {
	conn, err := o.peers.conn(address)
	if err != nil {
		return usage.Reply{}, err
	}
	r, err := members.Tell(ctx, conn, m)
	o.peers.dropUnless(address, err)
	return r, err
}

// Members implements [keyadmin.Others].
func (o *others) Members() (names []string) {
	for _, m := range o.there() {
		names = append(names, m.Name)
	}
	return names
}

// changeTime bounds a change at another member. Not longer: whoever asked waits for those that hang.
const changeTime = 2 * time.Second

// Change implements [keyadmin.Others].
func (o *others) Change(ctx context.Context, member string, c keyadmin.Remote) (keyadmin.State, error) {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	for _, m := range o.there() {
		if m.Name != member {
			continue
		}
		conn, err := o.peers.conn(m.Address)
		if err != nil {
			return keyadmin.State{}, err
		}
		_, self := o.leases.members()
		c.By.Who += ", at member " + self
		if c.By.ID != "" {
			c.By.Who += ", request " + c.By.ID
		}
		s, err := members.Change(ctx, conn, c)
		o.peers.dropUnless(m.Address, err)
		return s, err
	}
	return keyadmin.State{}, fmt.Errorf("server: the member %s has gone", member)
}

// follow gives o the keys of this member, and says what they need of others.
func (o *others) follow(k *keyadmin.Options) {
	if o != nil {
		k.Others, k.Requests = o, o.shared
	}
}

// service is what other members may call.
func (o *others) service() memberpb.MembersServer {
	if o == nil {
		return &members.Service{}
	}
	return &members.Service{Told: o.fan.Told, Here: o.keys.Here}
}

// run tells the others what they lack, until stop.
func (o *others) run() (stop func()) {
	if o == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { o.fan.Run(ctx) })
	return func() {
		cancel()
		running.Wait()
		o.peers.close("")
	}
}

// collectors are the metrics of the others.
func (o *others) collectors() []prometheus.Collector {
	if o == nil {
		return nil
	}
	gauge := func(name, help string, of func(usage.FanStats) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of(o.fan.Stats())) })
	}
	return []prometheus.Collector{
		gauge("stint_usage_members", "Other members of the cluster that keep the usage of this one, those included that were lost within an hour.", func(s usage.FanStats) int { return s.Others }),
		gauge("stint_usage_members_behind", "Other members that lack some usage of this one for now.", func(s usage.FanStats) int { return s.Others - s.UpToDate }),
	}
}
