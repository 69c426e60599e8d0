package main

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// provider is the side that the limit protects. It counts what it gets, whoever sends it.
type provider struct {
	mu      sync.Mutex
	started map[int]bool
	ready   chan struct{} // closed when all consumers have told something
	wanted  int
	got     []sent
	ended   []summary
}

func newProvider(consumers int) *provider {
	return &provider{started: map[int]bool{}, ready: make(chan struct{}), wanted: consumers}
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	process, err := strconv.Atoi(r.URL.Query().Get("process"))
	body, readErr := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
	if err != nil || readErr != nil {
		http.Error(w, "unreadable", http.StatusBadRequest)
		return
	}
	switch r.URL.Path {
	case "/sent":
		report, err := decode(body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		p.receive(process, report)
	case "/ended":
		var s summary
		if err := json.Unmarshal(body, &s); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		p.mu.Lock()
		p.ended = append(p.ended, s)
		p.mu.Unlock()
	}
	w.WriteHeader(http.StatusNoContent)
}

func (p *provider) receive(process int, report []sent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.got = append(p.got, report...)
	if !p.started[process] {
		if p.started[process] = true; len(p.started) == p.wanted {
			close(p.ready)
		}
	}
}

// count is what came within a time, as far as it was told.
func (p *provider) count(from, to int64) (n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.got {
		if s.at >= from && s.at < to {
			n += s.n
		}
	}
	return n
}

// series is all that came, by time.
func (p *provider) series() []sent {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := slices.Clone(p.got)
	slices.SortFunc(all, func(a, b sent) int {
		switch {
		case a.at < b.at:
			return -1
		case a.at > b.at:
			return 1
		}
		return 0
	})
	return all
}

// figures are what the provider has seen within the time that was measured.
type figures struct {
	Count          int64
	WorstSliding   int64       // in any second
	WorstAligned   int64       // in any second of the clock
	Tenths         [10]float64 // share of all that came in each tenth of the clock's seconds
	WorstSecondOld int64       // in any second that ends before the middle
	WorstSecondNew int64       // in any second that begins after it
}

// measureSeries looks at what came from a time on, for so long. Sliding seconds begin
// with anything that came, and have all that came less than a second later.
func measureSeries(all []sent, from int64, length time.Duration) figures {
	const second = int64(time.Second)
	to, middle := from+int64(length), from+int64(length)/2
	var f figures
	aligned := map[int64]int64{}
	within, first := int64(0), 0
	for _, s := range all {
		if s.at < from || s.at >= to {
			first++
			continue
		}
		break
	}
	for i := first; i < len(all) && all[i].at < to; i++ {
		s := all[i]
		f.Count += s.n
		within += s.n
		for s.at-all[first].at >= second {
			within -= all[first].n
			first++
		}
		f.WorstSliding = max(f.WorstSliding, within)
		if s.at < middle {
			f.WorstSecondOld = max(f.WorstSecondOld, within)
		}
		if all[first].at >= middle {
			f.WorstSecondNew = max(f.WorstSecondNew, within)
		}
		aligned[s.at/second] += s.n
		f.WorstAligned = max(f.WorstAligned, aligned[s.at/second])
		f.Tenths[s.at%second*10/second] += float64(s.n)
	}
	for i := range f.Tenths {
		f.Tenths[i] /= float64(max(1, f.Count))
	}
	return f
}
