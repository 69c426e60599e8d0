package client

import (
	"context"
	"log/slog"
	"maps"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// fault is a reason for which nothing is lent of a limit. It has no key: what is wrong
// with one of a thousand keys is logged once.
type fault struct {
	limit  string
	status lease.Status // StatusOK: the limit is of the other kind
}

// maxFaults bounds the faults that are remembered; others are not logged. Not fewer: a program may have that many names wrong.
const maxFaults = 1000

// A fault that ends and comes back is logged again, faultBurst times and then once per faultGap.
// Not more: a limit that is added and removed all the time, or whose table of keys is full now
// and then, would fill the log. Not less: who mends a fault and makes it again wants to read of it.
const (
	faultGap   = time.Minute
	faultBurst = 5
)

// knownFault is a fault that was logged.
type knownFault struct {
	paid   limit.Time // the logs until now are one per faultGap up to this time
	healed bool       // it has ended since
}

// log reports whether the fault may be logged at now, and counts it.
func (k *knownFault) log(now limit.Time) bool {
	paid := max(k.paid, now)
	if paid > now.Add((faultBurst-1)*faultGap) {
		return false
	}
	k.paid, k.healed = paid.Add(faultGap), false
	return true
}

// noteFault compares the state of a lease before and after an answer, and returns what is wrong
// with it if that was not logged before.
func (l *leasedLimit) noteFault(before, now agent.State) error {
	c, err := l.client, l.fault()
	same := before.Known && before.Status == now.Status && before.Limit.Semaphore == now.Limit.Semaphore
	if same && err == nil || l.gone.Load() {
		return nil
	}
	c.faults.Lock()
	defer c.faults.Unlock()
	if err == nil {
		f := fault{l.id.Limit, before.Status}
		if known, ok := c.faults.known[f]; ok {
			known.healed = true
			c.faults.known[f] = known
		}
		return nil
	}
	f, at := fault{l.id.Limit, now.Status}, c.now()
	known, ok := c.faults.known[f]
	if !now.Known || ok && !known.healed {
		return nil
	}
	if !ok && len(c.faults.known) >= maxFaults {
		maps.DeleteFunc(c.faults.known, func(_ fault, k knownFault) bool { return k.healed && k.paid <= at })
		if len(c.faults.known) >= maxFaults {
			return nil
		}
	}
	if !known.log(at) {
		return nil // one that came back too often is logged when a later answer says it again
	}
	if c.faults.known == nil {
		c.faults.known = map[fault]knownFault{}
	}
	c.faults.known[f] = known
	return err
}

// reportFault logs what is wrong with a limit, and calls the hook. It is called without a
// lock.
func (c *Client) reportFault(name string, err error) {
	c.log.LogAttrs(context.Background(), slog.LevelError, "nothing is lent of a limit: nothing is admitted by it", slog.String("limit", name), slog.Any("error", err))
	if c.opts.OnFault != nil {
		c.opts.OnFault(name, err)
	}
}

// logLowerEpoch logs that a coordinator answered whose epoch is lower than that of an earlier
// answer.
func (a *lane) logLowerEpoch(epoch uint64) {
	a.client.log.LogAttrs(context.Background(), slog.LevelWarn, "a coordinator has a lower epoch than the one before it, so its grants are ignored until it has gone above that: "+
		"was its state directory lost, or does a second coordinator run? Leases go on until they end",
		slog.Uint64("epoch", epoch), slog.Uint64("highest", a.holderEpoch()))
}

func (a *lane) holderEpoch() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.agent.Epoch()
}
