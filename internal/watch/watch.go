// Package watch sees what limits answer, for people who watch them: which keys are met and refused most often now, and
// which requests there were in the latest hour. It decides nothing, and does not know what keys mean.
package watch

import (
	"context"
	"errors"
	"math"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/lasthour"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/internal/topkeys"
	"github.com/stint-io/stint/limit"
)

// beat is how often [Watch.Run] says what time it is. Not longer: what a flood of new keys adds in between must fit
// beside what the hour has. Not shorter: it wakes an idle process.
const beat = 100 * time.Millisecond

// ErrUnknown says that a limit was never met.
var ErrUnknown = errors.New("watch: no such limit is watched")

// Watch sees the answers of all limits. Make it with [New]. It is safe for concurrent use, and takes less than 1 MiB
// for top keys and [lasthour.DefaultBytes] for the hour.
type Watch struct {
	admitted, refused *topkeys.Sketch
	hour              *lasthour.Recorder

	mu struct {
		sync.Mutex
		limits map[string]*seen
		next   uint32
	}
}

// seen is told of the answers of one limit.
type seen struct {
	w     *Watch
	group uint32
	log   *lasthour.Log
}

// New returns a watch that has seen nothing.
func New() *Watch {
	begin := time.Now() // carries the monotonic clock
	w := &Watch{
		admitted: topkeys.New(begin), refused: topkeys.New(begin),
		hour: lasthour.New(0, func() limit.Time { return limit.At(begin) + limit.Time(time.Since(begin)) }),
	}
	w.mu.limits = map[string]*seen{}
	return w
}

// Limit returns who is told of the answers of the limit of that name.
func (w *Watch) Limit(name string) tally.Watcher {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.mu.limits[name]
	if s == nil {
		w.mu.next++
		s = &seen{w: w, group: w.mu.next, log: w.hour.Open()}
		w.mu.limits[name] = s
	}
	return s
}

// Keep forgets limits of which keep does not say that they are there.
func (w *Watch) Keep(keep func(name string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.mu.limits {
		if !keep(name) {
			delete(w.mu.limits, name)
			w.hour.Close(s.log)
		}
	}
}

// Saw implements [tally.Watcher].
func (s *seen) Saw(key []byte, r *limit.Result) {
	if r.Reason == limit.ReasonMissing {
		return // it has no key
	}
	if r.Allowed {
		s.w.admitted.Add(s.group, key)
	} else {
		s.w.refused.Add(s.group, key)
	}
	if r.Detail == "" { // an override has another rate
		s.log.Add(key, r.Cost, r.Allowed)
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
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, s := range w.mu.limits {
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
	w.mu.Lock()
	s := w.mu.limits[name]
	w.mu.Unlock()
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
