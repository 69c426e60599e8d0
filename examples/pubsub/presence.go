package main

import (
	"context"
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

const (
	presenceSubject = "presence"
	// presenceEvery is how often a node tells of all its subscribers, beside telling of
	// each change at once.
	presenceEvery = 2 * time.Second
	// presenceEnds is after how long a node that says nothing counts as gone.
	presenceEnds = 5 * presenceEvery
)

// presence is how many subscribers each channel has, in all nodes: what a publish costs.
type presence struct {
	node string
	conn *nats.Conn

	mu    sync.Mutex
	nodes map[string]*present
}

type present struct {
	counts map[string]int64 // by channel
	heard  time.Time
}

// presenceNews is what nodes tell each other: all counts, or those that changed.
type presenceNews struct {
	Node   string           `json:"node"`
	All    bool             `json:"all,omitempty"`
	Asks   bool             `json:"asks,omitempty"` // for the others' counts
	Counts map[string]int64 `json:"counts,omitempty"`
}

func newPresence(node string, conn *nats.Conn) *presence {
	p := &presence{node: node, conn: conn, nodes: map[string]*present{}}
	p.nodes[node] = &present{counts: map[string]int64{}}
	return p
}

// run keeps the others informed, and this node by what they tell.
func (p *presence) run(ctx context.Context) error {
	sub, err := p.conn.Subscribe(presenceSubject, func(m *nats.Msg) {
		var news presenceNews
		if json.Unmarshal(m.Data, &news) == nil && news.Node != p.node {
			p.hear(news)
		}
	})
	if err != nil {
		return err
	}
	defer func() { _ = sub.Unsubscribe() }()
	tick := time.NewTicker(presenceEvery)
	defer tick.Stop()
	if err := p.tell(presenceNews{Node: p.node, All: true, Asks: true, Counts: p.own()}); err != nil {
		return err
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if err := p.tell(presenceNews{Node: p.node, All: true, Counts: p.own()}); err != nil {
				return err
			}
		}
	}
}

func (p *presence) tell(news presenceNews) error {
	text, err := json.Marshal(news)
	if err != nil {
		return err
	}
	return p.conn.Publish(presenceSubject, text)
}

func (p *presence) own() map[string]int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.nodes[p.node].counts)
}

func (p *presence) hear(news presenceNews) {
	p.mu.Lock()
	known := p.nodes[news.Node]
	if known == nil || news.All {
		known = &present{counts: map[string]int64{}}
		p.nodes[news.Node] = known
	}
	known.heard = time.Now()
	for key, n := range news.Counts {
		if n <= 0 {
			delete(known.counts, key)
		} else {
			known.counts[key] = n
		}
	}
	p.mu.Unlock()
	if news.Asks {
		_ = p.tell(presenceNews{Node: p.node, All: true, Counts: p.own()}) // else at the next tick
	}
}

// set says how many subscribers a channel has here.
func (p *presence) set(c channelName, n int64) {
	p.mu.Lock()
	own := p.nodes[p.node].counts
	if n > 0 {
		own[c.key()] = n
	} else {
		delete(own, c.key())
	}
	p.mu.Unlock()
	_ = p.tell(presenceNews{Node: p.node, Counts: map[string]int64{c.key(): n}}) // else at the next tick
}

// subscribers is how many a channel has, as far as this node knows at this moment.
func (p *presence) subscribers(c channelName) int64 {
	key, now, sum := c.key(), time.Now(), int64(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, node := range p.nodes {
		if name == p.node || now.Sub(node.heard) < presenceEnds {
			sum += node.counts[key]
		}
	}
	return sum
}

// others is how many other nodes are heard of.
func (p *presence) others() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.nodes) - 1
}

// awaitOthers waits until the node has heard of all others, and reports whether it has.
func (n *Node) awaitOthers(ctx context.Context) bool {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n.presence.others() < len(n.nodes)-1 {
		select {
		case <-ctx.Done():
			return false
		case <-tick.C:
		}
	}
	return true
}
