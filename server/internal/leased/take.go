package leased

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// work is one call on several charges.
type work struct {
	leased []part
	exact  []store.Charge // those for the store behind, with its counters
	place  []int          // exact[i] is the charge of that number
	some   []store.Charge // of exact, for a call on a part of them
	origin []int
}

// part is a charge on a lease.
type part struct {
	charge *store.Charge
	own    *counters
	to     *lent
	entry  *entry // busy; nil until it is looked up
	// unknown says that the lease could not be had, so that on_store_failure decides.
	unknown bool

	held        bool
	reservation client.Reservation // what undoes it, of a rate
	loose       int64              // or so many tokens without one
	permit      uint64             // of the client's, for places
}

// sort tells charges on leases from the others.
func (s *Store) sort(charges []store.Charge) (*work, error) {
	w := s.pool.Get().(*work)
	for i := range charges {
		c := &charges[i]
		own, err := ours(c.Counters)
		if err != nil {
			s.release(w)
			return nil, err
		}
		c.Failed = false
		if to := own.route.to.Load(); to != nil {
			w.leased = append(w.leased, part{charge: c, own: own, to: to})
			continue
		}
		w.exact = append(w.exact, *c)
		w.exact[len(w.exact)-1].Counters = own.exact
		w.place = append(w.place, i)
	}
	return w, nil
}

func (s *Store) release(w *work) {
	for i := range w.leased {
		if e := w.leased[i].entry; e != nil {
			e.done()
		}
	}
	clear(w.leased)
	clear(w.exact)
	clear(w.some)
	w.leased, w.exact, w.place, w.some, w.origin = w.leased[:0], w.exact[:0], w.place[:0], w.some[:0], w.origin[:0]
	const most = 1 << 10
	if cap(w.leased) <= most && cap(w.exact) <= most {
		s.pool.Put(w)
	}
}

// answers copies what the store behind said to the charges.
func (w *work) answers(charges []store.Charge) {
	for i, n := range w.place {
		charges[n].Verdict, charges[n].Failed = w.exact[i].Verdict, w.exact[i].Failed
	}
}

// plain says whether no charge is on a lease.
func plain(charges []store.Charge) bool {
	for i := range charges {
		if own, ok := charges[i].Counters.(*counters); !ok || own.route.to.Load() != nil {
			return false
		}
	}
	return true
}

// behind asks the store behind about charges none of which is on a lease.
func behind(ctx context.Context, charges []store.Charge, ask func(context.Context, []store.Charge) (bool, error)) (bool, error) {
	var few [8]store.Counters
	outer := few[:0]
	for i := range charges {
		outer = append(outer, charges[i].Counters)
		charges[i].Counters = charges[i].Counters.(*counters).exact
	}
	allowed, err := ask(ctx, charges)
	for i := range charges {
		charges[i].Counters = outer[i]
	}
	return allowed, err
}

// tries is how often a call is made that meets a reload. More than two at once are not
// to be expected.
const tries = 3

// again calls f until it does not meet a reload.
func again(f func() (bool, error)) (allowed bool, err error) {
	for range tries {
		if allowed, err = f(); !errors.Is(err, errMoved) {
			return allowed, err
		}
	}
	return false, fmt.Errorf("leased: the limits change all the time: %w", store.ErrUnavailable)
}

// Take implements store.Store.
//
// Leases are asked first. What they take costs nothing to find out and can be given
// back at once, here, while a charge on the store behind that has to be given back is
// seen by all who share that store, and costs two round trips. And a store that does
// not answer leaves open whether it took: nothing may come after it that could still
// refuse. Only charges that count refused requests have to be made when a lease has
// refused, so they are made then.
func (s *Store) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	if plain(charges) {
		return behind(ctx, charges, s.exact.Take)
	}
	return again(func() (bool, error) { return s.takeOnce(ctx, charges) })
}

func (s *Store) takeOnce(ctx context.Context, charges []store.Charge) (bool, error) {
	w, err := s.sort(charges)
	if err != nil {
		return false, err
	}
	defer s.release(w)
	allowed, err := s.spend(ctx, w, len(charges))
	if err != nil {
		s.undo(w)
		return false, err
	}
	if allowed && len(w.exact) > 0 {
		if allowed, err = s.exact.Take(ctx, w.exact); err != nil {
			s.undo(w)
			return false, err
		}
	} else if len(w.exact) > 0 {
		if err = s.refused(ctx, w); err != nil {
			s.undo(w)
			return false, err
		}
	}
	w.answers(charges)
	if !allowed {
		s.undo(w)
		s.drain(w)
	}
	for i := range w.leased {
		if p := &w.leased[i]; p.charge.Shadow {
			s.shadow(ctx, p, allowed)
		}
	}
	return allowed, nil
}

// spend takes what is enforced from the leases, or nothing. Of several charges, those on
// leases can be undone.
//
// Where there are several leases all are asked first for what they lack, and only then
// is anything taken: one that holds nothing more while another waits is given back by
// its holder, and what is undone later has no place in it.
func (s *Store) spend(ctx context.Context, w *work, charges int) (allowed bool, err error) {
	enforced := 0
	for i := range w.leased {
		if !w.leased[i].charge.Shadow {
			enforced++
		}
	}
	how := hold
	switch {
	case charges == 1:
		how = take
	case enforced > 1:
		if allowed, err = s.each(ctx, w, gather); err != nil || !allowed {
			for i := range w.leased {
				if p := &w.leased[i]; p.entry != nil && p.charge.Verdict.Allowed && !p.charge.Failed {
					p.stands()
				}
			}
			return allowed, err
		}
		how = holdAtOnce
	}
	return s.each(ctx, w, how)
}

