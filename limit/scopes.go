package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrCost says that a cost cannot be had: a sum of costs overflows, or one is above
// [MaxCount]. A cost below 0 is [ErrNegativeCost].
var ErrCost = errors.New("limit: cost too large")

// Scope is one of several limits that a request has to pass at once, such as those of
// its connection, its channel and its account; see [All].
type Scope struct {
	// Name is what the scope's limit is called in every Result of it, such as
	// "messages.maxRate". Empty = as the Taker calls it, which is for a Taker of
	// several limits. Names of scopes are unique.
	Name string

	// Taker decides. It is a [Preparer], or the only scope that is none.
	Taker Taker

	// Cost is what a request takes of this scope; nil = the request's own Cost. It is
	// asked once for each decision, before anything is taken, so it may count: a
	// message to a channel costs one for each subscriber that there is at that
	// moment. 0 leaves the scope out. An error, a negative cost and one above
	// MaxCount end the Take with an error. [SumCosts] adds without overflow. It has
	// to be safe for concurrent use.
	Cost func(Request) (int64, error)
}

// maxScopes bounds the scopes of one request. Not more: what is held of one is missing to
// others while the rest are asked. Not fewer: a dozen is much.
const maxScopes = 64

// Scopes decide a request by several limits at once: it is admitted by all, or charged
// to none. Use [All]. Scopes are safe for concurrent use and start no goroutine.
//
// The scopes are asked in an order of their own: those of this process, then those that
// others share ([Preparer.Shared]), then the one that is no Preparer; within each kind as
// they were given. The first that refuses ends it, and what was taken before is given
// back, so one that is asked later is never touched by what an earlier one refuses. A
// Decision has its Results in that order, so [Decision.Refused] is the first that refused.
//
// While a scope waits, as a lease does that asks for more, nothing is held of any other:
// the others are then decided again. All waits of a request together begin within half a
// second.
type Scopes struct {
	holders []scope
	last    scope // the one that is no Preparer; its Taker is nil if there is none

	mu      sync.Mutex
	permits map[uint64][]scopePlace
	serial  uint64
}

type scope struct {
	Scope
	holder Preparer // nil for the last
}

// scopePlace is where a permit of Scopes holds places.
type scopePlace struct {
	finisher Finisher
	permit   uint64
}

var (
	_ Finisher        = (*Scopes)(nil)
	_ AttributeReader = (*Scopes)(nil)
)

// All returns the limits that a request has to pass all of. It is an error if there are
// none or more than 64, a Taker is nil, two have one name, or several are no [Preparer]:
// what such a one has taken cannot be given back, so it has to be the last.
func All(scopes ...Scope) (*Scopes, error) {
	if len(scopes) == 0 || len(scopes) > maxScopes {
		return nil, fmt.Errorf("limit: %d scopes, want 1 to %d", len(scopes), maxScopes)
	}
	s := &Scopes{permits: map[uint64][]scopePlace{}}
	names := map[string]bool{"": false}
	for i, sc := range scopes {
		if names[sc.Name] {
			return nil, fmt.Errorf("limit: two scopes are called %q: a refusal has to say which one it was", sc.Name)
		}
		names[sc.Name] = sc.Name != ""
		holder, ok := sc.Taker.(Preparer)
		switch {
		case sc.Taker == nil:
			return nil, fmt.Errorf("limit: scope %d, %q, has no Taker", i+1, sc.Name)
		case ok:
			s.holders = append(s.holders, scope{sc, holder})
		case s.last.Taker != nil:
			return nil, fmt.Errorf("limit: neither scope %q (%T) nor %q (%T) can give back what it has taken: put their limits into one Taker, or make one a Preparer",
				s.last.Name, s.last.Taker, sc.Name, sc.Taker)
		default:
			s.last = scope{Scope: sc}
		}
	}
	slices.SortStableFunc(s.holders, func(a, b scope) int {
		return cmp.Compare(rank(a.holder), rank(b.holder))
	})
	return s, nil
}

func rank(h Preparer) int {
	if h.Shared() {
		return 1
	}
	return 0
}

// SumCosts adds costs. It returns [ErrNegativeCost] if one is below 0 and [ErrCost] if the
// sum is above [MaxCount].
func SumCosts(costs ...int64) (int64, error) {
	sum := int64(0)
	for _, c := range costs {
		switch {
		case c < 0:
			return 0, fmt.Errorf("%w, it is %d", ErrNegativeCost, c)
		case c > MaxCount-sum:
			return 0, fmt.Errorf("%w: the sum of %d costs is above %d", ErrCost, len(costs), int64(MaxCount))
		}
		sum += c
	}
	return sum, nil
}

// Take decides a request by all scopes. A refusal has a Result of each Preparer: those
// that had admitted say what they have, now that it is given back, and those that were
// not asked how they stand, so that [Decision.RetryAfter] is when all may admit.
//
// With [Request.CountRefused] a refused request is charged to each scope after that, one
// by one.
//
// An error says that nothing was decided and nothing charged, unless it comes from the
// one scope that is no Preparer, and its own documentation says otherwise; or from one
// that was to count a refused request, which others may have counted.
func (s *Scopes) Take(ctx context.Context, req Request) (Decision, error) {
	return s.TakeInto(ctx, req, nil)
}

// TakeInto is Take with memory for the Results: they are stored from results[:0] on. With
// room for all it allocates nothing but what a Cost, a permit or the scope that is no
// Preparer does.
func (s *Scopes) TakeInto(ctx context.Context, req Request, results []Result) (Decision, error) {
	if req.Cost < 0 || req.Cost > MaxCount {
		return Decision{}, costError(req.Cost)
	}
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	t := trial{scopes: s, req: req}
	if err := t.count(); err != nil {
		return Decision{}, err
	}
	t.results = slices.Grow(results[:0], len(s.holders)+1)[:len(s.holders)]
	clear(t.results)
	d, err := t.decide(ctx)
	if err == nil && !d.Allowed && req.CountRefused && !req.Peek {
		err = t.countRefused(ctx)
	}
	return d, err
}

// Finish implements [Finisher]: one Finish gives back the places of all scopes.
func (s *Scopes) Finish(ctx context.Context, req Request, permit uint64) error {
	s.mu.Lock()
	places := s.permits[permit]
	delete(s.permits, permit)
	s.mu.Unlock()
	var errs []error
	for _, p := range places {
		errs = append(errs, p.finisher.Finish(ctx, req, p.permit))
	}
	return errors.Join(errs...)
}

// Attributes implements [AttributeReader]: what the Takers read. What a Cost reads is
// described by whoever wrote it.
func (s *Scopes) Attributes() []string {
	var names []string
	for _, sc := range append(slices.Clip(s.holders), s.last) {
		if r, ok := sc.Taker.(AttributeReader); ok {
			names = append(names, r.Attributes()...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// wrap says which scope could not decide.
func (s *Scope) wrap(err error) error {
	if s.Name == "" {
		return err
	}
	return fmt.Errorf("limit: scope %q: %w", s.Name, err)
}

func costError(cost int64) error {
	if cost < 0 {
		return fmt.Errorf("%w, it is %d", ErrNegativeCost, cost)
	}
	return fmt.Errorf("%w: %d is above %d", ErrCost, cost, int64(MaxCount))
}
