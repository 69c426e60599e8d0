package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// amounts is what a request costs of each kind of budget.
type amounts struct{ tokens, money int64 }

func (a amounts) of(unit string) int64 {
	if unit == unitMoney {
		return a.money
	}
	return a.tokens
}

// units are asked in this order: the first that refuses is the answer.
var units = []string{unitTokens, unitMoney}

// way is how a gateway holds requests to their budgets.
type way interface {
	// begin asks for a request that costs at most most. Of the answers the first is that of the tokens; the last
	// may refuse, and then nothing is taken. An error says that it is not known.
	begin(ctx context.Context, tenant, model string, most amounts) ([]*answer, account, error)
}

// account is a request that was admitted.
type account interface {
	// spending says that used is what the request has cost at most, until it says more. It is called before that
	// much is passed on, and now and then while nothing comes.
	spending(ctx context.Context, used amounts) error
	// end says what the request has cost.
	end(ctx context.Context, actual amounts) error
	// undo says that it has cost nothing.
	undo(ctx context.Context) error
}

// The names of the ways.
const (
	byReserve = "reserve"
	byProbe   = "probe"
)

func newWay(name string, s *service, ttl time.Duration) (way, error) {
	switch name {
	case byReserve:
		return &reserving{s, ttl}, nil
	case byProbe:
		return &probing{s}, nil
	}
	return nil, fmt.Errorf("-way is %q, want %s or %s", name, byReserve, byProbe)
}

// reserving takes the most that a request can cost before it begins, says ahead what it has cost at most so far, and
// settles at its end. When the gateway dies, what it has said last is charged at the end of ttl and the rest comes
// back.
type reserving struct {
	stint *service
	ttl   time.Duration
}

type reservations struct {
	of  *reserving
	ids []string // by units
}

// begin makes a reservation for each unit, all or none: a request that the money refuses gives its tokens back.
func (w *reserving) begin(ctx context.Context, tenant, model string, most amounts) ([]*answer, account, error) {
	held := &reservations{of: w}
	var answers []*answer
	for _, unit := range units {
		body := about(tenant, model, unit, most.of(unit))
		body.TTL = w.ttl.String()
		a, err := w.stint.admit(ctx, "/v1/reserve", body)
		if err != nil {
			return nil, nil, errors.Join(err, held.undo(ctx))
		}
		answers = append(answers, a)
		if !a.refused() {
			held.ids = append(held.ids, a.body.ID)
		}
		if a.refused() || a.body.Clamped {
			// Clamped: it could cost more than the limit admits at any time, so it never fits.
			return answers, nil, held.undo(ctx)
		}
	}
	return answers, held, nil
}

// each makes a call for each reservation, all at a time.
func (r *reservations) each(ctx context.Context, path string, body func(unit string) settled) error {
	failed := make(chan error, len(r.ids))
	for i, id := range r.ids {
		b := body(units[i])
		b.ID = id
		go func() {
			_, err := r.of.stint.post(ctx, path, b)
			failed <- err
		}()
	}
	var all error
	for range r.ids {
		all = errors.Join(all, <-failed)
	}
	return all
}

func (r *reservations) spending(ctx context.Context, used amounts) error {
	return r.each(ctx, "/v1/renew", func(unit string) settled {
		n := used.of(unit)
		return settled{Used: &n, TTL: r.of.ttl.String()}
	})
}

func (r *reservations) end(ctx context.Context, actual amounts) error {
	return r.each(ctx, "/v1/commit", func(unit string) settled {
		n := actual.of(unit)
		return settled{Actual: &n}
	})
}

func (r *reservations) undo(ctx context.Context) error {
	return r.each(ctx, "/v1/release", func(string) settled { return settled{} })
}

// probing asks whether anything is left, and charges at the end: the way of gateways that cannot reserve. The limits
// have charge: after.
type probing struct{ stint *service }

type probed struct {
	of            *probing
	tenant, model string
}

func (w *probing) begin(ctx context.Context, tenant, model string, _ amounts) ([]*answer, account, error) {
	var answers []*answer
	for _, unit := range units {
		a, err := w.stint.admit(ctx, "/v1/take", about(tenant, model, unit, 0))
		if err != nil {
			return nil, nil, err
		}
		answers = append(answers, a)
		if a.refused() {
			return answers, nil, nil
		}
	}
	return answers, &probed{w, tenant, model}, nil
}

func (*probed) spending(context.Context, amounts) error { return nil }

func (p *probed) end(ctx context.Context, actual amounts) error {
	var all error
	for _, unit := range units {
		if n := actual.of(unit); n > 0 {
			// With charge: after it counts, whatever the answer is.
			_, err := p.of.stint.post(ctx, "/v1/take", about(p.tenant, p.model, unit, n))
			all = errors.Join(all, err)
		}
	}
	return all
}

func (*probed) undo(context.Context) error { return nil }
