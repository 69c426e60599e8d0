package outgoing

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/accepts"
	"github.com/stint-io/stint/internal/answer/reader"
	"github.com/stint-io/stint/internal/holdoff"
	"github.com/stint-io/stint/internal/keytable"
	"github.com/stint-io/stint/internal/retrybudget"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/throttle"
)

// maxName bounds hosts and scopes in bytes, since requests may be built from the input of strangers.
const maxName = 255

// maxSlow bounds the scopes of one server that have a throttle of their own since their requests were not
// answered in time. Where more are slow it is the server that is slow. Not fewer: a server may have some calls
// that wait for an event. Not more: each takes some 2 KiB, and a server that hangs gets ten requests of each.
const maxSlow = 8

// throttleName is the throttle's name in Decisions.
const throttleName = "client-throttle"

// Call describes a request that is to be sent.
type Call struct {
	Host  string // the server; names of more than 255 bytes are cut
	Scope string // what of the server: requests of one scope are taken to meet the same policies
	// Criticality is the request's class; 0 = that of its context.
	Criticality Criticality
	// Attributes describe the request to the limit of one's own, besides host.
	Attributes []limit.Attribute
}

// Guard decides which requests are sent. It is safe for concurrent use and starts no goroutine,
// except for requests that wait for Limit. [New] makes one.
type Guard struct {
	rules    rules
	origin   time.Time
	hosts    *keytable.Table[*host]
	limit    limit.Taker
	wait     func(context.Context, limit.Request, time.Duration) (limit.Decision, error) // nil = it is not waited for
	finisher limit.Finisher                                                              // nil = the limit holds no permits
	counts   counts
}

// host is what is known of one server.
type host struct {
	mu       sync.Mutex
	throttle *accepts.Throttle
	slow     map[string]*accepts.Throttle // of scopes
	budget   *retrybudget.Budget
	holds    *holdoff.Book
}

// own returns the throttle of a scope with a request that was not answered in time; nil = there are too many.
func (h *host) own(now limit.Time, scope string, c accepts.Config) *accepts.Throttle {
	if t := h.slow[scope]; t != nil {
		return t
	}
	maps.DeleteFunc(h.slow, func(_ string, t *accepts.Throttle) bool { return t.Calm(now) })
	if len(h.slow) >= maxSlow {
		return nil
	}
	if h.slow == nil {
		h.slow = map[string]*accepts.Throttle{}
	}
	h.slow[scope] = accepts.New(c)
	return h.slow[scope]
}

// Idle implements keytable.Value: what a server asked for is not forgotten.
func (h *host) Idle(now limit.Time) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.holds.Latest() <= now
}

// Close implements keytable.Value.
func (h *host) Close() {}

// New returns a Guard, or an error that names the value out of its range.
func New(p Policy) (*Guard, error) {
	r, err := p.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &Guard{rules: r, origin: time.Now(), hosts: keytable.New[*host](r.MaxHosts, r.throttle.Window), limit: p.Limit}
	if p.Limit == nil {
		return g, nil
	}
	if p.MaxWait > 0 {
		type waiter interface {
			WaitMax(context.Context, limit.Request, time.Duration) (limit.Decision, error)
		}
		w, ok := p.Limit.(waiter)
		if !ok {
			q, err := limit.NewQueue(p.Limit, limit.QueueOptions{})
			if err != nil {
				return nil, err
			}
			g.limit, w = q, q
		}
		g.wait = w.WaitMax
	}
	g.finisher, _ = g.limit.(limit.Finisher)
	return g, nil
}

// now is the time since the epoch by a clock that does not step.
func (g *Guard) now() limit.Time { return limit.At(g.origin).Add(time.Since(g.origin)) }

// Attempt is a request that is being sent. It is ended by [Attempt.End], and then released by
// [Attempt.Release].
type Attempt struct {
	guard   *Guard
	entry   *keytable.Entry[*host] // nil = nothing is remembered of the server
	call    Call
	sent    accepts.Attempt
	slow    *accepts.Throttle // of the scope; nil = none
	ofSlow  accepts.Attempt
	request limit.Request
	permit  uint64
	ended   atomic.Bool
	freed   atomic.Bool
}

