package keyadmin

import (
	"context"
	"fmt"
	"sync"
)

// Others are the other members of a cluster whose members have counters of their own. It is safe for concurrent use.
type Others interface {
	// Members names those that are there, in a fixed order.
	Members() []string
	// Change makes a change at one of them by [Keys.Here].
	Change(ctx context.Context, member string, c Remote) (State, error)
}

// Remote is a change that another member was asked for.
type Remote struct {
	Action string // reset or refund
	Key    Key
	N      int64
	By     Change
}

// MemberState is how a key stands at another member.
type MemberState struct {
	Member    string `json:"member"`
	Used      int64  `json:"used"`
	Remaining int64  `json:"remaining"`
	Changed   int64  `json:"changed,omitempty"`
}

// spread says whether other members have counters of their own for the same key.
func (k *Keys) spread(c *counter) bool {
	return k.opts.Others != nil && !c.Limit.Sharing.Local()
}

// elsewhere makes a change at the other members. A refund is of an amount that was taken, at whichever member: what
// this one did not have to give back the others give, one after the other, and never more together. A reset is for
// all. A grant needs no change there: each reads it, as each has the quota.
func (k *Keys) elsewhere(ctx context.Context, action string, key Key, by Change, n, changed int64) (s State) {
	members := k.opts.Others.Members()
	results, errs := make([]State, len(members)), make([]error, len(members))
	asked := make([]bool, len(members))
	switch action {
	case "refund":
		for i, m := range members {
			if changed >= n {
				break
			}
			asked[i] = true
			// After an error it may have been given back: counted as if it had, for too little can be corrected.
			left := n - changed
			if results[i], errs[i] = k.opts.Others.Change(ctx, m, Remote{action, key, left, by}); errs[i] != nil {
				changed += left
			}
			changed += results[i].Changed
		}
	case "reset":
		var all sync.WaitGroup
		for i, m := range members {
			asked[i] = true
			all.Go(func() { results[i], errs[i] = k.opts.Others.Change(ctx, m, Remote{action, key, 0, by}) })
		}
		all.Wait()
	}
	for i, m := range members {
		switch {
		case errs[i] != nil:
			k.opts.Logger.Warn("a member did not take a change of a key", "member", m, "action", action, "key", key.text(), "err", errs[i])
			s.Unreached = append(s.Unreached, m)
		case asked[i]:
			s.Members = append(s.Members, MemberState{m, results[i].Used, results[i].Remaining, results[i].Changed})
		}
	}
	return s
}

// Here makes a change that another member was asked for, of this member's counter alone. The member that
// was asked makes sure that it is made once.
func (k *Keys) Here(ctx context.Context, c Remote) (State, error) {
	alone := *k
	alone.opts.Others = nil
	c.By.ID = ""
	switch c.Action {
	case "reset":
		return alone.Reset(ctx, c.Key, c.By)
	case "refund":
		return alone.Refund(ctx, c.Key, c.N, c.By)
	}
	return State{}, fmt.Errorf("keyadmin: %w: the action is %.20q, want reset or refund: another member may have a newer version", ErrBadRequest, c.Action)
}
