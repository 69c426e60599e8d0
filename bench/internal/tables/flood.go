package tables

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// month keeps any window from ending during a run.
const month = 30 * 24 * time.Hour

// floodPolicies are the limits under the flood. All of them grant 5 a month.
func floodPolicies() []store.Spec {
	five := limit.Rate{Count: 5, Period: month}
	return []store.Spec{
		{ID: "token_bucket", Policy: limit.Policy{Rate: five, Burst: 5}},
		{ID: "banned", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: five, Align: limit.AlignFirstHit, CountRefused: true, Ban: month}},
		{ID: "fixed_window", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: five, Align: limit.AlignFirstHit}},
		{ID: "sliding_window_log", Policy: limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: five}},
		{ID: "sliding_window_counter", Policy: limit.Policy{Algorithm: limit.SlidingWindowCounter, Rate: five}},
	}
}

// flood is a store with limited keys in it.
type flood struct {
	store   *memory.Store
	limits  []store.Counters
	victims uint64 // keys of each limit that are used up before
	base    int64  // live heap before the store was made

	peakBytes, peakHeap int64
}

// Flood uses up and bans keys, floods the store with others worth ten times its
// budget, and asks for the first ones again.
func Flood(cfg Config, rep *Report) error {
	f := &flood{victims: uint64(cfg.Victims), base: liveHeap(), store: memory.New(memory.Options{MaxBytes: cfg.Budget})}
	defer f.store.Close()
	for _, spec := range floodPolicies() {
		c, err := f.store.Bind(spec)
		if err != nil {
			return fmt.Errorf("bench: flood: %w", err)
		}
		f.limits = append(f.limits, c)
	}
	if err := f.useUp(); err != nil {
		return err
	}
	// No store can keep a key in less than 16 bytes, so this many are worth at
	// least ten times the budget.
	strangers := uint64(10 * cfg.Budget / 16)
	start := time.Now()
	if err := f.pour(strangers); err != nil {
		return err
	}
	took := time.Since(start)
	f.note(liveHeap() - f.base)
	if f.store.Stats().Overflowed == 0 {
		return fmt.Errorf("bench: flood: %d keys fitted into %d bytes: nothing was flooded", strangers, cfg.Budget)
	}
	passed, err := f.retry()
	if err != nil {
		return err
	}
	f.write(cfg, rep, strangers, took, passed)
	return nil
}

// key writes number n of a family into buf: victims and strangers never meet.
func key(buf []byte, family byte, n uint64) []byte {
	buf = append(buf[:0], "flood:"...)
	buf = append(buf, family, ':')
	return binary.BigEndian.AppendUint64(buf, n)
}

func (f *flood) take(charge *[1]store.Charge, c store.Counters, key []byte) (bool, error) {
	charge[0] = store.Charge{Counters: c, Key: key, Cost: 1}
	return f.store.Take(context.Background(), charge[:])
}

// useUp takes from each victim until it is refused.
func (f *flood) useUp() error {
	var charge [1]store.Charge
	var buf []byte
	for _, c := range f.limits {
		for n := range f.victims {
			buf = key(buf, 'v', n)
			for took := 0; ; took++ {
				ok, err := f.take(&charge, c, buf)
				if err != nil {
					return fmt.Errorf("bench: flood: %w", err)
				}
				if !ok && took == 5 {
					break
				}
				if !ok || took == 5 {
					return fmt.Errorf("bench: flood: %s admitted %d before the flood, want 5", c.Spec().ID, took)
				}
			}
		}
	}
	return nil
}

// pour takes once for each of n strangers, from two goroutines, in all limits in
// turn, and watches the memory meanwhile.
func (f *flood) pour(n uint64) error {
	var failed atomic.Pointer[error]
	var both sync.WaitGroup
	const watch = 1 << 16
	for half := range uint64(2) {
		both.Go(func() {
			var charge [1]store.Charge
			var buf []byte
			for i := half; i < n && failed.Load() == nil; i += 2 {
				buf = key(buf, 's', i)
				if _, err := f.take(&charge, f.limits[i/2%uint64(len(f.limits))], buf); err != nil {
					failed.Store(&err)
				}
				if half == 0 && i%watch == 0 {
					var m runtime.MemStats
					runtime.ReadMemStats(&m)
					f.note(int64(m.HeapAlloc) - f.base)
				}
			}
		})
	}
	both.Wait()
	if err := failed.Load(); err != nil {
		return fmt.Errorf("bench: flood: %w", *err)
	}
	return nil
}

func (f *flood) note(heap int64) {
	f.peakBytes = max(f.peakBytes, f.store.Stats().Bytes)
	f.peakHeap = max(f.peakHeap, heap)
}

// retry asks each victim three times more and counts by limit how many victims
// got through.
func (f *flood) retry() ([]int, error) {
	passed := make([]int, len(f.limits))
	var charge [1]store.Charge
	var buf []byte
	for i, c := range f.limits {
		for n := range f.victims {
			buf = key(buf, 'v', n)
			through := false
			for range 3 {
				ok, err := f.take(&charge, c, buf)
				if err != nil {
					return nil, fmt.Errorf("bench: flood: %w", err)
				}
				through = through || ok
			}
			if through {
				passed[i]++
			}
		}
	}
	return passed, nil
}

func (f *flood) write(cfg Config, rep *Report, strangers uint64, took time.Duration, passed []int) {
	const mib = 1 << 20
	stats := f.store.Stats()
	rep.Section("Key flood",
		fmt.Sprintf("%d keys of each limit used up or banned, then %d other keys (ten times the budget at 16 bytes a key, more at what they take) in %.0f s, then the first ones again.",
			cfg.Victims, strangers, took.Seconds()))
	rows := [][]string{
		{"byte budget, MiB", fmt.Sprintf("%.1f", float64(cfg.Budget)/mib)},
		{"tables, at most, MiB", fmt.Sprintf("%.1f", float64(f.peakBytes)/mib)},
		{"live heap after the flood, MiB", fmt.Sprintf("%.1f", float64(liveHeap()-f.base)/mib)},
		{"heap meanwhile with garbage, at most, MiB", fmt.Sprintf("%.1f", float64(f.peakHeap)/mib)},
		{"keys with a state of their own", fmt.Sprint(stats.Keys)},
		{"takes decided on the overflow bucket", fmt.Sprint(stats.Overflowed)},
	}
	total := 0
	for i, c := range f.limits {
		rows = append(rows, []string{"let through, " + c.Spec().ID, fmt.Sprintf("%d of %d", passed[i], cfg.Victims)})
		total += passed[i]
	}
	rep.Table([]string{"", "seen"}, rows)
	rep.AtMost("flood: limited or banned keys let through", float64(total), 0, "")
	rep.AtMost("flood: tables / budget", float64(f.peakBytes)/float64(cfg.Budget), 1, " ×")
	rep.AtMost("flood: live heap / budget", float64(liveHeap()-f.base)/float64(cfg.Budget), 1, " ×")
}