// Begin asks whether a request may be sent. It returns an Attempt, or a *[Refusal], or the error of
// ctx, or that of the limit of one's own when no decision could be made.
func (g *Guard) Begin(ctx context.Context, c Call) (*Attempt, error) { return g.begin(ctx, c, false) }

func (g *Guard) begin(ctx context.Context, c Call, retry bool) (*Attempt, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if c.Criticality == throttle.Default {
		c.Criticality = ImportanceOf(ctx).Criticality
	}
	c.Host, c.Scope = strings.ToLower(bound(c.Host)), bound(c.Scope)
	start := g.now()
	entry, err := g.host(start, c.Host)
	a := &Attempt{guard: g, entry: entry, call: c}
	if err == nil {
		if err := a.enter(ctx, start); err != nil {
			entry.Done()
			return nil, g.refused(ctx, err)
		}
	}
	if g.limit != nil {
		if err := a.take(ctx, g.rules.MaxWait-time.Duration(g.now()-start)); err != nil {
			a.ended.Store(true)
			a.settle(Dropped, Standing{})
			a.Release()
			return nil, g.refused(ctx, err)
		}
	}
	g.counts.sent.Add(1)
	if entry != nil && !retry {
		h := entry.Value
		h.mu.Lock()
		h.budget.Request()
		h.mu.Unlock()
	}
	return a, nil
}

// host returns what is known of a server. Its error is that the table is full.
func (g *Guard) host(now limit.Time, name string) (*keytable.Entry[*host], error) {
	return g.hosts.Get(now, []byte(name), func(string) (*host, error) {
		return &host{
			throttle: accepts.New(g.rules.throttle),
			budget:   retrybudget.New(g.rules.budget),
			holds:    holdoff.New(g.rules.LongestHold),
		}, nil
	})
}

// enter asks what the server has said, waits for that if it may, and asks the throttle.
func (a *Attempt) enter(ctx context.Context, start limit.Time) error {
	g, h := a.guard, a.entry.Value
	for {
		now := g.now()
		h.mu.Lock()
		until, by := h.holds.Until(now, a.call.Scope)
		if until <= now || g.rules.Deaf {
			defer h.mu.Unlock()
			return a.throttled(now)
		}
		h.mu.Unlock()
		left, wait := g.rules.MaxWait-time.Duration(now-start), time.Duration(until-now)
		if deadline, ok := ctx.Deadline(); ok {
			left = min(left, time.Until(deadline))
		}
		if wait > left {
			return refusal(a.call.Host, Held, by, limit.ReasonRate, wait)
		}
		// Those that wait for the same moment do not come at the same moment.
		wait += min(time.Duration(rand.Float64()*float64(min(wait/10, g.rules.Retry.Base))), left-wait)
		if err := sleep(ctx, wait); err != nil {
			return err
		}
	}
}

// throttled asks the throttle, under the host's lock.
func (a *Attempt) throttled(now limit.Time) error {
	if a.guard.rules.Throttle.Off {
		return nil
	}
	h, of := a.entry.Value, class(a.call.Criticality)
	if slow := h.slow[a.call.Scope]; slow != nil {
		sent, wait, ok := slow.Send(now, of, rand.Float64())
		if !ok {
			return refusal(a.call.Host, Throttled, throttleName, limit.ReasonSuppressed, wait)
		}
		a.slow, a.ofSlow = slow, sent
	}
	sent, wait, ok := h.throttle.Send(now, of, rand.Float64())
	if !ok {
		if a.slow != nil {
			a.slow.Dropped(now, a.ofSlow)
		}
		return refusal(a.call.Host, Throttled, throttleName, limit.ReasonSuppressed, wait)
	}
	a.sent = sent
	if sent.Probe || a.ofSlow.Probe {
		a.guard.counts.probes.Add(1)
	}
	return nil
}

