package spending

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/keytable"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// sort separates charges on leases from the others.
func (s *Store) sort(charges []store.Charge) *work {
	w := s.pool.Get().(*work)
	for i := range charges {
		c := &charges[i]
		own, to := routed(c)
		c.Failed = false
		if to != nil {
			w.leased = append(w.leased, part{charge: c, own: own, to: to})
			continue
		}
		w.exact = append(w.exact, *c)
		w.exact[len(w.exact)-1].Counters = exact(c.Counters)
		w.index = append(w.index, i)
	}
	return w
}

func (s *Store) release(w *work) {
	for i := range w.leased {
		if e := w.leased[i].entry; e != nil {
			e.Done()
		}
	}
	clear(w.leased)
	clear(w.exact)
	clear(w.some)
	w.leased, w.exact, w.index, w.some, w.origin = w.leased[:0], w.exact[:0], w.index[:0], w.some[:0], w.origin[:0]
	const most = 1 << 10
	if cap(w.leased) <= most && cap(w.exact) <= most {
		s.pool.Put(w)
	}
}

// plain says whether no charge is on a lease.
func plain(charges []store.Charge) bool {
	for i := range charges {
		if _, to := routed(&charges[i]); to != nil {
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
		charges[i].Counters = exact(charges[i].Counters)
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
	return false, fmt.Errorf("spending: the limits change all the time: %w", store.ErrUnavailable)
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
		return behind(ctx, charges, s.BanKeeper.Take)
	}
	return again(func() (bool, error) { return s.takeOnce(ctx, charges) })
}

func (s *Store) takeOnce(ctx context.Context, charges []store.Charge) (bool, error) {
	w := s.sort(charges)
	defer s.release(w)
	allowed, err := s.prepare(ctx, w)
	if err == nil && len(w.exact) > 0 {
		if allowed {
			allowed, err = s.BanKeeper.Take(ctx, w.exact)
		} else {
			err = s.refused(ctx, w)
		}
	}
	if err != nil {
		if charges[len(charges)-1].Once && errors.Is(err, store.ErrUnavailable) {
			w.commit() // the store behind may have taken, and then the same Take will be answered as repeated
		} else {
			w.rollback()
		}
		return false, err
	}
	w.answers(charges)
	if allowed {
		w.commit()
	} else {
		w.rollback()
	}
	repeated := charges[len(charges)-1].Once && !charges[len(charges)-1].Verdict.Allowed
	for i := range w.leased {
		if p := &w.leased[i]; p.always() && !repeated && (!allowed || p.charge.Shadow) {
			if fault := s.owe(ctx, p); p.charge.Shadow {
				err = errors.Join(err, fault) // nobody is refused: who charges tries again
			}
		} else if p.charge.Shadow {
			s.shadow(ctx, p, allowed)
		}
	}
	return allowed && err == nil, err
}

const (
	// maxWaits bounds the waits of a request over several leases, and longestWaits the time in
	// which they begin; see [limit.Scopes]. Not more: each wait that ends well shows that there
	// is something. Not fewer, or shorter: each lease may be new.
	maxWaits     = 32
	longestWaits = 500 * time.Millisecond
)

// prepare takes tentatively what is enforced from the leases, and reports whether all have it.
//
// Of several leases one that is short is waited for with nothing held of the others: what is held
// and given back is missing to other requests meanwhile. Then the others are taken from again.
func (s *Store) prepare(ctx context.Context, w *work) (allowed bool, err error) {
	how, enforced := take, 0
	for i := range w.leased {
		if !w.leased[i].charge.Shadow {
			enforced++
		}
	}
	if enforced > 1 {
		how = takeAtOnce
	}
	refuser, err := s.prepareAll(ctx, w, how)
	var begin time.Time
	for waits := 0; err == nil && refuser < len(w.leased) && w.leased[refuser].more && how == takeAtOnce && waits < maxWaits; waits++ {
		if waits == 0 {
			begin = time.Now()
		} else if time.Since(begin) >= longestWaits {
			break
		}
		w.rollback()
		p := &w.leased[refuser]
		if err = s.do(ctx, p, take); err != nil || !p.charge.Verdict.Allowed {
			break
		}
		refuser, err = s.prepareAll(ctx, w, how)
	}
	if err != nil || refuser == len(w.leased) {
		return err == nil, err
	}
	for i := refuser + 1; i < len(w.leased); i++ {
		if p := &w.leased[i]; !p.charge.Shadow && !p.held {
			if err := s.do(ctx, p, peek); err != nil {
				return false, err
			}
		}
	}
	return false, nil
}

// prepareAll takes what is not held yet. It returns the first that refuses; the number of all if
// none does.
func (s *Store) prepareAll(ctx context.Context, w *work, how way) (refuser int, err error) {
	for i := range w.leased {
		p := &w.leased[i]
		if p.charge.Shadow || p.held {
			continue
		}
		if err := s.do(ctx, p, how); err != nil {
			return i, err
		}
		if !p.charge.Verdict.Allowed {
			return i, nil
		}
	}
	return len(w.leased), nil
}

// shadow decides a charge that refuses nothing, when the request is decided. It waits for the first
// answer about a key, since a request that is not counted would come on top of the limit before a
// tag marks the next one. It does not wait for more where the lease is short.
func (s *Store) shadow(ctx context.Context, p *part, allowed bool) {
	how := peek
	if allowed {
		how = takeAtOnce
	}
	err := s.do(ctx, p, how)
	if err == nil && how == takeAtOnce && p.unknown {
		err = s.do(ctx, p, take)
	}
	if err != nil {
		p.charge.Verdict, p.charge.Failed = limit.Verdict{Allowed: true, Remaining: p.own.quota}, true
	}
	p.commit()
}

// refused passes a request that a lease refused to the store behind: charges that count
// such requests are made, the others are only asked. Of a request that was made before all are only asked.
func (s *Store) refused(ctx context.Context, w *work) error {
	repeated := false
	if last := w.exact[len(w.exact)-1:]; last[0].Once {
		if _, err := s.BanKeeper.Peek(ctx, last); err != nil {
			return err
		}
		repeated = !last[0].Verdict.Allowed
	}
	for _, counts := range []bool{true, false} {
		w.some, w.origin = w.some[:0], w.origin[:0]
		for i := range w.exact {
			if c := &w.exact[i]; (!repeated && (c.CountRefused || c.Counters.Spec().Policy.CountRefused)) == counts {
				w.some, w.origin = append(w.some, w.exact[i]), append(w.origin, i)
			}
		}
		if len(w.some) == 0 {
			continue
		}
		ask := s.BanKeeper.Peek
		if counts {
			ask = s.BanKeeper.Take
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

// way is how a part is decided.
type way uint8

const (
	take       way = iota // tentatively, waiting for what the coordinator may answer
	takeAtOnce            // the same, without waiting
	peek                  // taking nothing
)

// do decides one part. What is wrong with the lease is decided as the charge asks for;
// an error is the caller's, or says that the limits have changed.
func (s *Store) do(ctx context.Context, p *part, how way) error {
	c := p.charge
	c.Failed, p.unknown, p.more = false, false, false
	if c.Cost > p.to.most.Load() {
		// It is no demand: asking for it would only take from others.
		c.Verdict = limit.Verdict{Reason: limit.ReasonCost, RetryAfter: limit.Never}
		return nil
	}
	if s.parted != nil {
		s.parted()
	}
	done, err := s.ask(ctx, p, how)
	if done && err == nil {
		return nil
	}
	if err == nil {
		err = s.reach(p, how)
	}
	if err == nil && p.entry != nil {
		if how == peek || c.Cost == 0 {
			err = p.entry.Value.peek(p)
		} else {
			err = p.entry.Value.prepare(ctx, p, how == take)
		}
	}
	switch {
	case err == nil && (!p.unknown || p.more && !c.Shadow): // it is waited for, if anything
		return nil
	case err == nil && how == takeAtOnce && c.Shadow:
		// It has been asked for; shadow waits for the answer.
		c.Verdict = limit.Verdict{Allowed: true, Remaining: p.own.quota}
		return nil
	case errors.Is(err, errMoved), s.moved(p):
		return errMoved
	case err == nil:
		return p.fail()
	case errors.Is(err, keytable.ErrFull), errors.Is(err, client.ErrRefused):
		c.Verdict = limit.Verdict{Reason: limit.ReasonTableFull, RetryAfter: keytable.LeastIdle}
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	default:
		return p.fail()
	}
}

// moved says whether the limit of p is leased no more, or as another; a reload under way is waited
// for.
func (s *Store) moved(p *part) bool {
	s.reloading.RLock()
	defer s.reloading.RUnlock()
	return p.own.route.to.Load() != p.to
}

// reach looks up the lease of a part. A peek at a key that has none opens none: as far
// as is known here nobody uses it.
func (s *Store) reach(p *part, how way) (err error) {
	if p.entry != nil {
		return nil
	}
	if how != peek && p.charge.Cost > 0 {
		p.entry, err = s.get(p.to, p.charge.Key)
		return err
	}
	if p.entry = s.known(p.to, p.charge.Key); p.entry == nil {
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
		return fmt.Errorf("spending: no lease of limit %q: %w", p.to.name, store.ErrUnavailable)
	case store.FailAllow:
		c.Verdict = limit.Verdict{Allowed: true, Remaining: p.own.quota}
	default:
		c.Verdict = limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: time.Second}
	}
	c.Failed = true
	return nil
}
