package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
)

// ErrCost says that a cost is too large: a sum of costs overflows, or a cost is above
// [MaxCount]. A cost below 0 is [ErrNegativeCost].
var ErrCost = errors.New("limit: cost too large")

// Scope is one of several limits that a request has to pass together, such as those of its
// connection, its channel and its account; see [All].
type Scope struct {
	// Name is the limit's name in the scope's Results, such as "messages.maxRate". Empty = the
	// name that the Taker gives, for a Taker of several limits. Names of scopes are unique.
	Name string

	// Taker decides. At most one scope may have a Taker that is not a [Preparer].
	Taker Taker

	// Cost returns the cost of a request in this scope; nil = the request's own Cost. It is
	// called once for each decision, before anything is taken, and may depend on the moment: a
	// message to a channel costs one for each present subscriber. 0 leaves the scope out. An
	// error, a negative cost and one above MaxCount end the Take with an error. [SumCosts] adds
	// without overflow. Cost has to be safe for concurrent use.
	Cost func(Request) (int64, error)
}

// maxScopes bounds the scopes of one request. Not more: what is prepared in one scope is missing
// to other requests while the rest are asked. Not fewer: applications use up to a dozen.
const maxScopes = 64

// Scopes decide a request by several limits at once: it is admitted by all, or charged
// to none. Use [All]. Scopes are safe for concurrent use and start no goroutine.
//
// The scopes are asked in this order: those of this process, then those that other processes
// share ([Preparer.Shared]), then the one that is no Preparer; within each kind in the order
// given to All. The first refusal ends the decision, and what was taken before it is given back.
// A Decision has its Results in that order, so [Decision.Refused] is the first that refused.
//
// While one scope waits, as a lease does that asks for more, nothing is prepared in any other:
// the others are decided again afterwards. All waits of a request begin within half a second.
type Scopes struct {
	holders []scope
	last    scope // the one that is no Preparer; its Taker is nil if there is none

	mu      sync.Mutex
	permits map[uint64][]scopePermit
	serial  uint64
}

type scope struct {
	Scope
	holder Preparer // nil for the last
}

// scopePermit is a permit of one scope behind a permit of Scopes.
type scopePermit struct {
	finisher Finisher
	permit   uint64
}

var (
	_ Finisher        = (*Scopes)(nil)
	_ AttributeReader = (*Scopes)(nil)
)

// All returns the limits of which a request has to pass all. It is an error if there are none or
// more than 64, if a Taker is nil, if two have the same name, or if several are no [Preparer]:
// what such a Taker has taken cannot be given back, so it has to be asked last.
func All(scopes ...Scope) (*Scopes, error) {
	if len(scopes) == 0 || len(scopes) > maxScopes {
		return nil, fmt.Errorf("limit: %d scopes, want 1 to %d", len(scopes), maxScopes)
	}
	s := &Scopes{permits: map[uint64][]scopePermit{}}
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

// Take decides a request by all scopes. A refusal has a Result of each Preparer: those that had
// admitted show what they have after the rollback, and those that were not asked how they stand,
// so that [Decision.RetryAfter] is when all may admit.
//
// With [Request.CountRefused] a refused request is charged to each scope after that, one
// by one.
//
// An error means that nothing was decided and nothing charged. There are two exceptions: an
// error of the scope that is no Preparer means what its documentation says, and after an error
// in counting a refused request other scopes may have counted it.
func (s *Scopes) Take(ctx context.Context, req Request) (Decision, error) {
	return s.TakeInto(ctx, req, nil)
}

// TakeInto is Take with memory for the Results: they are stored in results[:0]. With room for
// all, only a Cost, a permit or the scope that is no Preparer may allocate.
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

// Finish implements [Finisher]: one Finish gives back the permits of all scopes.
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

// Attributes implements [AttributeReader]: what the Takers read. Attributes that a Cost reads
// are not among them.
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
