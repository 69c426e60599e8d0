package main

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// provider is the API that the limit protects. It takes a time for each call, and counts. It does the work
// of a call halfway: a caller that is gone before that has not sent its message.
type provider struct {
	latency time.Duration

	mu        sync.Mutex
	got       map[string]int // messages of each id
	admitted  []int64        // when calls were admitted, in nanoseconds
	open      map[string]int // calls in flight of each consumer
	all, peak int            // calls in flight of all of them, and the most at a time
	consumers map[string]bool
	changed   chan struct{} // closed and replaced with each call
}

func newProvider(latency time.Duration) *provider {
	return &provider{latency: latency, got: map[string]int{}, open: map[string]int{}, consumers: map[string]bool{}, changed: make(chan struct{})}
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id, err := io.ReadAll(r.Body)
	at, notTime := strconv.ParseInt(r.Header.Get("X-Admitted"), 10, 64)
	if err != nil || notTime != nil {
		http.Error(w, "unreadable", http.StatusBadRequest)
		return
	}
	name := r.Header.Get("X-Consumer")
	p.mu.Lock()
	p.admitted = append(p.admitted, at)
	p.consumers[name] = true
	p.open[name]++
	p.all++
	p.peak = max(p.peak, p.all)
	p.change()
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		p.open[name]--
		p.all--
		p.mu.Unlock()
	}()
	if !pause(r.Context(), p.latency/2) {
		return
	}
	p.mu.Lock()
	p.got[string(id)]++
	p.change()
	p.mu.Unlock()
	if pause(r.Context(), p.latency-p.latency/2) {
		w.WriteHeader(http.StatusNoContent)
	}
}

// change wakes those that await something. The lock is held.
func (p *provider) change() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// await returns when the provider has seen what is waited for, or done is closed.
func (p *provider) await(done <-chan struct{}, seen func() bool) {
	for {
		p.mu.Lock()
		changed, enough := p.changed, seen()
		p.mu.Unlock()
		if enough {
			return
		}
		select {
		case <-changed:
		case <-done:
			return
		}
	}
}

// last returns when the last call was admitted. The lock is held.
func (p *provider) last() time.Time { return time.Unix(0, slices.Max(p.admitted)) }

// neededBurst is the burst that a bucket of a rate needs to admit all calls from a time on, each at its time.
func neededBurst(admitted []int64, from time.Time, perSecond int) float64 {
	used, most, last := 0.0, 0.0, from.UnixNano()
	for _, at := range slices.Sorted(slices.Values(admitted)) {
		if at < last {
			continue
		}
		used = max(0, used-float64(at-last)/1e9*float64(perSecond)) + 1
		most, last = max(most, used), at
	}
	return most
}

// inFlight returns how many calls of a consumer are in flight.
func (p *provider) inFlight(consumer string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open[consumer]
}

// count returns how many messages have come.
func (p *provider) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.got)
}
