package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// gateFor adds a gate before a charge of a limit that tenants share.
func (q *Query) gateFor(l *rules.Limit, s *shared, d *Descriptor, part, charge int) {
	from := len(q.tenants)
	q.tenants = l.AppendTenant(q.tenants, d.Derived)
	g := gate{of: s, part: part, charge: charge}
	g.Terms, g.Tenant, g.Key = &s.terms, q.tenants[from:len(q.tenants):len(q.tenants)], q.charges[charge].Key
	if d.Refund {
		g.Cost = d.Cost
		q.returned = append(q.returned, g)
		return
	}
	q.gates = append(q.gates, g)
}

// charge takes or peeks at the store, after the shares of tenants.
//
// The shares come first: what they take can be given back to them alone. A limit whose tenant has no room is
// asked for more than it can ever admit, so that the store refuses the request as a whole, and counts it
// where refused requests count.
func (e *Engine) charge(ctx context.Context, q *Query, missing bool, n quotas) (bool, error) {
	if !q.Peek {
		for i := range q.returned {
			if err := e.shares.ReturnShare(ctx, &q.returned[i].Share); err != nil && !e.lost(err) {
				return false, err
			}
		}
	}
	if len(q.gates) == 0 {
		return e.chargeStore(ctx, q, missing, n)
	}
	refused, err := e.askShares(ctx, q, q.Peek || missing && !q.CountRefused)
	allowed := false
	if err == nil {
		allowed, err = e.chargeStore(ctx, q, missing || refused && q.CountRefused, n)
	}
	if err == nil && allowed && refused && !q.Decision.Repeated {
		allowed, err = false, e.giveBack(ctx, q) // decided without the counters
	}
	e.concludeShares(ctx, q, allowed && err == nil)
	return allowed && err == nil, err
}

// askShares asks every gate, and reports whether one that is enforced refuses.
func (e *Engine) askShares(ctx context.Context, q *Query, peek bool) (refused bool, err error) {
	for i := range q.gates {
		g := &q.gates[i]
		c := &q.charges[g.charge]
		g.Cost, g.CountRefused = c.Cost, c.CountRefused && !peek
		ask := e.shares.TakeShare
		if peek || c.Cost == 0 {
			ask = e.shares.PeekShare
		}
		if err := ask(ctx, &g.Share); err != nil {
			if !errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
				return false, err
			}
			g.off = true
			continue
		}
		g.of.note(&g.Share)
		if g.Verdict.Allowed {
			g.held = !peek && c.Cost > 0
			continue
		}
		g.refused = true
		switch {
		case c.Shadow:
			c.Cost = 0
		case g.CountRefused:
			refused = true
		default:
			refused = true
			c.Cost = g.Terms.Policy.Burst + 1
		}
	}
	return refused, nil
}

// concludeShares gives back what was taken for a request that is refused, and makes the verdicts those of the
// tenants.
func (e *Engine) concludeShares(ctx context.Context, q *Query, allowed bool) {
	for i := range q.gates {
		g := &q.gates[i]
		c := &q.charges[g.charge]
		c.Cost = g.Cost
		if g.off {
			continue
		}
		v := &c.Verdict
		v.Remaining = min(v.Remaining, g.Verdict.Remaining)
		if q.Decision.Repeated {
			if g.held || g.CountRefused {
				_ = e.lost(e.shares.ReturnShare(context.WithoutCancel(ctx), &g.Share))
			}
			continue
		}
		switch {
		case g.refused:
			v.Allowed, v.Reason, v.RetryAfter = false, g.Verdict.Reason, g.Verdict.RetryAfter
			q.Decision.Results[g.part].Detail = fmt.Sprintf("share %.4g/s of %d tenants", g.Rate, g.Tenants)
		case g.held && !g.CountRefused && (!allowed || !v.Allowed):
			_ = e.lost(e.shares.ReturnShare(context.WithoutCancel(ctx), &g.Share))
		}
	}
}

// ShareText says in words which share of the limit of a Result the tenant has; "" = the limit is not shared.
func (q *Query) ShareText(part int) string {
	for i := range q.gates {
		g := &q.gates[i]
		if g.part != part {
			continue
		}
		l := q.Hits[q.parts[part].hit].Limit
		text := "shared by " + strings.Join(l.Share.By, ", ") + ": weight " + strconv.FormatInt(g.Terms.Weight(g.Tenant), 10)
		for _, other := range l.Share.Guarantees {
			if other.Tenant == string(g.Tenant) {
				text += ", guaranteed " + other.Rate.String()
			}
		}
		if g.off {
			return text + "; nobody knows what tenants have taken, as the store does not answer"
		}
		return text + fmt.Sprintf("; now %.4g/s, and %d tenants have taken %.4g of %d tokens", g.Rate, g.Tenants, g.Taken, g.Terms.Policy.Burst)
	}
	return ""
}

// ShareTally says how a limit that tenants share stands. Of one with a key it is the bucket that was asked
// last.
type ShareTally struct {
	Limit string
	// Tenants have taken tokens that are not refilled yet, and Use is the part of the burst that these are: 0
	// while nobody is refused, near 1 when many want more than there is.
	Tenants int64
	Use     float64
}

// ShareTallies returns those of all limits that tenants share. What was last seen an hour ago is nothing.
func (e *Engine) ShareTallies() (list []ShareTally) {
	s := e.live.Load()
	for _, l := range s.set.Limits() {
		of := s.bound[l.Base.Index].shared
		if of == nil {
			continue
		}
		t := ShareTally{Limit: of.name}
		p := &of.terms.Policy
		taken := math.Float64frombits(of.taken.Load())
		if p.Rate.Period > 0 {
			taken -= float64(p.Rate.Count) * time.Since(time.Unix(0, of.at.Load())).Seconds() / p.Rate.Period.Seconds()
		}
		if taken > 0 && p.Burst > 0 {
			t.Tenants, t.Use = of.tenants.Load(), taken/float64(p.Burst)
		}
		list = append(list, t)
	}
	return list
}
