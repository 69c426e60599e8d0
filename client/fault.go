package client

import (
	"context"
	"log/slog"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
)

// fault is a reason for which nothing is lent of a limit. It has no key: what is wrong
// with one of a thousand keys is told once.
type fault struct {
	limit  string
	status lease.Status // StatusOK: the limit is of the other kind
}

// maxFaults bounds the faults that are remembered, so that those that are not are told
// no more. Not fewer: a program may have that many names wrong.
const maxFaults = 1000

// noted takes note of what the coordinator told of a lease, and returns what is wrong
// with it if that was not told before.
func (l *leasedLimit) noted(before, now agent.State) error {
	c, err := l.client, l.fault()
	same := before.Known && before.Status == now.Status && before.Limit.Semaphore == now.Limit.Semaphore
	if same || l.gone.Load() {
		return nil
	}
	c.faults.Lock()
	defer c.faults.Unlock()
	if err == nil {
		delete(c.faults.known, fault{l.id.Limit, before.Status})
		return nil
	}
	f := fault{l.id.Limit, now.Status}
	if !now.Known || c.faults.known[f] || len(c.faults.known) >= maxFaults {
		return nil
	}
	if c.faults.known == nil {
		c.faults.known = map[fault]bool{}
	}
	c.faults.known[f] = true
	return err
}

// say tells operators, and the hook, what is wrong with a limit. It is called without a
// lock.
func (c *Client) say(limit string, err error) {
	c.log.LogAttrs(context.Background(), slog.LevelError, "nothing is lent of a limit: nothing is admitted by it", slog.String("limit", limit), slog.Any("error", err))
	if c.opts.OnFault != nil {
		c.opts.OnFault(limit, err)
	}
}

// sayLower tells operators that a coordinator was heard whose epoch is lower than one
// heard before.
func (c *Client) sayLower(epoch uint64) {
	c.log.LogAttrs(context.Background(), slog.LevelWarn, "a coordinator has a lower epoch than the one before it, so its grants are ignored until it has gone above that: "+
		"was its state directory lost, or does a second coordinator run? Leases go on until they end",
		slog.Uint64("epoch", epoch), slog.Uint64("highest", c.holderEpoch()))
}

func (c *Client) holderEpoch() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.holder.Epoch()
}
