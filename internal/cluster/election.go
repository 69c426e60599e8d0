package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// Election is one member's part in electing the leader of a scope. [New] makes it. Its methods are
// safe for concurrent use.
type Election struct {
	opts Options
	key  string
	base time.Time // the machine's times are since then, by the monotonic clock

	until  atomic.Int64 // Leads is true until then, since base in nanoseconds; 0 = it is false
	epoch  atomic.Uint64
	leader atomic.Pointer[leaderView]

	wishes  chan wish
	started atomic.Bool
	over    chan struct{} // closed when Run returns

	// loop is touched by the goroutine of Run alone.
	loop struct {
		machine
		events  chan any // answers of what the loop has started
		running sync.WaitGroup
		cancel  context.CancelFunc // ends the context of the term
		waiting []waiting
		retired []chan error
		leading Member // the leader of the last call of Observed
		known   bool
		failing bool  // the last call of the register failed
		fault   error // the last that was logged
	}
}

// leaderView is what is known of the leader, and until when, since base.
type leaderView struct {
	member Member
	until  time.Duration
}

// wish is a call of Publish or Resign.
type wish struct {
	event any // publish or retire
	done  chan error
}

// waiting is a call of Publish that waits for a version of the state to be written.
type waiting struct {
	version uint64
	done    chan error
}

// New returns an Election that takes part when it Runs.
func New(o Options) (*Election, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	run := make([]byte, 8)
	if _, err := rand.Read(run); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	e := &Election{
		opts:   o,
		key:    leaderPrefix + o.Scope,
		base:   time.Now(),
		wishes: make(chan wish),
		over:   make(chan struct{}),
	}
	e.loop.machine.cfg = config{
		self: o.Self, run: hex.EncodeToString(run), ttl: o.TTL,
		forgets: o.Register.Forgets(), first: o.First, epoch: o.Epoch, yield: o.Yield,
	}
	e.loop.machine.epoch = o.Known
	e.loop.events = make(chan any)
	e.leader.Store(&leaderView{})
	return e, nil
}

// Leads reports whether this member leads at now, which must have a monotonic reading. It is cheap,
// and false from the moment at which the term may have lapsed, whatever else the process was able
// to do since.
func (e *Election) Leads(now time.Time) bool { return int64(now.Sub(e.base)) < e.until.Load() }

// Left returns how much of the term is left at now; 0 or less when Leads is false.
func (e *Election) Left(now time.Time) time.Duration {
	return time.Duration(e.until.Load()) - now.Sub(e.base)
}

// Leader returns who leads, as far as is known: the holder of the record, until it is so old that
// it may be taken over. It may be this member before Leads is true, while Began runs.
func (e *Election) Leader() (Member, bool) {
	view := e.leader.Load()
	if time.Since(e.base) >= view.until {
		return Member{}, false
	}
	return view.member, true
}

// Epoch returns that of the latest term that is known, of whichever member; 0 = none.
func (e *Election) Epoch() uint64 { return e.epoch.Load() }

// Publish makes state the leader's, for its successor, and returns when it is written under this
// term. Of concurrent calls the latest state counts, and one write may serve all. It returns an
// error that wraps ErrNotLeader when there is no term or it ends meanwhile; then state may have
// been written or not. state must not be changed afterwards.
func (e *Election) Publish(ctx context.Context, state []byte) error {
	return e.ask(ctx, publish{state})
}

// Resign gives the term up with a last state, or with the one published last if state is nil. Ended
// has returned before the record says so; then the successor need not wait. It returns an error
// when there is no term, or when it is not known that the record says so. This member lets others
// go first for 2 TTLs and then campaigns again, unless Run's context has ended.
func (e *Election) Resign(ctx context.Context, state []byte) error {
	return e.ask(ctx, retire{state: state})
}

