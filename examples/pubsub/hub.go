package main

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/nats-io/nats.go"

	"github.com/stint-io/stint/fanout"
	"github.com/stint-io/stint/limit"
)

// subscription is one subscriber of this node.
type subscription = fanout.Stream[*message]

// hubs are the channels that have subscribers here.
type hubs struct {
	conn     *nats.Conn
	presence *presence

	mu       sync.Mutex
	channels map[channelName]*hub
}

// hub is one of them.
type hub struct {
	sub *nats.Subscription

	mu          sync.Mutex
	subscribers map[*subscription]bool
	last        uint64 // position of the latest message; 0 = none came yet
}

func newHubs(conn *nats.Conn, p *presence) *hubs {
	return &hubs{conn: conn, presence: p, channels: map[channelName]*hub{}}
}

// join adds a subscriber, who gets the messages that come from here on.
func (h *hubs) join(c channelName, o fanout.StreamOptions) (*subscription, error) {
	s, err := fanout.NewStream[*message](o)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.channels[c]
	if known == nil {
		known = &hub{subscribers: map[*subscription]bool{}}
		if known.sub, err = h.conn.Subscribe(c.subject(), known.receive); err != nil {
			return nil, err
		}
		// From here on the server knows of it, and its routes soon.
		if err := h.conn.Flush(); err != nil {
			return nil, err
		}
		h.channels[c] = known
	}
	known.mu.Lock()
	known.subscribers[s] = true
	n := len(known.subscribers)
	known.mu.Unlock()
	h.presence.set(c, int64(n))
	return s, nil
}

func (h *hubs) leave(c channelName, s *subscription) {
	s.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	known := h.channels[c]
	if known == nil {
		return
	}
	known.mu.Lock()
	delete(known.subscribers, s)
	n := len(known.subscribers)
	known.mu.Unlock()
	if n == 0 {
		_ = known.sub.Unsubscribe() // it only fails when the connection is gone
		delete(h.channels, c)
	}
	h.presence.set(c, int64(n))
}

// longestHole bounds how many positions that never arrived are counted one by one.
const longestHole = 1 << 16

// receive gives a message to each subscriber. Whom its own limit or queue refuses, that one
// is told of the gap; the others have the message.
func (h *hub) receive(m *nats.Msg) {
	received := &message{}
	if err := json.Unmarshal(m.Data, received); err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	from := h.last + 1
	if h.last == 0 || received.Position-from > longestHole {
		from = received.Position
	}
	for s := range h.subscribers {
		// NATS drops what a node is too slow for, and the positions tell.
		for lost := from; lost < received.Position; lost++ {
			_ = s.Drop(lost, "nats.pending", limit.ReasonConcurrency)
		}
		// A refusal is in the gap; an error is that the subscriber has gone.
		_, _ = s.Offer(context.Background(), received.Position, received, limit.Request{})
	}
	h.last = received.Position
}

// gapEvent is what a subscriber is told of a gap.
type gapEvent struct {
	From    uint64 `json:"from"`
	To      uint64 `json:"to"`
	Dropped uint64 `json:"dropped"`
	Limit   string `json:"limit,omitempty"`
	Reason  string `json:"reason"`
	History string `json:"history"` // where to read it
}

func newGapEvent(c channelName, g fanout.Gap) gapEvent {
	return gapEvent{
		From: g.From, To: g.To, Dropped: g.Dropped, Limit: g.Limit, Reason: g.Reason.String(),
		History: fmt.Sprintf("/channels/%s/history?account=%s&from=%d&to=%d", c.Channel, c.Account, g.From, g.To),
	}
}
