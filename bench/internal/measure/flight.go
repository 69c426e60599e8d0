package measure

import (
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"time"
)

// Flight is what a number of callers got who wait for each answer before they ask
// again.
type Flight struct {
	Calls   int64 // answered, with an error or without
	Yes     int64
	Errors  int64
	First   error // the first error of some caller
	Elapsed time.Duration
	Allocs  int64         // heap objects allocated meanwhile by the whole process
	CPU     time.Duration // processor time of the whole process meanwhile
	Latency Latency
}

// PerSecond is the number of answers without an error in a second.
func (f *Flight) PerSecond() float64 { return float64(f.Calls-f.Errors) / f.Elapsed.Seconds() }

// Fly keeps so many callers asking for d. call is made with the number of the
// caller, by one goroutine for each.
func Fly(callers int, d time.Duration, call func(caller int) (yes bool, err error)) (*Flight, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	used, err := OwnCPU()
	if err != nil {
		return nil, err
	}
	parts := make([]Flight, callers)
	begin := make(chan struct{})
	var ended sync.WaitGroup
	var start time.Time
	for c := range callers {
		ended.Go(func() {
			f := &parts[c]
			<-begin
			for t := start; t.Sub(start) < d; {
				yes, err := call(c)
				now := time.Now()
				f.Latency.Add(now.Sub(t))
				f.Calls++
				t = now
				switch {
				case err != nil && f.First == nil:
					f.First = err
					fallthrough
				case err != nil:
					f.Errors++
				case yes:
					f.Yes++
				}
			}
		})
	}
	start = time.Now() // before begin is closed, which is when others may read it
	close(begin)
	ended.Wait()
	sum := &Flight{Elapsed: time.Since(start)}
	runtime.ReadMemStats(&after)
	sum.Allocs = int64(after.Mallocs - before.Mallocs)
	if sum.CPU, err = OwnCPU(); err != nil {
		return nil, err
	}
	sum.CPU -= used
	for i := range parts {
		f := &parts[i]
		sum.Calls += f.Calls
		sum.Yes += f.Yes
		sum.Errors += f.Errors
		sum.Latency.Merge(&f.Latency)
		if sum.First == nil {
			sum.First = f.First
		}
	}
	return sum, nil
}

// OwnCPU is the processor time that this process has used.
func OwnCPU() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("measure: processor time of this process: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}