// each decides the enforced parts in that way, and looks at the rest of them when one
// has refused.
func (s *Store) each(ctx context.Context, w *work, how way) (allowed bool, err error) {
	for i := range w.leased {
		p := &w.leased[i]
		if p.charge.Shadow {
			continue
		}
		if err := s.do(ctx, p, how); err != nil {
			return false, err
		}
		if !p.charge.Verdict.Allowed {
			how = look
		}
	}
	return how != look, nil
}

// shadow decides a charge that refuses nothing, when the request is decided. It does not
// wait for more.
func (s *Store) shadow(ctx context.Context, p *part, allowed bool) {
	how := look
	if allowed {
		how = holdAtOnce
	}
	if s.do(ctx, p, how) != nil {
		p.charge.Verdict, p.charge.Failed = limit.Verdict{Allowed: true, Remaining: p.own.quota}, true
	}
}

// refused tells the store behind of a request that a lease refused: charges that count
// such requests are made, the others are only asked.
func (s *Store) refused(ctx context.Context, w *work) error {
	for _, counts := range []bool{true, false} {
		w.some, w.origin = w.some[:0], w.origin[:0]
		for i := range w.exact {
			if c := &w.exact[i]; (c.CountRefused || c.Counters.Spec().Policy.CountRefused) == counts {
				w.some, w.origin = append(w.some, w.exact[i]), append(w.origin, i)
			}
		}
		if len(w.some) == 0 {
			continue
		}
		ask := s.exact.Peek
		if counts {
			ask = s.exact.Take
		}
		if _, err := ask(ctx, w.some); err != nil {
			return err
		}
		for j, i := range w.origin {
			w.exact[i] = w.some[j]
			if c := &w.exact[i]; !counts && c.Verdict.Allowed && !c.Failed {
				c.Verdict.Remaining += c.Cost // which was not taken
			}
		}
	}
	return nil
}

// drain charges what counts though it was refused to the leases, as far as they have it.
func (s *Store) drain(w *work) {
	for i := range w.leased {
		p := &w.leased[i]
		if p.charge.CountRefused && p.charge.Cost > 0 && s.reach(p, take) == nil && p.entry != nil {
			p.entry.charger.drain(p.charge.Cost)
		}
	}
}

// undo gives back what the parts hold, as the request is refused, and makes their
// verdicts say how they stand.
func (s *Store) undo(w *work) {
	for i := range w.leased {
		p := &w.leased[i]
		if !p.held {
			continue
		}
		p.entry.charger.undo(p)
		p.stands()
	}
}

// stands makes the verdict of what was given back say how the lease stands.
func (p *part) stands() {
	v := p.charge.Verdict
	if p.entry.charger.peek(p) == nil {
		v.Remaining, v.ResetAfter = p.charge.Verdict.Remaining, p.charge.Verdict.ResetAfter
	}
	p.charge.Verdict = v
}

// way is how a part is decided.
type way uint8

const (
	take       way = iota // for good
	hold                  // so that it can be undone
	holdAtOnce            // the same, without asking for more
	gather                // hold, and undo it at once
	look                  // taking nothing
)

// do decides one part. What is wrong with the lease is decided as the charge asks for;
// an error is the caller's, or says that the limits have changed.
func (s *Store) do(ctx context.Context, p *part, how way) error {
	c := p.charge
	c.Failed, p.unknown = false, false
	if c.Cost > p.to.most.Load() {
		// It is no demand: asking for it would only take from others.
		c.Verdict = limit.Verdict{Reason: limit.ReasonCost, RetryAfter: limit.Never}
		return nil
	}
	if s.other != nil && s.other() != "" {
		c.Verdict, c.Failed = limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: time.Second}, true
		return nil
	}
	err := s.reach(p, how)
	if err == nil && p.entry != nil {
		switch charger := p.entry.charger; {
		case how == look || c.Cost == 0:
			err = charger.peek(p)
		case how == take:
			err = charger.take(ctx, p)
		default:
			if err = charger.hold(ctx, p, how != holdAtOnce); how == gather {
				charger.undo(p)
			}
		}
	}
	switch {
	case err == nil && !p.unknown:
		return nil
	case err == nil && how == holdAtOnce && c.Shadow:
		// It has been asked for, and a shadow does not wait for the answer.
		c.Verdict = limit.Verdict{Allowed: true, Remaining: p.own.quota}
		return nil
	case err == nil:
		return p.fail()
	case errors.Is(err, errFull), errors.Is(err, client.ErrRefused) && p.own.route.to.Load() == p.to:
		c.Verdict = limit.Verdict{Reason: limit.ReasonTableFull, RetryAfter: leastIdle}
		return nil
	case errors.Is(err, errMoved), p.own.route.to.Load() != p.to:
		return errMoved
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return p.fail()
	}
}

// reach looks up the lease of a part. A look at a key that has none opens none: as far
// as is known here nobody uses it.
func (s *Store) reach(p *part, how way) (err error) {
	if p.entry != nil {
		return nil
	}
	if how != look && p.charge.Cost > 0 {
		p.entry, err = s.table.get(p.to, p.charge.Key)
		return err
	}
	if p.entry = s.table.known(p.to, p.charge.Key); p.entry == nil {
		p.charge.Verdict = limit.Verdict{Allowed: true, Remaining: p.own.quota}
	}
	return nil
}

// fail decides without a lease. There is no share of the limit for FailLocal: the lease
// would be that.
func (p *part) fail() error {
	c := p.charge
	switch c.OnFailure {
	case store.FailTake:
		return fmt.Errorf("leased: no lease of limit %q: %w", p.to.name, store.ErrUnavailable)
	case store.FailAllow:
		c.Verdict = limit.Verdict{Allowed: true, Remaining: p.own.quota}
	default:
		c.Verdict = limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: time.Second}
	}
	c.Failed = true
	return nil
}
