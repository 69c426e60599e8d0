package redis

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

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

// TestOverload has four processes ask for more than each limit gives, any of them
// for the same key, and counts what was admitted in every span of time.
func TestOverload(t *testing.T) {
	lasts := 2 * time.Second
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
	lists, asked := runNodes(t, server.Addr())
	for i, p := range overloaded {
		list := lists[i]
		if len(list) == 0 {
			t.Fatalf("%v admitted nothing", p.Algorithm)
		}
		first, last := list[0].before, list[0].after
		for _, b := range list {
			first, last = min(first, b.before), max(last, b.after)
		}
		span := float64(last-first) / 1e9
		t.Logf("%v: %d of %d requests were admitted in %.3f s", p.Algorithm, len(list), asked[i], span)
		if p.Algorithm != limit.TokenBucket {
			windows(t, p, list)
			continue
		}
		rate := float64(p.Rate.Count) / float64(p.Rate.Period)
		excess, from, to := worstExcess(list, rate, float64(p.Burst))
		short := float64(p.Burst) + rate*float64(last-first) - float64(len(list))
		t.Logf("  over all spans, admitted - (burst + rate x T) is at most %.2f (T = %v); over the whole run it is %.2f", excess, time.Duration(to-from), -short)
		if excess > 0.01 {
			t.Errorf("%.2f more than burst + rate x T were admitted within %v", excess, time.Duration(to-from))
		}
		if short > float64(p.Rate.Count)/20 {
			t.Errorf("%.0f fewer than burst + rate x T were admitted, more than in 50 ms", short)
		}
	}
}

// windows looks at what each window admitted.
func windows(t *testing.T, p limit.Policy, list []bracket) {
	t.Helper()
	period, count := int64(p.Rate.Period), p.Rate.Count
	most := worstSpan(list, period)
	if p.Algorithm == limit.FixedWindow {
		most = worstWindow(list, period)
	}
	first, last := list[0].before, list[0].before
	for _, b := range list {
		first, last = min(first, b.before), max(last, b.before)
	}
	whole := (last - first) / period
	t.Logf("  at most %d of %d in one window; %.2f per window", most, count, float64(len(list))/float64(max(whole, 1)))
	if most > count {
		t.Errorf("%v: %d were admitted in one window of %d", p.Algorithm, most, count)
	}
	if int64(len(list)) < (whole-1)*count*9/10 {
		t.Errorf("%v: %d were admitted in %d windows of %d", p.Algorithm, len(list), whole, count)
	}
}

// runNodes runs the processes, and returns the admissions of each limit and how
// many requests there were.
func runNodes(t *testing.T, address string) (lists [][]bracket, asked []int64) {
	t.Helper()
	lists, asked = make([][]bracket, len(overloaded)), make([]int64, len(overloaded))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var starts []io.WriteCloser
	var outs []*bufio.Scanner
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
		scanner := bufio.NewScanner(out)
		if !scanner.Scan() || scanner.Text() != "ready" {
			t.Fatalf("a process said %q, want ready", scanner.Text())
		}
		starts, outs, cmds = append(starts, in), append(outs, scanner), append(cmds, cmd)
	}
	for _, in := range starts {
		if err := in.Close(); err != nil {
			t.Error(err)
		}
	}
	for i, out := range outs {
		for out.Scan() {
			var which int
			var b bracket
			var n int64
			switch text := out.Text(); {
			case strings.HasPrefix(text, "admitted "):
				if _, err := fmt.Sscanf(text, "admitted %d %d %d", &which, &b.before, &b.after); err != nil {
					t.Fatalf("a process said %q: %v", text, err)
				}
				lists[which] = append(lists[which], b)
			case strings.HasPrefix(text, "asked "):
				if _, err := fmt.Sscanf(text, "asked %d %d", &which, &n); err != nil {
					t.Fatalf("a process said %q: %v", text, err)
				}
				asked[which] += n
			case text != "PASS":
				t.Errorf("a process said %q", text)
			}
		}
		if err := cmds[i].Wait(); err != nil {
			t.Errorf("a process ended with %v", err)
		}
	}
	return lists, asked
}

// overload is one of the processes.
func overload(t *testing.T, address string, lasts time.Duration) {
	s := connected(t, Options{Addrs: []string{address}, Timeout: patient, Logger: new(journal).logger()}, nil)
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin) // until all are there
	begin := time.Now()
	var mu sync.Mutex
	lists, asked := make([][]bracket, len(overloaded)), make([]int64, len(overloaded))
	var wg sync.WaitGroup
	for i, p := range overloaded {
		c := bind(t, s, fmt.Sprint("l", i), p)
		for range askers {
			wg.Go(func() {
				var list []bracket
				var n int64
				tick := time.NewTicker(pace)
				defer tick.Stop()
				for time.Since(begin) < lasts {
					n++
					one := []store.Charge{charge(c, "hot", 1)}
					before := time.Since(begin)
					ok, err := s.Take(context.Background(), one)
					after := time.Since(begin)
					if err != nil {
						t.Error(err)
						return
					}
					if ok {
						list = append(list, bracket{int64(before), int64(after)})
					}
					<-tick.C
				}
				mu.Lock()
				lists[i], asked[i] = append(lists[i], list...), asked[i]+n
				mu.Unlock()
			})
		}
	}
	wg.Wait()
	// The processes share the clock of the wall. Brackets are made wider by what it
	// was set meanwhile against the one that nobody sets.
	moved := time.Now().UnixNano() - begin.UnixNano() - int64(time.Since(begin))
	slack := max(moved, -moved)
	if slack > int64(time.Millisecond) {
		t.Fatalf("the clock was set by %v while the test ran: run it again", time.Duration(moved))
	}
	out := bufio.NewWriter(os.Stdout)
	for i, list := range lists {
		for _, b := range list {
			_, _ = fmt.Fprintln(out, "admitted", i, begin.UnixNano()+b.before-slack, begin.UnixNano()+b.after+slack)
		}
		_, _ = fmt.Fprintln(out, "asked", i, asked[i])
	}
	if err := out.Flush(); err != nil {
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
// It looks at the spans from latest to earliest beginning. A tree over their ends
// holds how many admissions lie within, less what the rate gives.
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

// TestWorstExcess compares the scan with one that looks at every pair.
func TestWorstExcess(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	list := []bracket{}
	random := rand.New(rand.NewPCG(1, 2))
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
