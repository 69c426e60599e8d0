package main

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/stint-io/stint/limit"
)

const (
	liveSubject = "live"
	// liveWait is how long other nodes have to answer.
	liveWait = 500 * time.Millisecond
	// maxAccounts bounds the accounts that are told apart.
	maxAccounts = 1000
	otherwise   = "(others)"
	// latencySpan is of which deliveries the latency is told.
	latencySpan = 10 * time.Second
)

// tally is what an account did, and what became of it. Costs are in messages.
type tally struct {
	Attempted int64            `json:"attempted"` // publishes
	Admitted  int64            `json:"admitted"`
	Cost      int64            `json:"cost"`        // of those admitted
	Wanted    int64            `json:"cost_wanted"` // of all
	Refused   map[string]int64 `json:"refused"`     // publishes and subscriptions, by limit
	Delivered int64            `json:"delivered"`   // messages to subscribers
	Dropped   int64            `json:"dropped"`     // for one subscriber alone, who was told
	P50       float64          `json:"p50_ms"`      // of deliveries in the last ten seconds
	P99       float64          `json:"p99_ms"`
	Latency   *histogram       `json:"latency,omitempty"` // among nodes
}

func (t *tally) add(o *tally) {
	t.Attempted += o.Attempted
	t.Admitted += o.Admitted
	t.Cost += o.Cost
	t.Wanted += o.Wanted
	t.Delivered += o.Delivered
	t.Dropped += o.Dropped
	for name, n := range o.Refused {
		t.Refused[name] += n
	}
	if o.Latency != nil {
		t.Latency.merge(o.Latency)
	}
}

func newTally() *tally { return &tally{Refused: map[string]int64{}, Latency: &histogram{}} }

// ledger is the tally of each account in this node.
type ledger struct {
	mu       sync.Mutex
	accounts map[string]*entry
}

type entry struct {
	tally
	before *histogram // of the span before the one that goes on
	since  time.Time
}

func newLedger() *ledger { return &ledger{accounts: map[string]*entry{}} }

// note changes the tally of an account.
func (l *ledger) note(account string, change func(*entry)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.accounts[account]
	if e == nil {
		if len(l.accounts) >= maxAccounts {
			account = otherwise
		}
		if e = l.accounts[account]; e == nil {
			e = &entry{tally: *newTally(), before: &histogram{}, since: time.Now()}
			l.accounts[account] = e
		}
	}
	e.turn()
	change(e)
}

// turn begins another span when one is over.
func (e *entry) turn() {
	age := time.Since(e.since)
	if age < latencySpan {
		return
	}
	e.before, e.Latency, e.since = e.Latency, &histogram{}, time.Now()
	if age >= 2*latencySpan {
		e.before = &histogram{}
	}
}

// decided notes what became of a publish.
func (l *ledger) decided(req limit.Request, d limit.Decision) {
	account, _ := req.Get("account")
	l.note(account, func(e *entry) {
		e.Attempted++
		e.Wanted += req.Cost
		if d.Allowed {
			e.Admitted++
			e.Cost += req.Cost
		}
	})
	l.refused(account, d)
}

func (l *ledger) refused(account string, d limit.Decision) {
	if r := d.Refused(); r != nil {
		l.note(account, func(e *entry) { e.Refused[r.Limit]++ })
	}
}

// snapshot is the tally of each account.
func (l *ledger) snapshot() map[string]*tally {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := map[string]*tally{}
	for name, e := range l.accounts {
		e.turn()
		t := e.tally
		t.Refused, t.Latency = maps.Clone(e.Refused), &histogram{}
		t.Latency.merge(e.Latency)
		t.Latency.merge(e.before)
		all[name] = &t
	}
	return all
}

// observed is a Taker whose decisions are noted.
type observed struct {
	limit.Taker
	note func(limit.Request, limit.Decision)
}

func (o observed) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	d, err := o.Taker.Take(ctx, req)
	if err == nil {
		o.note(req, d)
	}
	return d, err
}

// answerLive tells other nodes what this one has.
func (n *Node) answerLive(m *nats.Msg) {
	if text, err := json.Marshal(n.ledger.snapshot()); err == nil {
		_ = m.Respond(text) // who asked does without
	}
}

// live is the tally of each account in all nodes that answer, this one included.
func (n *Node) live(ctx context.Context) (map[string]*tally, error) {
	ctx, cancel := context.WithTimeout(ctx, liveWait)
	defer cancel()
	inbox := n.conn.NewInbox()
	sub, err := n.conn.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := n.conn.PublishRequest(liveSubject, inbox, nil); err != nil {
		return nil, err
	}
	sum := map[string]*tally{}
	for range n.presence.others() + 1 {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			break // what has come is what there is
		}
		var part map[string]*tally
		if err := json.Unmarshal(m.Data, &part); err != nil {
			return nil, err
		}
		for name, t := range part {
			if sum[name] == nil {
				sum[name] = newTally()
			}
			sum[name].add(t)
		}
	}
	for _, t := range sum {
		t.P50 = t.Latency.quantile(0.5).Seconds() * 1e3
		t.P99 = t.Latency.quantile(0.99).Seconds() * 1e3
		t.Latency = nil
	}
	return sum, nil
}

func (n *Node) serveLive(w http.ResponseWriter, r *http.Request) {
	all, err := n.live(r.Context())
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	writeJSON(w, http.StatusOK, all)
}
