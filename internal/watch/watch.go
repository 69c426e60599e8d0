// Package watch sees what limits answer, for people who watch them: which keys are met and refused most often now, and
// which requests there were in the latest hour. It decides nothing, and does not know what keys mean.
package watch

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/lasthour"
	"github.com/stint-io/stint/internal/topkeys"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// beat is how often [Watch.Run] says what time it is. Not longer: what a flood of new keys adds in between must fit
// beside what the hour has. Not shorter: it wakes an idle process.
const beat = 100 * time.Millisecond

// ErrUnknown says that a limit was never met.
var ErrUnknown = errors.New("watch: no such limit is watched")

// Watch sees the answers of all limits of the engine that it observes, but for those of limits that come with requests.
// Make it with [New]. It is safe for concurrent use, and takes less than 1 MiB for top keys and
// [lasthour.DefaultBytes] for the hour.
type Watch struct {
	admitted, refused *topkeys.Sketch
	hour              *lasthour.Recorder
	limits            engine.Limits[seen]
	next              uint32 // group of the latest limit
}

// seen is what is kept of one limit.
type seen struct {
	group uint32
	log   *lasthour.Log
}

var _ engine.DecisionObserver = (*Watch)(nil)

// New returns a watch that has seen nothing.
func New() *Watch {
	begin := time.Now() // carries the monotonic clock
	return &Watch{
		admitted: topkeys.New(begin), refused: topkeys.New(begin),
		hour: lasthour.New(0, func() limit.Time { return limit.At(begin) + limit.Time(time.Since(begin)) }),
	}
}

// Follow implements [engine.DecisionObserver]. It forgets limits that are no more.
func (w *Watch) Follow(set *rules.Set) {
	gone := w.limits.Follow(set, func(*rules.Limit) *seen {
		w.next++
		return &seen{group: w.next, log: w.hour.Open()}
	})
	for _, s := range gone {
		w.hour.Close(s.log)
	}
}

// Decided implements [engine.DecisionObserver].
func (w *Watch) Decided(q *engine.Query) {
	if q.Decision.Repeated {
		return
	}
	for i := range q.Decision.Results {
		r, h := &q.Decision.Results[i], q.HitOf(i)
		if h.Limit == nil || r.Reason == limit.ReasonMissing { // it has no key
			continue
		}
		s := w.limits.Of(h.Limit)
		if s == nil {
			continue
		}
		if r.Allowed {
			w.admitted.Add(s.group, h.Key())
		} else {
			w.refused.Add(s.group, h.Key())
		}
		if r.Detail == "" { // an override has another rate
			s.log.Add(h.Key(), r.Cost, r.Allowed)
		}
	}
}

// Run says what time it is until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			w.admitted.Tick(now)
			w.refused.Tick(now)
			w.hour.Sweep()
		}
	}
}

// Top is what [Watch.Top] returns: the keys of each limit by name, and what holds of all of them.
type Top struct {
	// Admitted and Refused are the keys that are met most, the most first.
	Admitted, Refused map[string][]topkeys.Key
	// AdmittedError and RefusedError are by how many events per second a figure may be too high at most, and how
	// many a key that is not listed may have.
	AdmittedError, RefusedError float64
	// One says that one in so many events was counted, for as many.
	One int
}

// Top returns the n keys of each limit that are admitted most often now, and those that are refused most often. Refusals of
// limits that only watch count as others.
func (w *Watch) Top(n int) Top {
	a, r := w.admitted.View(n), w.refused.View(n)
	t := Top{
		Admitted: map[string][]topkeys.Key{}, Refused: map[string][]topkeys.Key{},
		AdmittedError: a.Error, RefusedError: r.Error, One: max(a.One, r.One),
	}
	for name, s := range w.limits.ByName() {
		if list := a.Keys[s.group]; list != nil {
			t.Admitted[name] = list
		}
		if list := r.Keys[s.group]; list != nil {
			t.Refused[name] = list
		}
	}
	return t
}

// WhatIf says what another policy would have done with the requests of a limit in the latest time, at most an hour.
func (w *Watch) WhatIf(ctx context.Context, name string, now, then limit.Policy, latest time.Duration) (lasthour.Answer, error) {
	s := w.limits.ByName()[name]
	if s == nil {
		return lasthour.Answer{}, ErrUnknown
	}
	return s.log.WhatIf(ctx, now, then, latest)
}

// Percent is how much of a quota is used, from 0 to 100.
func Percent(quota, remaining int64) float64 {
	if quota <= 0 {
		return 0
	}
	return math.Min(100, math.Max(0, 100*float64(quota-remaining)/float64(quota)))
}
