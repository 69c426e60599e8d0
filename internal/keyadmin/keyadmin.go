// Package keyadmin reads and changes the counter of one key by hand: it shows how it stands, resets it, gives
// back what was taken, and grants more for the rest of a window. Each change is made once for a request ID, is
// bounded, and is noted in the list of changes.
//
// It decides no request, and knows no HTTP.
package keyadmin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/audit"
	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// ErrBadRequest is wrapped by the errors that the caller has caused. ErrUnknown says that there is no such limit.
var (
	ErrBadRequest = errors.New("bad request")
	ErrUnknown    = errors.New("there is no such limit")
)

// Options are the parts of [Keys]. Engine, Records and Audit are needed.
type Options struct {
	Engine  *engine.Engine
	Records store.Records
	Audit   *audit.Log
	// Requests keeps which request IDs were seen; nil = Records.
	Requests store.Records
	// Others are the other members of a cluster whose counters are their own; nil = there are none.
	Others Others
	// Grants are those by which the engine raises quotas; nil = nothing can be granted.
	Grants *Grants
	// Reserved knows what is reserved of a key; nil = nothing ever is.
	Reserved Reserved
	// MaxGrant bounds what one key is granted in one window, in percent of its quota; 0 = 100.
	MaxGrant int64
	// Now is the clock; nil = the system's. Logger nil = slog.Default.
	Now    func() limit.Time
	Logger *slog.Logger
}

// Keys reads and changes counters. It is safe for concurrent use. Make it with [New].
type Keys struct{ opts Options }

// New returns what reads and changes the counters of an engine.
func New(o Options) *Keys {
	o.MaxGrant = cmp.Or(max(o.MaxGrant, 0), 100)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Requests == nil {
		o.Requests = o.Records
	}
	if o.Now == nil {
		o.Now = func() limit.Time { return limit.At(time.Now()) }
	}
	return &Keys{o}
}

// Key names a counter.
type Key struct {
	// Limit is the limit's name, and Override the condition of the override whose counter is meant, as
	// [State] has it; "" = the limit's own.
	Limit    string `json:"limit"`
	Override string `json:"override,omitempty"`
	// Attributes are those of the limit's key.
	Attributes []limit.Attribute `json:"attributes"`
}

// Change says who changes something.
type Change struct {
	// Who is noted. ID, when set, makes the change once: asked for again with the same ID within a week it
	// answers what it answered then.
	Who, ID string
}

// State is how a counter stands.
type State struct {
	Limit    string `json:"limit"`
	Override string `json:"override,omitempty"`
	// Quota is the most that the key may use, with what was granted; Remaining is what is left of it, and
	// Used the difference: at least what counts, for a limit in debt shows no more than its quota.
	Quota     int64 `json:"quota"`
	Used      int64 `json:"used"`
	Remaining int64 `json:"remaining"`
	Granted   int64 `json:"granted,omitempty"`
	// ResetAfter is when nothing of it counts any more, in seconds.
	ResetAfter float64 `json:"reset_after"`
	// Changed is what this call gave back or granted.
	Changed int64 `json:"changed,omitempty"`
	// Members is what other members of a cluster have of it, whose counters are their own, and Unreached are those
	// that did not answer: what they have counted stays as it was.
	Members   []MemberState `json:"members,omitempty"`
	Unreached []string      `json:"unreached,omitempty"`
	// Repeated says that the change was made before, by a request with the same ID.
	Repeated bool `json:"repeated,omitempty"`
}

// counter is one that was found.
type counter struct {
	engine.Counted
	key   []byte
	quota int64
	own   bool // charges say the quota
}

func (c *counter) charge(cost int64) []store.Charge {
	charge := store.Charge{Counters: c.Counters, Key: c.key, Cost: cost}
	if c.own {
		charge.Quota, charge.HasQuota = c.quota, true
	}
	return []store.Charge{charge}
}

func (c *counter) grantKey() grantKey { return grantKey{c.Variant.ID, string(c.key)} }