func (e *Election) ask(ctx context.Context, event any) error {
	w := wish{event, make(chan error, 1)}
	select {
	case e.wishes <- w:
	case <-ctx.Done():
		return ctx.Err()
	case <-e.over:
		return ErrNotLeader
	}
	select {
	case err := <-w.done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run takes part in the election until ctx ends. Then it gives up what it has, and returns nil when
// all that it started has ended. It returns an error only when it runs or has run already.
func (e *Election) Run(ctx context.Context) error {
	if e.started.Swap(true) {
		return errors.New("cluster: an Election runs once")
	}
	l := &e.loop
	calls := context.WithoutCancel(ctx) // giving up takes calls after ctx has ended
	hints := e.opts.Register.Watch(ctx, e.key)
	stop := ctx.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer close(e.over)
	defer l.running.Wait()
	for {
		var event any
		var asked wish
		select {
		case <-stop:
			stop = nil
			event = retire{stop: true}
		case _, ok := <-hints:
			if !ok {
				hints = nil
			}
			event = hint{}
		case event = <-l.events:
			e.logOutcome(event)
		case asked = <-e.wishes:
			if !l.term.held {
				asked.done <- ErrNotLeader
				continue
			}
			event = asked.event
		case <-timer.C:
			event = tick{}
		}
		now := time.Since(e.base)
		out := l.step(now, event)
		e.show(now)
		e.register(asked)
		if e.perform(calls, out); out.done {
			e.settle(ErrNotLeader)
			return nil
		}
		timer.Reset(out.wake - now)
	}
}

// show updates what other goroutines see of the machine.
func (e *Election) show(now time.Duration) {
	l := &e.loop
	e.until.Store(int64(l.leadsUntil()))
	e.epoch.Store(l.machine.epoch)
	view := leaderView{}
	view.member, view.until = l.leader()
	e.leader.Store(&view)
	if now >= view.until {
		view.member = Member{}
	}
	if known := now < view.until; known != l.known || view.member != l.leading {
		e.logLeader(view.member, known)
		l.known, l.leading = known, view.member
		e.opts.Observed(view.member, known)
	}
	if fault := l.seen.fault; fault != nil && (l.fault == nil || l.fault.Error() != fault.Error()) {
		e.opts.Logger.Error("nobody can be elected", "scope", e.opts.Scope, "error", fault)
	}
	l.fault = l.seen.fault
}

// logLeader says which other member leads, and when none does any more.
func (e *Election) logLeader(leader Member, known bool) {
	l, self := &e.loop, e.opts.Self
	switch {
	case known && leader.ID != self.ID:
		e.opts.Logger.Info("another member leads", "scope", e.opts.Scope, "leader", leader.ID, "address", cmp.Or(leader.Address, "unknown"), "epoch", l.machine.epoch)
	case !known && l.leading.ID != self.ID:
		e.opts.Logger.Info("nobody leads", "scope", e.opts.Scope, "last_leader", l.leading.ID, "epoch", l.machine.epoch)
	}
}

// register notes who waits for what the last event asks.
func (e *Election) register(w wish) {
	l := &e.loop
	switch w.event.(type) {
	case publish:
		l.waiting = append(l.waiting, waiting{l.state.version, w.done})
	case retire:
		l.retired = append(l.retired, w.done)
	}
}

// perform does what a step asks for.
func (e *Election) perform(ctx context.Context, out output) {
	l := &e.loop
	waits := l.waiting[:0]
	for _, w := range l.waiting {
		switch {
		case w.version <= l.state.written:
			w.done <- nil
		case !l.term.held:
			w.done <- ErrNotLeader
		default:
			waits = append(waits, w)
		}
	}
	l.waiting = waits
	if out.over != "" {
		e.opts.Logger.Info("the term has ended", "scope", e.opts.Scope, "epoch", l.term.epoch, "reason", out.over)
		if l.cancel != nil {
			l.cancel()
			l.cancel = nil
		}
	}
	if !l.resign.write && len(l.retired) > 0 {
		var err error
		if c := l.seen.claim; c == nil || c.Run != l.cfg.run || !c.Resigned {
			err = errors.New("cluster: it is not known whether the record says that the term was given up")
		}
		for _, done := range l.retired {
			done <- err
		}
		l.retired = nil
	}
	if out.begin != nil {
		term := *out.begin
		e.opts.Logger.Info("a term begins", "scope", e.opts.Scope, "epoch", term.Epoch, "former", term.Former, "clean", term.Clean)
		var held context.Context
		held, l.cancel = context.WithCancel(ctx)
		e.start(func() any {
			err := e.opts.Began(held, term)
			if err != nil {
				e.opts.Logger.Error("a term is given up", "scope", e.opts.Scope, "epoch", term.Epoch, "error", err)
			}
			return began{err}
		})
	}
	if out.end {
		e.start(func() any {
			e.opts.Ended()
			return ended{}
		})
	}
	if op := out.send; op != nil {
		e.start(func() any { return e.call(ctx, *op) })
	}
}

// start runs f beside the loop, which gets the event that it returns.
func (e *Election) start(f func() any) {
	e.loop.running.Go(func() { e.loop.events <- f() })
}

// call makes a call of the register.
func (e *Election) call(ctx context.Context, op operation) answered {
	ctx, cancel := context.WithTimeout(ctx, e.opts.TTL/timeoutsPerTTL)
	defer cancel()
	var a answered
	if op.swap {
		a.revision, a.err = e.opts.Register.Swap(ctx, e.key, op.revision, op.claim.encode())
	} else {
		a.record, a.err = e.opts.Register.Read(ctx, e.key)
	}
	return a
}

// logOutcome says when the register stops answering, and when it answers again.
func (e *Election) logOutcome(event any) {
	a, ok := event.(answered)
	if !ok {
		return
	}
	failed := a.err != nil && !errors.Is(a.err, ErrChanged)
	if failed && !e.loop.failing {
		e.opts.Logger.Warn("the cluster's register does not answer", "scope", e.opts.Scope, "error", a.err)
	}
	if !failed && e.loop.failing {
		e.opts.Logger.Info("the cluster's register answers again", "scope", e.opts.Scope)
	}
	e.loop.failing = failed
}

// settle answers those who still wait when Run ends.
func (e *Election) settle(err error) {
	for _, w := range e.loop.waiting {
		w.done <- err
	}
	for _, done := range e.loop.retired {
		done <- err
	}
}
