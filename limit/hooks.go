package limit

import (
	"context"
	"sync"
	"time"
)

// Hooks let a program count what a limit does, without this module knowing its metrics
// library. A field that is nil is not called. They are called by whoever asks, waits or
// is told, many at a time: they must be quick, must not block, and must not use the limit
// that calls them. Names are those of limits; keys never are passed, so that they may be
// labels.
type Hooks struct {
	// OnDecision is called by a middleware for each Decision, which belongs to the
	// caller: do not keep it. OnError is called where there was none.
	OnDecision func(ctx context.Context, d *Decision)
	OnError    func(ctx context.Context, err error)

	// OnRefuse is called when a limit refuses cost: by Allow, or by a Take that is no
	// peek.
	OnRefuse func(limit string, cost int64)

	// OnSkip is called when a limit does not apply to a request, as it lacks an
	// attribute of the key.
	OnSkip func(limit string)

	// OnWaitStart is called when somebody begins to wait, not for a permit that is there
	// at once. OnWaitEnd follows, once: err is what the wait ends with, nil for a permit
	// and context.Canceled for a place that was given up.
	OnWaitStart func(limit string, cost int64)
	OnWaitEnd   func(limit string, cost int64, waited time.Duration, err error)
}

// Refused calls OnRefuse. It is for those who implement a limit, as are the methods
// below; a nil Hooks calls nothing.
func (h *Hooks) Refused(limit string, cost int64) {
	if h != nil && h.OnRefuse != nil {
		h.OnRefuse(limit, cost)
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

// Wait is one wait that Hooks are told about. The zero value tells nobody.
type Wait struct {
	hooks *Hooks
	limit string
	cost  int64
	begin time.Time
	start sync.Once
	end   sync.Once
}

// NewWait returns a wait that has not begun. It is nil when nobody wants to know, and a
// nil Wait may be used.
func (h *Hooks) NewWait(limit string, cost int64) *Wait {
	if h == nil || h.OnWaitStart == nil && h.OnWaitEnd == nil {
		return nil
	}
	return &Wait{hooks: h, limit: limit, cost: cost, begin: time.Now()}
}

// Start says that the wait has begun, if that was not said before.
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

// End says what the wait ended with, and before that, if need be, that it began: who is
// told may be told before the one who waits has got to say so.
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
