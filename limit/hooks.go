package limit

import (
	"context"
	"sync"
	"time"
)

// Hooks let a program count what a limit does, without this module knowing its metrics library.
// A nil field is not called. Hooks are called by the goroutines that ask, wait or make
// call-backs, many at a time: they must be quick, must not block, and must not use the limit
// that calls them. Names are those of limits; keys are never passed, so names may be labels.
type Hooks struct {
	// OnDecision is called by a middleware for each Decision, which belongs to the caller: do
	// not keep it. OnError is called instead where no decision could be made.
	OnDecision func(ctx context.Context, d *Decision)
	OnError    func(ctx context.Context, err error)

	// OnAdmit is called when a limit admits cost: by Allow, by a Take that is no peek, or by a
	// wait, with or without waiting; also for a permit in flight. A Reservation is no admission
	// yet and is not counted.
	OnAdmit func(limit string, cost int64)

	// OnRefuse is called when a limit refuses cost: by Allow, or by a Take that is no
	// peek. A wait that fails is an error of its caller. ReasonStoreFailure also stands for a
	// coordinator that lends nothing: the limit's Err says why.
	OnRefuse func(limit string, cost int64, reason Reason)

	// OnSkip is called when a limit does not apply to a request because that lacks an attribute
	// of the key.
	OnSkip func(limit string)

	// OnWaitStart is called when a wait begins, but not for a permit that is granted at once.
	// OnWaitEnd follows once: err is nil for a permit, context.Canceled for a wait that was
	// given up, and otherwise the error of the wait.
	OnWaitStart func(limit string, cost int64)
	OnWaitEnd   func(limit string, cost int64, waited time.Duration, err error)
}

// Admitted calls OnAdmit. Like the methods below it is for implementations of limits; a nil
// Hooks calls nothing.
func (h *Hooks) Admitted(limit string, cost int64) {
	if h != nil && h.OnAdmit != nil {
		h.OnAdmit(limit, cost)
	}
}

// Refused calls OnRefuse.
func (h *Hooks) Refused(limit string, cost int64, reason Reason) {
	if h != nil && h.OnRefuse != nil {
		h.OnRefuse(limit, cost, reason)
	}
}

// admits returns a done that calls OnAdmit before done, for a wait without blocking. It is done
// itself where nobody counts, which allocates nothing.
func (h *Hooks) admits(limit string, cost int64, done func(error)) func(error) {
	if h == nil || h.OnAdmit == nil {
		return done
	}
	return func(err error) {
		if err == nil {
			h.OnAdmit(limit, cost)
		}
		done(err)
	}
}

// Skipped calls OnSkip.
func (h *Hooks) Skipped(limit string) {
	if h != nil && h.OnSkip != nil {
		h.OnSkip(limit)
	}
}

// Decided calls OnDecision, or OnError for an error.
func (h *Hooks) Decided(ctx context.Context, d *Decision, err error) {
	switch {
	case h == nil:
	case err != nil && h.OnError != nil:
		h.OnError(ctx, err)
	case err == nil && h.OnDecision != nil:
		h.OnDecision(ctx, d)
	}
}

// Wait is one wait that Hooks are notified of. The zero value notifies nobody.
type Wait struct {
	hooks *Hooks
	limit string
	cost  int64
	begin time.Time
	start sync.Once
	end   sync.Once
}

// NewWait returns a wait that has not begun. It is nil where no hook is interested; the methods
// of a nil Wait do nothing.
func (h *Hooks) NewWait(limit string, cost int64) *Wait {
	if h == nil || h.OnWaitStart == nil && h.OnWaitEnd == nil {
		return nil
	}
	return &Wait{hooks: h, limit: limit, cost: cost, begin: time.Now()}
}

// Start notifies OnWaitStart, once.
func (w *Wait) Start() {
	if w == nil {
		return
	}
	w.start.Do(func() {
		if w.hooks.OnWaitStart != nil {
			w.hooks.OnWaitStart(w.limit, w.cost)
		}
	})
}

// End notifies OnWaitEnd of how the wait ended, and OnWaitStart before that if Start was not
// called yet: a call-back may end the wait before the goroutine that began it gets to Start.
func (w *Wait) End(err error) {
	if w == nil {
		return
	}
	w.Start()
	w.end.Do(func() {
		if w.hooks.OnWaitEnd != nil {
			w.hooks.OnWaitEnd(w.limit, w.cost, time.Since(w.begin), err)
		}
	})
}

// canceled ends a wait that was given up in time, and returns left.
func (w *Wait) canceled(left bool) bool {
	if left {
		w.End(context.Canceled)
	}
	return left
}
