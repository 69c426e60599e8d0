package redis

import (
	"bufio"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sort"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// The environment of TestOverload: how long it lasts, and where a process of its own
// finds the server.
const (
	overloadTime = "STINT_OVERLOAD"
	overloadNode = "STINT_OVERLOAD_NODE"
)

const (
	nodes = 4
	// askers is how many goroutines each process has for each limit.
	askers = 3
	// pace is how often each of them asks, unless it still waits.
	pace = 500 * time.Microsecond
)

// overloaded are limits that 24,000 requests per second are asked of.
var overloaded = []limit.Policy{
	{Algorithm: limit.TokenBucket, Rate: limit.Rate{Count: 2000, Period: time.Second}, Burst: 500},
	{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 200, Period: 100 * time.Millisecond}},
	{Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: 200, Period: 100 * time.Millisecond}},
}

// asked is one request of an overload, and when it was asked for and answered, in
// nanoseconds.
type asked struct {
	Before, After int64
	Admitted      bool
}

// TestOverload has four processes ask for more than each limit gives, any of them
// for the same key, and counts what was admitted in every span of time. How much they ask
// is the machine's doing: one counter by the book is asked the same at the same times.
func TestOverload(t *testing.T) {
	lasts := time.Second
	if text := os.Getenv(overloadTime); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatalf("%s: %v", overloadTime, err)
		}
	}
	if address := os.Getenv(overloadNode); address != "" {
		overload(t, address, lasts)
		return
	}
	server := redistest.Start(t)
	for i, all := range runNodes(t, server.Addr()) {
		p := overloaded[i]
		slices.SortFunc(all, func(a, b asked) int { return int(a.Before - b.Before) })
		var list []bracket
		book, byTheBook := &model{policy: p}, 0
		for _, a := range all {
			if a.Admitted {
				list = append(list, bracket{a.Before, a.After})
			}
			if book.take(limit.Time(a.Before), 1, 0).Allowed {
				byTheBook++
			}
		}
		if len(list) == 0 {
			t.Fatalf("%v admitted nothing", p.Algorithm)
		}
		t.Logf("%v: %d of %d requests were admitted in %v, %d by the book", p.Algorithm, len(list), len(all), time.Duration(list[len(list)-1].after-list[0].before), byTheBook)
		// Each of those that are under way may be decided earlier or later than by the book.
		if len(list) < byTheBook-byTheBook/50-nodes*askers {
			t.Errorf("%v: %d were admitted, want %d", p.Algorithm, len(list), byTheBook)
		}
		period := int64(p.Rate.Period)
		switch p.Algorithm {
		case limit.TokenBucket:
			excess, from, to := worstExcess(list, float64(p.Rate.Count)/float64(period), float64(p.Burst))
			t.Logf("  over all spans, admitted - (burst + rate x T) is at most %.2f (T = %v)", excess, time.Duration(to-from))
			if excess > 0.01 {
				t.Errorf("%.2f more than burst + rate x T were admitted within %v", excess, time.Duration(to-from))
			}
		case limit.FixedWindow:
			atMostInWindow(t, p, worstWindow(list, period))
		default:
			atMostInWindow(t, p, worstSpan(list, period))
		}
	}
}

func atMostInWindow(t *testing.T, p limit.Policy, most int64) {
	t.Helper()
	if t.Logf("  at most %d of %d in one window", most, p.Rate.Count); most > p.Rate.Count {
		t.Errorf("%v: %d were admitted in one window of %d", p.Algorithm, most, p.Rate.Count)
	}
}

