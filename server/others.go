package server

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/tables"
	"github.com/stint-io/stint/internal/gen/memberpb"
	"github.com/stint-io/stint/internal/keyadmin"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/server/internal/members"
	"github.com/stint-io/stint/store"
)

// others are the other members of a cluster whose members have counters of their own. A nil *others has none.
type others struct {
	leases *leases
	peers  *askPeers
	shared store.Records   // in the register of the cluster: all members see the same
	usage  *usage.Observer // of this member
	keys   *keyadmin.Keys  // of this member
}

// openOthers returns the members that l finds.
func openOthers(l *leases, o *Options) *others {
	return &others{leases: l, peers: &askPeers{options: o.peers()}, shared: tables.New(l.register, nil)}
}

// there are the members that are alive, without this one.
func (o *others) there() []cluster.Member {
	alive, self := o.leases.members()
	return slices.DeleteFunc(slices.Clone(alive), func(m cluster.Member) bool { return m.ID == self || m.Address == "" })
}

// roster says which members there are; nil = this is a member of no cluster, or has not joined yet.
func (l *leases) roster() *cluster.Presence { return cmp.Or(l.presence, l.Presence()) }

// members returns the members that are alive as far as is known, and which of them this one is.
func (l *leases) members() (alive []cluster.Member, self string) {
	if p := l.roster(); p != nil {
		alive = p.Members()
	}
	return alive, l.node
}

// counting are the members that are known to count usage, without this one: also those that are gone for now.
func (o *others) counting() (list []usage.Member) {
	p := o.leases.roster()
	if p == nil {
		return nil
	}
	for _, m := range p.Known() {
		list = append(list, usage.Member{Name: m.ID, Page: func(ctx context.Context, q usage.Query, after string) (usage.Page, error) {
			conn, err := o.peers.conn(m.Address)
			if err != nil {
				return usage.Page{}, err
			}
			page, err := members.ReadUsage(ctx, conn, m.ID, q, after)
			o.peers.dropUnless(m.Address, err)
			return page, err
		}})
	}
	return list
}

// Members implements [keyadmin.Others].
func (o *others) Members() (names []string) {
	for _, m := range o.there() {
		names = append(names, m.ID)
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
		if m.ID != member {
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
	return &members.Service{Name: o.leases.cluster.Node, Usage: o.usage.Page, Here: o.keys.Here}
}

// close closes the connections.
func (o *others) close() {
	if o != nil {
		o.peers.close("")
	}
}
