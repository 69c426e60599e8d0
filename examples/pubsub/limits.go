package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// The names of the limits in the file.
const (
	connectionIn  = "connection.in.maxRate"
	connectionOut = "connection.out.maxRate"
	channelRate   = "channel.maxRate"
	messagesIn    = "messages.in.maxRate"
	messagesOut   = "messages.out.maxRate"
	messagesRate  = "messages.maxRate"
	connectionMax = "connections.max"
	channelMax    = "channels.max"
)

// takers are the limits of one node: those of its connections, which it decides by itself,
// and those of channels and accounts, of which it has leases.
type takers struct {
	publish *limit.Scopes
	attach  *attachments
	out     limit.Policy // of one subscriber
}

func newTakers(set *rules.Set, leases *client.Client) (*takers, error) {
	policies := map[string]limit.Policy{}
	for _, l := range set.Limits() {
		policies[l.Name] = l.Base.Policy
	}
	for _, name := range []string{connectionIn, connectionOut, channelRate, messagesIn, messagesOut, messagesRate, connectionMax, channelMax} {
		if _, ok := policies[name]; !ok {
			return nil, fmt.Errorf("pubsub: the limits file has no %q", name)
		}
	}
	byConnection, err := memory.NewKeyed(policies[connectionIn], memory.Options{})
	if err != nil {
		return nil, err
	}
	connection, err := byConnection.Preparer(connectionIn, "connection")
	if err != nil {
		return nil, err
	}
	scopes := []limit.Scope{{Name: connectionIn, Taker: connection, Cost: one}}
	for _, s := range []struct {
		name string
		key  []string
		cost func(limit.Request) (int64, error)
	}{
		{channelRate, []string{"account", "channel"}, one},
		{messagesIn, []string{"account"}, one},
		{messagesOut, []string{"account"}, func(r limit.Request) (int64, error) { return r.Cost - 1, nil }},
		{messagesRate, []string{"account"}, nil},
	} {
		keyed, err := leases.Keyed(s.name, s.key, client.KeyedOptions{RefuseMissing: true})
		if err != nil {
			return nil, err
		}
		scopes = append(scopes, limit.Scope{Name: s.name, Taker: keyed, Cost: s.cost})
	}
	publish, err := limit.All(scopes...)
	if err != nil {
		return nil, err
	}
	attach, err := newAttachments(leases)
	if err != nil {
		return nil, err
	}
	return &takers{publish: publish, attach: attach, out: policies[connectionOut]}, nil
}

func one(limit.Request) (int64, error) { return 1, nil }

// subscriber returns the outbound limit of one subscriber.
func (t *takers) subscriber() (limit.Taker, error) {
	l, err := limit.NewLimiter(t.out)
	if err != nil {
		return nil, err
	}
	return limit.All(limit.Scope{Name: connectionOut, Taker: l})
}

// attachments are the subscribers of a node, as places of two gauges: one connection each,
// and one channel for all that subscribe to it here. It is a limit.Finisher.
//
// Places are alike, so whoever leaves gives back the permit of one that has no channel, as
// long as somebody stays who needs the channel's.
type attachments struct {
	scopes *limit.Scopes

	mu       sync.Mutex
	channels map[string]*permits
}

type permits struct{ with, without []uint64 } // a channel's place

func newAttachments(leases *client.Client) (*attachments, error) {
	a := &attachments{channels: map[string]*permits{}}
	places := client.KeyedOptions{Semaphore: true, RefuseMissing: true}
	connections, err := leases.Keyed(connectionMax, []string{"account"}, places)
	if err != nil {
		return nil, err
	}
	channels, err := leases.Keyed(channelMax, []string{"account"}, places)
	if err != nil {
		return nil, err
	}
	a.scopes, err = limit.All(
		limit.Scope{Name: connectionMax, Taker: connections, Cost: one},
		limit.Scope{Name: channelMax, Taker: channels, Cost: a.channelCost})
	return a, err
}

// channelCost is 1 for the first subscriber of a channel here.
func (a *attachments) channelCost(req limit.Request) (int64, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.channels[channelOf(req).key()] == nil {
		return 1, nil
	}
	return 0, nil
}

func channelOf(req limit.Request) channelName {
	account, _ := req.Get("account")
	channel, _ := req.Get("channel")
	return channelName{account, channel}
}

// Take implements limit.Taker.
func (a *attachments) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	d, err := a.scopes.Take(ctx, req)
	if err != nil || !d.Allowed || req.Peek {
		return d, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	key := channelOf(req).key()
	p := a.channels[key]
	if p == nil {
		p = &permits{}
		a.channels[key] = p
	}
	if len(d.Results) > 1 { // the channel counted
		p.with = append(p.with, d.Permit)
	} else {
		p.without = append(p.without, d.Permit)
	}
	return d, nil
}

// Finish implements limit.Finisher.
func (a *attachments) Finish(ctx context.Context, req limit.Request, _ uint64) error {
	return a.scopes.Finish(ctx, req, a.leave(channelOf(req).key()))
}

// leave returns the permit to give back.
func (a *attachments) leave(key string) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.channels[key]
	if p == nil {
		return 0
	}
	from := &p.with
	// Two that came at once may have a place each.
	if len(p.with) <= 1 && len(p.without) > 0 {
		from = &p.without
	}
	last := len(*from) - 1
	permit := (*from)[last]
	*from = (*from)[:last]
	if len(p.with)+len(p.without) == 0 {
		delete(a.channels, key)
	}
	return permit
}
