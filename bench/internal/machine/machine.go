// Package machine says what a machine did while something was measured on it: how much
// of the processors the measurement took, with all processes that it started, and how
// much others took meanwhile. A load average says neither: it is late, and it counts
// the measurement itself. On systems without /proc it says nothing.
package machine

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"time"
)

// every is the distance of samples. Not shorter: the kernel counts in hundredths of a
// second. Not longer: a short disturbance should show as the most.
const every = 500 * time.Millisecond

// tick is the unit of /proc, which is this on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// Usage is in processors: 1 is one of them, all the time.
type Usage struct {
	Own, Others float64 // on average
	OthersMost  float64 // of others, in the worst sample
	Samples     int     // 0 = nothing is known
}

// String says it in a sentence.
func (u Usage) String() string {
	if u.Samples == 0 {
		return "How busy the machine was is not known."
	}
	return fmt.Sprintf("Of %d processors the measurement used %.2f; other work used %.2f meanwhile, and at most %.2f for half a second.",
		runtime.NumCPU(), u.Own, u.Others, u.OthersMost)
}

// Watch samples the machine until Stop.
type Watch struct {
	end     chan struct{}
	sampler sync.WaitGroup
	usage   Usage
}

// Start begins to sample.
func Start() *Watch {
	w := &Watch{end: make(chan struct{})}
	w.sampler.Go(w.run)
	return w
}

// Stop ends the sampling and returns what was seen. It must be called once.
func (w *Watch) Stop() Usage {
	close(w.end)
	w.sampler.Wait()
	return w.usage
}

func (w *Watch) run() {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	first, ok := read("/proc", os.Getpid())
	last := first
	for ok {
		over := false
		select {
		case <-w.end:
			over = true
		case <-ticker.C:
		}
		var now counters
		if now, ok = read("/proc", os.Getpid()); !ok {
			return
		}
		if over && w.usage.Samples > 0 && now.at.Sub(last.at) < every/2 {
			now = last // too short to say anything
		} else {
			_, others := now.since(last)
			w.usage.OthersMost = max(w.usage.OthersMost, others)
			w.usage.Samples++
		}
		last = now
		w.usage.Own, w.usage.Others = now.since(first)
		if over {
			return
		}
	}
}

// counters are running totals.
type counters struct {
	at             time.Time
	all, busy, own time.Duration // of all processors; all is idle time too
	processors     int
}

// since returns the processors that the measurement and others used. It goes by the
// kernel's own count of time: whoever samples a busy machine is late itself.
func (c counters) since(was counters) (own, others float64) {
	span := (c.all - was.all).Seconds() / float64(max(1, c.processors))
	if span <= 0 {
		return 0, 0
	}
	mine := (c.own - was.own).Seconds()
	return mine / span, max(0, (c.busy-was.busy).Seconds()-mine) / span
}

// read reads the counters of the machine and of a process with all that it started.
func read(proc string, pid int) (counters, bool) {
	c := counters{at: time.Now()}
	text, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return c, false
	}
	line, rest, _ := bytes.Cut(text, []byte("\n"))
	for each := range bytes.Lines(rest) {
		if bytes.HasPrefix(each, []byte("cpu")) {
			c.processors++
		}
	}
	fields := bytes.Fields(line)
	if len(fields) < 9 || string(fields[0]) != "cpu" {
		return c, false
	}
	for i, field := range fields[1:9] { // user nice system idle iowait irq softirq steal
		n, _ := strconv.ParseInt(string(field), 10, 64)
		c.all += time.Duration(n) * tick
		if i != 3 && i != 4 {
			c.busy += time.Duration(n) * tick
		}
	}
	c.own = tree(proc, pid)
	return c, true
}

// tree is the time of a process and its descendants, those that have ended included.
func tree(proc string, pid int) time.Duration {
	type process struct {
		parent int
		used   time.Duration
	}
	all := map[int]process{}
	files, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		id, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		// The name, in parentheses, may hold anything.
		end := bytes.LastIndexByte(text, ')')
		if err != nil || end < 0 {
			continue
		}
		fields := bytes.Fields(text[end+1:])
		if len(fields) < 15 {
			continue
		}
		p := process{}
		p.parent, _ = strconv.Atoi(string(fields[1]))
		for _, field := range fields[11:15] { // utime stime, and those of children that were waited for
			n, _ := strconv.ParseInt(string(field), 10, 64)
			p.used += time.Duration(n) * tick
		}
		all[id] = p
	}
	sum := time.Duration(0)
	for id, p := range all {
		// Bounded: entries that were read at different times may form a loop.
		for at, steps := id, 0; at > 0 && steps < 100; at, steps = all[at].parent, steps+1 {
			if at == pid {
				sum += p.used
				break
			}
		}
	}
	return sum
}
