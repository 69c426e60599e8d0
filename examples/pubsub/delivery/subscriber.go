package main

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// arrival is one delivery attempt, as the subscriber got it.
type arrival struct {
	at        time.Duration // since the beginning
	transit   time.Duration // from the permit to here
	worker    int           // its index
	partition int
	id        int
	ok        bool
}

// subscriber gets the deliveries and measures them where they come in. It asks nobody: all it
// has is its number.
type subscriber struct {
	workers map[string]int
	begin   time.Time
	sick    atomic.Bool // refuses everything
	server  *http.Server
	url     string

	mu       sync.Mutex
	arrivals []arrival
	got      map[int]int // by id: how often it was taken
}

// oneInFifty is how many deliveries the subscriber refuses as a matter of course, so that
// there are retries.
const oneInFifty = 50

func startSubscriber(names []string) (*subscriber, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &subscriber{workers: map[string]int{}, begin: time.Now(), url: "http://" + l.Addr().String(), got: map[int]int{}}
	for i, name := range names {
		s.workers[name] = i
	}
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = s.server.Serve(l) }() // ends with close
	return s, nil
}

func (s *subscriber) close() { _ = s.server.Close() }

func (s *subscriber) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	body, err := io.ReadAll(io.LimitReader(r.Body, 100))
	id, err2 := strconv.Atoi(string(body))
	partition, err3 := strconv.Atoi(r.Header.Get(partitionHeader))
	permitted, err4 := strconv.ParseInt(r.Header.Get(permittedHeader), 10, 64)
	worker, known := s.workers[r.Header.Get(workerHeader)]
	for _, err := range []error{err, err2, err3, err4} {
		if err != nil || !known {
			http.Error(w, "not a delivery", http.StatusBadRequest)
			return
		}
	}
	s.mu.Lock()
	a := arrival{at: now.Sub(s.begin), transit: time.Duration(now.UnixNano() - permitted), worker: worker, partition: partition, id: id}
	a.ok = !s.sick.Load() && len(s.arrivals)%oneInFifty != oneInFifty-1
	s.arrivals = append(s.arrivals, a)
	if a.ok {
		s.got[id]++
	}
	s.mu.Unlock()
	if !a.ok {
		http.Error(w, "busy", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// taken is how many messages were taken, each counted once.
func (s *subscriber) taken() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.got)
}

// all is what came so far, in the order in which it came.
func (s *subscriber) all() []arrival {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arrivals[:len(s.arrivals):len(s.arrivals)]
}

// largestBurst is the most that came in any window beyond rate x its length: the least burst
// of a bucket of that rate that would have let all of it pass. It is the maximum over all
// windows [i, j] of (j - i + 1) - rate x (at[j] - at[i]), by one pass.
func largestBurst(all []arrival, rate int) float64 {
	level, largest, last := 0.0, 0.0, time.Duration(0)
	for _, a := range all {
		level = max(0, level-float64(rate)*max(0, a.at-last).Seconds()) + 1
		largest, last = max(largest, level), max(last, a.at)
	}
	return largest
}