// take asks the limit of one's own, and waits for it for at most left.
func (a *Attempt) take(ctx context.Context, left time.Duration) error {
	g := a.guard
	a.request.Attributes = append(slices.Clip(a.call.Attributes), limit.Attribute{Name: "host", Value: a.call.Host})
	var d limit.Decision
	var err error
	if g.wait != nil {
		d, err = g.wait(ctx, a.request, max(left, 0))
		if errors.Is(err, limit.ErrWaitTooLong) || errors.Is(err, limit.ErrExceedsQuota) {
			d.Allowed, err = false, nil
		}
	} else {
		d, err = g.limit.Take(ctx, a.request)
	}
	if err != nil {
		return err
	}
	if !d.Allowed {
		d.Results = append([]limit.Result(nil), d.Results...) // they are the taker's
		return &Refusal{Host: a.call.Host, Cause: Limited, Decision: d}
	}
	decided := d
	g.rules.Hooks.Decided(ctx, &decided, nil)
	a.permit = d.Permit
	if d.Delay > 0 && g.wait == nil {
		return sleep(ctx, d.Delay) // as a leaky bucket asks for
	}
	return nil
}

// refused counts a refusal, and returns err.
func (g *Guard) refused(ctx context.Context, err error) error {
	var r *Refusal
	if errors.As(err, &r) {
		g.counts.heldBack[r.Cause].Add(1)
		g.rules.Hooks.Decided(ctx, &r.Decision, nil)
	} else if ctx.Err() == nil {
		g.rules.Hooks.Decided(ctx, nil, err)
	}
	return err
}

// Outcome is what became of an attempt.
type Outcome uint8

// The outcomes.
const (
	Accepted   Outcome = iota // the server answered, whatever it said
	Refused                   // it refused, or the connection broke before an answer
	Dropped                   // it never got the request, or the caller gave it up
	Unanswered                // it got the request, and did not answer by the caller's deadline
)

// Standing is what an answer says about the server's limits. The zero value is nothing.
type Standing = reader.Standing

// End says what became of the attempt. Only the first call counts.
func (a *Attempt) End(o Outcome, s Standing) {
	if a.ended.Swap(true) {
		return
	}
	a.guard.counts.outcomes[min(o, Unanswered)].Add(1)
	a.settle(o, s)
}

func (a *Attempt) settle(o Outcome, s Standing) {
	if a.entry == nil {
		return
	}
	g := a.guard
	defer a.entry.Done()
	h, now := a.entry.Value, g.now()
	h.mu.Lock()
	defer h.mu.Unlock()
	if o == Accepted || o == Refused {
		h.holds.Heard(now, a.call.Scope, s, o == Refused)
	}
	if g.rules.Throttle.Off {
		return
	}
	ofServer, ofScope := o, o
	if o == Unanswered {
		ofServer, ofScope = Dropped, Refused
		if a.slow == nil {
			a.slow, a.ofSlow = h.own(now, a.call.Scope, g.rules.throttle), accepts.Attempt{Class: class(a.call.Criticality)}
		}
		if a.slow == nil {
			ofServer = Refused
		}
	}
	settle(h.throttle, now, ofServer, a.sent)
	if a.slow != nil {
		settle(a.slow, now, ofScope, a.ofSlow)
	}
}

func settle(t *accepts.Throttle, now limit.Time, o Outcome, a accepts.Attempt) {
	switch o {
	case Accepted:
		t.Accepted(now, a)
	case Refused:
		t.Refused(now, a)
	default:
		t.Dropped(now, a)
	}
}

// finishTimeout bounds the release of permits. Not longer: the limit's time-out does the same. Not
// shorter: a store across a data centre answers in milliseconds.
const finishTimeout = time.Second

// Release gives back the permits in flight that the limit of one's own has given, when the answer
// has been read to its end. Only the first call counts.
func (a *Attempt) Release() {
	if a.permit == 0 || a.guard.finisher == nil || a.freed.Swap(true) {
		return
	}
	// It outlives the request's context, which may be done.
	ctx, cancel := context.WithTimeout(context.Background(), finishTimeout)
	defer cancel()
	_ = a.guard.finisher.Finish(ctx, a.request, a.permit) // where this fails they expire
}

// Holds says whether the attempt has to be released.
func (a *Attempt) Holds() bool { return a.permit != 0 && a.guard.finisher != nil }

func bound(name string) string { return name[:min(len(name), maxName)] }

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
