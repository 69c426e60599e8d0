package demand

import (
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TestMovingAverage walks through a load that steps up and down, four intervals of six
// seconds.
func TestMovingAverage(t *testing.T) {
	now := limit.Time(time.Hour)
	m := NewMovingAverage(24*time.Second, 4, now)
	for i, c := range []struct {
		rate int     // per second
		want float64 // after three seconds of the interval
		ends float64 // after all six
	}{
		{10, 10, 10},
		{10, 10, 10},
		{10, 10, 10},
		{10, 10, 10},
		{50, (3*10 + 50) / 4.0, (3*10 + 50) / 4.0}, // a rise counts at once
		{50, (2*10 + 2*50) / 4.0, (2*10 + 2*50) / 4.0},
		{0, (2*10 + 2*50) / 4.0, (10 + 2*50) / 4.0}, // a fall when its interval has ended
		{0, (10 + 2*50) / 4.0, 2 * 50 / 4.0},
		{0, 2 * 50 / 4.0, 50 / 4.0},
	} {
		for half := range 2 {
			for range 3 * 100 {
				m.Add(now, fixed.Amount(c.rate)*fixed.Token/100)
				now = now.Add(10 * time.Millisecond)
			}
			want := c.want
			if half == 1 {
				want = c.ends
			}
			if got := m.Rate(now).Float(); math.Abs(got-want) > 0.2 {
				t.Errorf("interval %d, half %d: %v, want %v", i, half+1, got, want)
			}
		}
	}
	now = now.Add(time.Hour)
	if got := m.Rate(now); got != 0 {
		t.Errorf("after an hour of silence: %v", got)
	}
	m.Add(now-limit.Time(time.Minute), 6*fixed.Token) // an older time counts as the latest
	if got := m.Rate(now.Add(3 * time.Second)).Float(); math.Abs(got-2.0/4) > 1e-6 {
		t.Errorf("six in three seconds after silence: %v", got)
	}
}

// TestMovingAverageIsThatOfAList compares with an average that remembers everything.
func TestMovingAverageIsThatOfAList(t *testing.T) {
	r := seeding.Rand(t)
	for range 200 {
		n, interval := 1+r.IntN(6), time.Duration(1+r.IntN(1000))*time.Millisecond
		begin := limit.Time(time.Hour)
		m := NewMovingAverage(time.Duration(n)*interval, n, begin)
		sums := map[int]float64{}
		now := begin
		for range 300 {
			now = now.Add(time.Duration(r.Int64N(int64(interval))))
			if r.IntN(50) == 0 {
				now = now.Add(time.Duration(r.IntN(3*n)) * interval)
			}
			k := int(time.Duration(now-begin) / interval)
			count := fixed.Amount(r.Int64N(int64(100 * fixed.Token)))
			m.Add(now, count)
			sums[k] += count.Float()
			known := min(k, n)
			mean := 0.0
			for i := k - known; i < k; i++ {
				mean += sums[i] / float64(max(known, 1))
			}
			since := max(time.Duration(now-begin)%interval, interval/youngest).Seconds()
			current := sums[k] / since * interval.Seconds()
			want := current
			if known > 0 {
				want = mean
				with := 0.0
				first := k - known
				if known == n {
					first++
				}
				for i := first; i < k; i++ {
					with += sums[i]
				}
				if current > mean {
					want = max(mean, (with+current)/float64(k-first+1))
				}
			}
			want /= interval.Seconds()
			if got := m.Rate(now).Float(); math.Abs(got-want) > 1e-6*max(want, 1) {
				t.Fatalf("%d intervals of %v, %v after the beginning: %v, want %v", n, interval, time.Duration(now-begin), got, want)
			}
		}
	}
}

// TestSpreadIsManySmallAdds: what is spread over time is as if it had been added in small
// parts all along.
func TestSpreadIsManySmallAdds(t *testing.T) {
	r := seeding.Rand(t)
	for range 100 {
		n, interval := 1+r.IntN(6), time.Duration(1+r.IntN(100))*10*time.Millisecond
		now := limit.Time(time.Hour)
		spread, added := NewMovingAverage(time.Duration(n)*interval, n, now), NewMovingAverage(time.Duration(n)*interval, n, now)
		for range 50 {
			parts := 1 + r.IntN(300)
			each := fixed.Amount(r.Int64N(int64(fixed.Token)))
			spread.Spread(now, now.Add(time.Duration(parts)*time.Millisecond), fixed.Amount(parts)*each)
			for range parts {
				added.Add(now, each)
				now = now.Add(time.Millisecond)
			}
			if got, want := spread.Rate(now).Float(), added.Rate(now).Float(); math.Abs(got-want) > 1e-6*max(1, want)+0.001 {
				t.Fatalf("%d intervals of %v: %v, want %v", n, interval, got, want)
			}
		}
	}
}

// TestSpreadAfterAPause: what is spread over a time that begins long after the interval in progress
// counts where it belongs, and in all as much as it is.
func TestSpreadAfterAPause(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct{ from, to limit.Time }{{510 * limit.Time(time.Millisecond), 590 * limit.Time(time.Millisecond)}, {550 * limit.Time(time.Millisecond), 650 * limit.Time(time.Millisecond)}, {500 * limit.Time(time.Millisecond), 900 * limit.Time(time.Millisecond)}, {350 * limit.Time(time.Millisecond), 350 * limit.Time(time.Millisecond)}, {0, 950 * limit.Time(time.Millisecond)}} {
		m := NewMovingAverage(time.Second, 10, 0)
		m.Add(0, 0)
		m.Spread(tt.from, tt.to, 80*fixed.Token)
		all := m.count
		for _, n := range m.ended {
			all += n
		}
		if all > 80*fixed.Token || all < 80*fixed.Token-20 || m.began != tt.to/(100*limit.Time(time.Millisecond))*(100*limit.Time(time.Millisecond)) {
			t.Errorf("%v are counted of 80 from %v to %v, and the interval began at %v", all, time.Duration(tt.from), time.Duration(tt.to), time.Duration(m.began))
		}
	}
}