// runNodes runs the processes, and returns the requests for each limit.
func runNodes(t *testing.T, address string) [][]asked {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var starts []io.WriteCloser
	var outs []*bufio.Reader
	var cmds []*exec.Cmd
	for range nodes {
		cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestOverload$", "-test.timeout=60s")
		cmd.Env = append(os.Environ(), overloadNode+"="+address)
		cmd.Stderr = os.Stderr
		in, err1 := cmd.StdinPipe()
		out, err2 := cmd.StdoutPipe()
		if err1 != nil || err2 != nil {
			t.Fatal(err1, err2)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		reader := bufio.NewReader(out)
		if line, err := reader.ReadString('\n'); line != "ready\n" {
			t.Fatalf("a process said %q, want ready: %v", line, err)
		}
		starts, outs, cmds = append(starts, in), append(outs, reader), append(cmds, cmd)
	}
	for _, in := range starts {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}
	all := make([][]asked, len(overloaded))
	for i, out := range outs {
		var lists [][]asked
		err := gob.NewDecoder(out).Decode(&lists)
		rest, _ := io.ReadAll(out)
		if err := errors.Join(err, cmds[i].Wait()); err != nil {
			t.Fatalf("a process ended with %v: %s", err, rest)
		}
		for i, list := range lists {
			all[i] = append(all[i], list...)
		}
	}
	return all
}

// overload is one of the processes.
func overload(t *testing.T, address string, lasts time.Duration) {
	s := connected(t, Options{Addrs: []string{address}, Timeout: patient, Logger: new(journal).logger()}, nil)
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until all are there
	begin := time.Now()
	var mu sync.Mutex
	lists := make([][]asked, len(overloaded))
	var wg sync.WaitGroup
	for i, p := range overloaded {
		c := bind(t, s, fmt.Sprint("l", i), p)
		for range askers {
			wg.Go(func() {
				var list []asked
				tick := time.NewTicker(pace)
				defer tick.Stop()
				for time.Since(begin) < lasts {
					one := []store.Charge{charge(c, "hot", 1)}
					before := time.Since(begin)
					ok, err := s.Take(context.Background(), one)
					after := time.Since(begin)
					if err != nil {
						t.Error(err)
						return
					}
					list = append(list, asked{int64(before), int64(after), ok})
					<-tick.C
				}
				mu.Lock()
				lists[i] = append(lists[i], list...)
				mu.Unlock()
			})
		}
	}
	wg.Wait()
	// The processes share the wall clock. Brackets are widened by how much it was set against
	// the monotonic clock.
	moved := time.Now().UnixNano() - begin.UnixNano() - int64(time.Since(begin))
	slack := max(moved, -moved)
	if slack > int64(time.Millisecond) {
		t.Fatalf("the clock was set by %v while the test ran: run it again", time.Duration(moved))
	}
	for _, list := range lists {
		for i := range list {
			list[i].Before += begin.UnixNano() - slack
			list[i].After += begin.UnixNano() + slack
		}
	}
	if err := gob.NewEncoder(os.Stdout).Encode(lists); err != nil {
		t.Fatal(err)
	}
}

// bracket is when an admission was asked for and when it was known, in nanoseconds.
type bracket struct{ before, after int64 }

// worstWindow returns the most admissions that certainly fell within one window of
// those that begin at multiples of period.
func worstWindow(list []bracket, period int64) (most int64) {
	counts := make(map[int64]int64)
	for _, b := range list {
		if n := b.before / period; n == b.after/period {
			counts[n]++
			most = max(most, counts[n])
		}
	}
	return most
}

// worstSpan returns the most admissions that certainly fell within less than period.
func worstSpan(list []bracket, period int64) (most int64) {
	slices.SortFunc(list, func(a, b bracket) int { return int(a.before - b.before) })
	for i := range list {
		count := int64(0)
		for j := i; j < len(list) && list[j].before < list[i].before+period; j++ {
			if list[j].after < list[i].before+period {
				count++
			}
		}
		most = max(most, count)
	}
	return most
}

// worstExcess returns by how much the admissions that certainly fell within one span
// of time were above burst + rate x the length of the span, at worst, and that span.
// Negative = never above. rate is per nanosecond.
//
// It visits the spans from latest to earliest beginning. A tree over their ends has the number
// of admissions within, less the refill.
func worstExcess(list []bracket, rate, burst float64) (excess float64, from, to int64) {
	if len(list) == 0 {
		return -burst, 0, 0
	}
	slices.SortFunc(list, func(a, b bracket) int { return int(a.before - b.before) })
	origin := list[0].before
	ends := make([]int64, len(list))
	for i := range list {
		ends[i] = list[i].after
	}
	slices.Sort(ends)
	tree := newSpans(len(ends), func(i int) float64 { return -rate * float64(ends[i]-origin) })
	excess = -burst
	first := true
	for i := len(list) - 1; i >= 0; i-- {
		b := list[i]
		at := sort.Search(len(ends), func(j int) bool { return ends[j] >= b.after })
		tree.add(at, 1)
		begin := sort.Search(len(ends), func(j int) bool { return ends[j] >= b.before })
		value, end := tree.most(begin)
		if e := value + rate*float64(b.before-origin) - burst; first || e > excess {
			excess, from, to, first = e, b.before, ends[end], false
		}
	}
	return excess, from, to
}

// spans is a tree of sums: add raises all from a place on, most finds the largest
// from a place on.
type spans struct {
	size  int
	most_ []float64
	where []int
	plus  []float64
}

func newSpans(n int, value func(int) float64) *spans {
	size := 1
	for size < n {
		size *= 2
	}
	s := &spans{size: size, most_: make([]float64, 2*size), where: make([]int, 2*size), plus: make([]float64, 2*size)}
	for i := range size {
		s.where[size+i] = i
		s.most_[size+i] = -1e300
		if i < n {
			s.most_[size+i] = value(i)
		}
	}
	for i := size - 1; i > 0; i-- {
		s.pull(i)
	}
	return s
}

func (s *spans) pull(i int) {
	l, r := 2*i, 2*i+1
	if s.most_[l] >= s.most_[r] {
		s.most_[i], s.where[i] = s.most_[l]+s.plus[i], s.where[l]
	} else {
		s.most_[i], s.where[i] = s.most_[r]+s.plus[i], s.where[r]
	}
}

func (s *spans) add(from int, by float64) {
	i := s.size + from
	s.most_[i] += by
	for ; i > 1; i /= 2 {
		if i%2 == 0 {
			s.most_[i+1] += by
			if i+1 < s.size {
				s.plus[i+1] += by
			}
		}
		s.pull(i / 2)
	}
}

func (s *spans) most(from int) (float64, int) {
	i := s.size + from
	best, at := s.most_[i], s.where[i]
	for ; i > 1; i /= 2 {
		if i%2 == 0 && s.most_[i+1] > best {
			best, at = s.most_[i+1], s.where[i+1]
		}
		if i/2 < s.size {
			best += s.plus[i/2]
		}
	}
	return best, at
}

// TestWorstExcess compares the scan with one over every pair.
func TestWorstExcess(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	list := []bracket{}
	random := seeding.Rand(t)
	for range 300 {
		at := random.Int64N(1000)
		list = append(list, bracket{at, at + random.Int64N(20)})
		const rate, burst = 0.2, 3
		want := -1e9
		for _, from := range list {
			for _, to := range list {
				count := 0.0
				for _, b := range list {
					if b.before >= from.before && b.after <= to.after {
						count++
					}
				}
				if to.after >= from.before {
					want = max(want, count-burst-rate*float64(to.after-from.before))
				}
			}
		}
		if got, _, _ := worstExcess(slices.Clone(list), rate, burst); got < want-1e-6 || got > want+1e-6 {
			t.Fatalf("%d admissions: the worst excess is %v, want %v", len(list), got, want)
		}
		if len(list) > 60 {
			list = list[1:]
		}
	}
}
