package tables

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/bench/internal/contender"
	"github.com/stint-io/stint/bench/internal/measure"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store/memory"
)

// The limit and the crowd of the contention table.
var crowdPlan = contender.Plan{Count: 100_000, Period: time.Second, Burst: 1000}

const (
	crowd = 2000
	turn  = 16 // requests that a goroutine makes before it lets another run
)

// crowdLimiters returns what the crowd takes from, one hot limit each.
func crowdLimiters() (names []string, open map[string]func() (func() bool, error)) {
	return []string{"stint memory.Keyed", "stint limit.Limiter", "x/time/rate"}, map[string]func() (func() bool, error){
		"stint memory.Keyed": func() (func() bool, error) {
			k, err := memory.NewKeyed(crowdPlan.Policy(), memory.Options{})
			return func() bool { return k.Allow(hotKey) }, err
		},
		"stint limit.Limiter": func() (func() bool, error) {
			l, err := limit.NewLimiter(crowdPlan.Policy())
			return func() bool { return l.Allow() }, err
		},
		"x/time/rate": func() (func() bool, error) {
			l := crowdPlan.XTimeLimiter()
			return func() bool { return l.Allow() }, nil
		},
	}
}

// stampedes is how often each of them is run; the worst run counts.
const stampedes = 3

// Contention counts what 2,000 goroutines get out of one limit.
func Contention(cfg Config, rep *Report) error {
	names, open := crowdLimiters()
	var rows [][]string
	var crowds measure.Series
	for _, procs := range []int{2, 64} {
		share, asked := make(map[string]measure.Series), make(map[string]measure.Series)
		for range stampedes {
			for _, name := range names {
				allow, err := open[name]()
				if err != nil {
					return fmt.Errorf("bench: %s: %w", name, err)
				}
				o := stampede(allow, procs, cfg.Contention)
				if o.refused == 0 {
					return fmt.Errorf("bench: %s refused nothing: the limit was not reached", name)
				}
				if o.took < crowd/2 {
					return fmt.Errorf("bench: only %d of %d goroutines asked %s: that is no crowd", o.took, crowd, name)
				}
				crowds = append(crowds, float64(o.took))
				share[name] = append(share[name], float64(o.admitted)/o.bound)
				asked[name] = append(asked[name], float64(o.admitted+o.refused)/o.bound)
			}
		}
		for _, name := range names {
			rows = append(rows, []string{
				name, fmt.Sprint(procs), fmt.Sprintf("%.3f", slices.Max(share[name])),
				share[name].Format("%.3f"), fmt.Sprintf("%.0f", asked[name].Median()),
			})
			if strings.HasPrefix(name, contender.StintName) {
				rep.AtMost(fmt.Sprintf("contention, GOMAXPROCS %d: %s / bound", procs, name), slices.Max(share[name]), 1, " ×")
			}
		}
	}
	rep.Section("Exactness under contention",
		fmt.Sprintf("%d/s with a burst of %d, asked by %d goroutines without pause for %v, %d times each, in turn.", crowdPlan.Count, crowdPlan.Burst, crowd, cfg.Contention, stampedes),
		fmt.Sprintf("In every run at least %.0f of them had a turn.", slices.Min(crowds)),
		"The bound is burst + rate × T, with T from before the first request until after the last.",
		"Above 1 the limit was broken. Below 1 the goroutines did not run for longer than the burst lasts.")
	rep.Table([]string{"", "GOMAXPROCS", "admitted / bound, worst", "all", "asked / bound"}, rows)
	return nil
}

// outcome is what a crowd got, and the most it should have got.
type outcome struct {
	admitted, refused int64
	took              int64 // goroutines that asked at all
	bound             float64
}

// stampede lets the crowd ask for d. Not to be run twice at once: it sets
// GOMAXPROCS.
func stampede(allow func() bool, procs int, d time.Duration) outcome {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
	var admitted, refused, took, last atomic.Int64
	var stop atomic.Bool
	var all sync.WaitGroup
	begin := make(chan struct{})
	var start time.Time
	for range crowd {
		all.Go(func() {
			var yes, no int64
			<-begin
			for !stop.Load() {
				if allow() {
					yes++
				} else {
					no++
				}
				// A goroutine that never waits keeps its processor for 10 ms: the
				// others would not get a turn within the run.
				if (yes+no)%turn == 0 {
					runtime.Gosched()
				}
			}
			if yes+no > 0 {
				took.Add(1)
			}
			ended := int64(time.Since(start))
			for seen := last.Load(); seen < ended && !last.CompareAndSwap(seen, ended); seen = last.Load() {
			}
			admitted.Add(yes)
			refused.Add(no)
		})
	}
	start = time.Now() // before begin is closed, which is when others may read it
	close(begin)
	timer := time.NewTimer(d)
	<-timer.C
	stop.Store(true)
	all.Wait()
	bound := float64(crowdPlan.Burst) + float64(crowdPlan.Count)*time.Duration(last.Load()).Seconds()
	return outcome{admitted.Load(), refused.Load(), took.Load(), bound}
}
