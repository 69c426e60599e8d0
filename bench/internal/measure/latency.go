package measure

import (
	"math/bits"
	"time"
)

// fine is the number of buckets in each doubling of the time: a quantile is at
// most one part in 32 too high.
const fine = 32

// Latency counts calls by how long they took, up to a minute. The zero value is
// ready. Not safe for concurrent use.
type Latency struct {
	calls   int64
	total   time.Duration
	buckets [fine * 32]int64
}

// Add counts a call that took d. Calls longer than the last bucket count there.
func (l *Latency) Add(d time.Duration) {
	l.calls++
	l.total += d
	ns := uint64(max(d, 0))
	shift := max(bits.Len64(ns)-6, 0)
	l.buckets[min(shift*fine+int(ns>>shift), len(l.buckets)-1)]++
}

// Merge counts the calls of o as well.
func (l *Latency) Merge(o *Latency) {
	l.calls += o.calls
	l.total += o.total
	for i, n := range o.buckets {
		l.buckets[i] += n
	}
}

// Mean is the average; 0 without calls.
func (l *Latency) Mean() time.Duration {
	if l.calls == 0 {
		return 0
	}
	return l.total / time.Duration(l.calls)
}

// Quantile returns what a share q of the calls did not exceed; 0 without calls.
func (l *Latency) Quantile(q float64) time.Duration {
	left := int64(q * float64(l.calls))
	for i, n := range l.buckets {
		if left -= n; left < 0 || n > 0 && left == 0 && q == 1 {
			shift := max(i/fine-1, 0)
			return time.Duration((i-shift*fine+1)<<shift - 1)
		}
	}
	return 0
}