// Get returns how the key stands, with the limit's own counter first and those of its overrides behind it.
func (k *Keys) Get(ctx context.Context, key Key) ([]State, error) {
	list, err := k.find(key, true)
	if err != nil {
		return nil, err
	}
	var all []State
	for i := range list {
		s, err := k.state(ctx, &list[i])
		if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// find returns the counter of a key, or that of every variant for any.
func (k *Keys) find(key Key, any bool) ([]counter, error) {
	counters := k.opts.Engine.Counters(key.Limit, key.Attributes)
	if len(counters) == 0 {
		var names []string
		for _, l := range k.opts.Engine.Set().Limits() {
			names = append(names, l.Name)
		}
		hint := "stint check lists the limits"
		if near, ok := document.Suggest(key.Limit, names); ok {
			hint = fmt.Sprintf("did you mean %q?", near)
		} else if slices.Contains(names, key.Limit) {
			hint = "it is unlimited and counts nothing"
		}
		return nil, fmt.Errorf("keyadmin: limit %.100q: %w with counters; %s", key.Limit, ErrUnknown, hint)
	}
	if counters[0].Limit.Envoy {
		return nil, fmt.Errorf("keyadmin: %w: limit %.100q is in Envoy's format, whose keys are not known by name", ErrBadRequest, key.Limit)
	}
	var found []counter
	var whens []string
	for _, c := range counters {
		whens = append(whens, fmt.Sprintf("%q", c.When))
		if c.When != key.Override && (!any || key.Override != "") {
			continue
		}
		raw, err := c.Limit.KeyFrom(key.Attributes)
		if err != nil {
			return nil, fmt.Errorf("keyadmin: %w: %w", ErrBadRequest, err)
		}
		one := counter{Counted: c, key: raw}
		one.quota, one.own = k.opts.Engine.Quota(&c, key.Attributes)
		found = append(found, one)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("keyadmin: %w: limit %.100q has no counter for override %.100q, want one of %s", ErrBadRequest, key.Limit, key.Override, strings.Join(whens[:min(len(whens), 10)], ", "))
	}
	return found, nil
}

func (k *Keys) state(ctx context.Context, c *counter) (State, error) {
	charge := c.charge(0)
	if _, err := k.opts.Engine.Peek(ctx, charge); err != nil {
		return State{}, fmt.Errorf("keyadmin: %w", err)
	}
	v := charge[0].Verdict
	s := State{
		Limit: c.Limit.Name, Override: c.When, Quota: c.quota,
		Remaining: v.Remaining, ResetAfter: v.ResetAfter.Seconds(),
	}
	if k.opts.Grants != nil && grantable(c.Variant.Policy) {
		s.Granted = k.opts.Grants.of(c.Variant.ID, c.key)
		s.Quota += s.Granted
	}
	s.Used = max(0, s.Quota-s.Remaining)
	return s, nil
}

// change makes one change of one counter and notes it.
func (k *Keys) change(ctx context.Context, action string, key Key, by Change, n int64, do func(c *counter, before State) (int64, error)) (State, error) {
	what := struct {
		Action string
		Key    Key
		N      int64
	}{action, key, n}
	return k.once(ctx, by.ID, what, func() (State, error) {
		list, err := k.find(key, false)
		if err != nil {
			return State{}, err
		}
		c := &list[0]
		before, err := k.state(ctx, c)
		if err != nil {
			return State{}, err
		}
		changed, failed := do(c, before)
		var elsewhere State
		if failed == nil && k.spread(c) {
			elsewhere = k.elsewhere(ctx, action, key, by, n, changed)
		}
		if failed != nil && !errors.Is(failed, store.ErrUnavailable) {
			return State{}, failed
		}
		after, err := k.state(ctx, c)
		if err != nil {
			after = before // it was changed all the same
		}
		after.Changed = changed
		after.Members, after.Unreached = elsewhere.Members, elsewhere.Unreached
		for _, m := range after.Members {
			after.Changed += m.Changed
		}
		entry := audit.Entry{
			Who: by.Who, Action: "key." + action, What: key.text(), Request: by.ID,
			Before: before.text(), After: fmt.Sprintf("%s, changed %d", after.text(), after.Changed),
		}
		if len(after.Unreached) > 0 {
			entry.After += ", not at " + strings.Join(after.Unreached, ", ")
		}
		if failed != nil {
			entry.After += ", and it may not last: the store did not answer"
		}
		if _, err = k.opts.Audit.Note(ctx, entry); err != nil {
			k.opts.Logger.Error("a counter was changed and the list of changes lacks it", "who", by.Who, "action", action, "key", key.text(), "err", err)
		}
		return after, failed
	})
}

func (s *State) text() string {
	return fmt.Sprintf("used %d of %d", s.Used, s.Quota)
}

func (k *Key) text() string {
	text := "key " + k.Limit
	if k.Override != "" {
		text += " (" + k.Override + ")"
	}
	for _, a := range k.Attributes {
		text += " " + a.Name + "=" + a.Value
	}
	return text
}

// Reserved is what reservations hold of keys of the counter of an ID.
type Reserved interface {
	// Held is how much is reserved: it counts as used, and comes back by itself.
	Held(ctx context.Context, counter string, key []byte) (int64, error)
	// Forget makes what is reserved come back to nobody.
	Forget(ctx context.Context, counter string, key []byte) error
}

// Reset makes the key as if it had never been seen: what it used, what it was granted, and its bans go. Reservations
// that are open give nothing back to it.
func (k *Keys) Reset(ctx context.Context, key Key, by Change) (State, error) {
	return k.change(ctx, "reset", key, by, 0, func(c *counter, before State) (int64, error) {
		used, err := k.used(ctx, c, before)
		if err != nil {
			return 0, err
		}
		charges := c.charge(0)
		for _, b := range k.opts.Engine.Banners(key.Limit) {
			if b.When == c.When {
				charges = append(charges, store.Charge{Counters: b.Counters, Key: c.key})
			}
		}
		if k.opts.Reserved != nil { // before the reset: what comes back in between is reset as well
			if err := k.opts.Reserved.Forget(ctx, c.Counters.Spec().ID, c.key); err != nil {
				return 0, fmt.Errorf("keyadmin: %w", err)
			}
		}
		if err := k.opts.Engine.Reset(ctx, charges); err != nil {
			return 0, fmt.Errorf("keyadmin: %w", err)
		}
		if k.opts.Grants != nil && grantable(c.Variant.Policy) {
			if err := k.opts.Grants.forget(ctx, c.grantKey()); err != nil {
				return 0, err
			}
		}
		return used, nil
	})
}

// used returns what the key has used in the window of a grant. State.Used is at most the quota, which another member
// that resets the key may have lowered by taking the grant back.
func (k *Keys) used(ctx context.Context, c *counter, is State) (int64, error) {
	granted := k.mostGranted(c)
	if !grantable(c.Variant.Policy) || c.Limit.Sharing.Local() || is.Remaining > 0 || granted > (exactCount-c.quota)/2 {
		return is.Used, nil
	}
	charge := c.charge(0)
	charge[0].Quota, charge[0].HasQuota = c.quota+granted, true
	if _, err := k.opts.Engine.Peek(ctx, charge); err != nil {
		return 0, fmt.Errorf("keyadmin: %w", err)
	}
	return charge[0].Quota - charge[0].Verdict.Remaining, nil
}

// exactCount is the largest quota that each store counts exactly. Redis has the least.
const exactCount = 1 << 50

// mostGranted returns how much a key may be granted in one window.
func (k *Keys) mostGranted(c *counter) int64 {
	most := c.quota/100*k.opts.MaxGrant + c.quota%100*k.opts.MaxGrant/100
	return max(0, min(most, limit.MaxCount-c.quota))
}

// Refund gives back n of what the key used, at most what it used. Reserved tokens are not used yet: they come back by
// themselves.
func (k *Keys) Refund(ctx context.Context, key Key, n int64, by Change) (State, error) {
	if err := amount(n); err != nil {
		return State{}, err
	}
	return k.change(ctx, "refund", key, by, n, func(c *counter, before State) (back int64, err error) {
		if c.Variant.Policy.Algorithm == limit.Concurrency {
			return 0, fmt.Errorf("keyadmin: %w: limit %.100q counts what is in flight: that ends by itself", ErrBadRequest, key.Limit)
		}
		if c.Limit.Sharing.Local() {
			return 0, fmt.Errorf("keyadmin: %w: limit %.100q is decided by instances on what each is lent: no count says what the key has used, so that nothing can be given back of it; reset the key", ErrBadRequest, key.Limit)
		}
		held := int64(0)
		if k.opts.Reserved != nil {
			if held, err = k.opts.Reserved.Held(ctx, c.Counters.Spec().ID, c.key); err != nil {
				return 0, fmt.Errorf("keyadmin: %w", err)
			}
		}
		// A key in debt has used more than is shown. It is paid a quota at a time, each of which is seen to have
		// been used.
		for state, steps := before, 0; ; steps++ {
			some := min(n-back, state.Used-held)
			if some <= 0 {
				return back, nil
			}
			if state.Remaining > 0 || steps == maxSteps {
				n = back + some
			}
			if err := k.opts.Engine.Refund(ctx, c.charge(some)); err != nil {
				return back, fmt.Errorf("keyadmin: %w", err)
			}
			if back += some; back == n {
				return back, nil
			}
			if state, err = k.state(ctx, c); err != nil {
				return back, fmt.Errorf("keyadmin: %w", err)
			}
		}
	})
}

// maxSteps is how many quotas of a debt one refund pays. Not more: each asks the store twice.
const maxSteps = 100

// Grant lets the key use n more in the window that is open: at most [Options.MaxGrant] percent of its quota in
// all. It is for fixed windows.
func (k *Keys) Grant(ctx context.Context, key Key, n int64, by Change) (State, error) {
	if err := amount(n); err != nil {
		return State{}, err
	}
	return k.change(ctx, "grant", key, by, n, func(c *counter, _ State) (int64, error) {
		p := c.Variant.Policy
		if k.opts.Grants == nil || !grantable(p) || p.Align == limit.AlignFirstHit {
			return 0, fmt.Errorf("keyadmin: %w: limit %.100q is no fixed window of the calendar or the clock without a ban: nothing can be granted for the rest of it; give back what was taken with a refund", ErrBadRequest, key.Limit)
		}
		window := limit.NewFixedCounter(p)
		_, until := window.Window(k.opts.Now())
		if _, err := k.opts.Grants.add(ctx, c.grantKey(), n, k.mostGranted(c), until); err != nil {
			return 0, err
		}
		k.opts.Engine.Granted(store.Charge{Counters: c.Counters, Key: c.key, Cost: n})
		return n, nil
	})
}

func amount(n int64) error {
	if n < 1 || n > limit.MaxCount {
		return fmt.Errorf("keyadmin: %w: the amount is %d, want 1 to %d", ErrBadRequest, n, int64(limit.MaxCount))
	}
	return nil
}
