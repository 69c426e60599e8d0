package share

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/quick"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestFraction has the figures of the description of 2022.
func TestFraction(t *testing.T) {
	linear := Suppress{Ramp: RampLinear}
	for _, c := range []struct {
		s    Suppress
		rate float64 // of a limit of 100
		want float64
	}{
		{Suppress{}, 0, 0},
		{Suppress{}, 100, 0},
		{Suppress{}, 200, 0.5},
		{Suppress{}, 10_000, 0.99},
		{linear, 100, 0},
		{linear, 200, 0.5},
		{linear, 300, 1},
		{linear, 1e9, 1},
		{Suppress{Ramp: RampLinear, Full: 2}, 150, 0.5},
	} {
		rate, err := AmountOf(c.rate)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.s.Fraction(100*Token, rate); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%+v at %v: %v, want %v", c.s, c.rate, got, c.want)
		}
	}
	if got := (&Suppress{}).Fraction(0, 1); got != 1 {
		t.Errorf("of a limit of 0: %v", got)
	}
}

// TestExactFractionLeavesTheLimit: what passes of any rate above the limit is the limit.
func TestExactFractionLeavesTheLimit(t *testing.T) {
	s := Suppress{}
	err := quick.Check(func(l, r uint64) bool {
		limit, rate := Amount(l>>3)%MaxAmount, Amount(r>>2)%MaxAmount
		f := s.Fraction(limit, rate)
		if rate <= limit {
			return f == 0
		}
		return f >= 0 && f <= 1 && math.Abs((1-f)*float64(rate)-float64(limit)) <= 1e-9*float64(rate)
	}, &quick.Config{MaxCount: 10_000})
	if err != nil {
		t.Error(err)
	}
}

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
				m.Add(now, Amount(c.rate)*Token/100)
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
	m.Add(now-limit.Time(time.Minute), 6*Token) // an older time counts as the latest
	if got := m.Rate(now.Add(3 * time.Second)).Float(); math.Abs(got-2.0/4) > 1e-6 {
		t.Errorf("six in three seconds after silence: %v", got)
	}
}

// TestMovingAverageIsThatOfAList compares with an average that remembers everything.
func TestMovingAverageIsThatOfAList(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
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
			count := Amount(r.Int64N(int64(100 * Token)))
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
	r := rand.New(rand.NewPCG(5, 6))
	for range 100 {
		n, interval := 1+r.IntN(6), time.Duration(1+r.IntN(100))*10*time.Millisecond
		now := limit.Time(time.Hour)
		spread, added := NewMovingAverage(time.Duration(n)*interval, n, now), NewMovingAverage(time.Duration(n)*interval, n, now)
		for range 50 {
			parts := 1 + r.IntN(300)
			each := Amount(r.Int64N(int64(Token)))
			spread.Spread(now, now.Add(time.Duration(parts)*time.Millisecond), Amount(parts)*each)
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

func TestBadSuppress(t *testing.T) {
	for name, s := range map[string]Suppress{
		"report of a nanosecond":       {Report: 1},
		"negative report":              {Report: -1},
		"report of an hour":            {Report: time.Hour},
		"negative window":              {Window: -1, Intervals: 1},
		"intervals without window":     {Intervals: 4},
		"window without intervals":     {Window: time.Second},
		"interval longer than window":  {Window: time.Second, Intervals: -1},
		"interval shorter than report": {Window: time.Second, Intervals: 20},
		"too many intervals":           {Window: time.Hour, Intervals: MaxIntervals + 1},
		"admitted without a window":    {Admitted: true},
		"NaN":                          {Full: math.NaN()},
		"infinite":                     {Full: math.Inf(1)},
		"no ramp":                      {Full: 1},
		"unknown ramp":                 {Ramp: 9},
	} {
		if s.Validate() == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for _, s := range []Suppress{{}, {Report: 2 * time.Second, Window: 24 * time.Second, Intervals: 4, Ramp: RampLinear, Admitted: true, Independent: true}} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}

// TestDraws: of what a suppressed bucket is asked passes the part that was told, and with
// draws that make up for each other hardly more or less than that.
func TestDraws(t *testing.T) {
	for _, independent := range []bool{false, true} {
		r := rand.New(rand.NewPCG(3, 4))
		b := NewBucket(nil)
		b.Chance(r.Float64)
		now := limit.Time(time.Hour)
		b.Amend(now, 1000*Token, 50*Token, 50*Token)
		b.Suppress(now, Suppression{Reject: 0.9, Rate: 100 * Token, Depth: 20 * Token}, independent)
		passed, repeats, last := 0, 0, false
		least, most := math.MaxInt, 0
		for second := range 200 {
			n := 0
			for range 1000 {
				now = now.Add(time.Duration(r.ExpFloat64() * float64(time.Millisecond)))
				ok, decided := b.Allow(now, 1)
				if !decided {
					t.Fatal("not decided")
				}
				if ok {
					n++
					if last {
						repeats++
					}
				}
				last = ok
			}
			if passed += n; second > 0 {
				least, most = min(least, n), max(most, n)
			}
		}
		if mean := float64(passed) / 200_000; mean < 0.098 || mean > 0.102 {
			t.Errorf("independent %v: %v passed, want a tenth", independent, mean)
		}
		// The number in 1,000 independent draws has a deviation of 9.5.
		if spread := most - least; independent && spread < 35 || !independent && spread > 35 {
			t.Errorf("independent %v: %d to %d of 1,000", independent, least, most)
		}
		if repeats == 0 {
			t.Errorf("independent %v: no two in a row passed: that is no draw", independent)
		}
	}
}

// TestSuppressAndAmend: what is lent and what is suppressed do not get in each other's way.
func TestSuppressAndAmend(t *testing.T) {
	b := NewBucket(nil)
	now := limit.Time(time.Hour)
	b.Amend(now, 1000*Token, 50*Token, 50*Token)
	b.Suppress(now, Suppression{Reject: 1, Rate: 10 * Token, Depth: 2 * Token}, false)
	if got := b.Depth(now); got != 2 {
		t.Errorf("depth %d while suppressed", got)
	}
	if ok, decided := b.Allow(now, 1); ok || !decided {
		t.Errorf("all is to be refused: %v %v", ok, decided)
	}
	b.Join(2)
	if !b.Serve(now, 2) {
		t.Error("who waits is not drawn")
	}
	if _, held := b.Amend(now, 2000*Token, 80*Token, 0); held != 80*Token {
		t.Errorf("held %v, want what is lent", held)
	}
	if got := b.Depth(now); got != 2 {
		t.Errorf("depth %d while suppressed", got)
	}
	for _, reject := range []float64{math.NaN(), -1, 0} {
		b.Suppress(now, Suppression{Reject: reject, Rate: 1, Depth: 1}, false)
		if got := b.Depth(now); got != 80 {
			t.Errorf("depth %d after suppression has ended by %v", got, reject)
		}
	}
	if got := b.Remaining(now); got != 0 {
		t.Errorf("%d created", got)
	}
	b.Suppress(now, Suppression{Reject: math.Inf(1), Rate: MaxAmount, Depth: MaxAmount}, false)
	if ok, _ := b.Allow(now.Add(time.Second), 1); ok {
		t.Error("passed at a part of infinity")
	}
}

// TestSuppressConcurrent is for the race detector: nothing is admitted above what is in
// force at any time.
func TestSuppressConcurrent(t *testing.T) {
	b := NewBucket(nil)
	now := limit.Time(time.Hour)
	b.Amend(now, 0, 1000*Token, 1000*Token)
	var passed [4]int
	var wg sync.WaitGroup
	for i := range passed {
		wg.Go(func() {
			for range 20_000 {
				if ok, _ := b.Allow(now, 1); ok {
					passed[i]++
				}
			}
		})
	}
	wg.Go(func() {
		for i := range 1000 {
			b.Suppress(now, Suppression{Reject: float64(i%10) / 10, Rate: Token, Depth: Amount(100+i%7) * Token}, false)
		}
	})
	wg.Wait()
	if sum := passed[0] + passed[1] + passed[2] + passed[3]; sum > 1000 {
		t.Errorf("%d of 1,000 passed", sum)
	}
}

func TestSuppressedAllowDoesNotAllocate(t *testing.T) {
	b := NewBucket(nil)
	now := limit.Time(time.Hour)
	b.Amend(now, 1000*Token, 50*Token, 50*Token)
	b.Suppress(now, Suppression{Reject: 0.5, Rate: 500 * Token, Depth: 50 * Token}, false)
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Millisecond)
		b.Allow(now, 1)
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestSpreadAfterAPause: what is spread over a time that begins long after the interval in progress
// counts where it belongs, and in all as much as it is.
func TestSpreadAfterAPause(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct{ from, to limit.Time }{{510 * ms, 590 * ms}, {550 * ms, 650 * ms}, {500 * ms, 900 * ms}, {350 * ms, 350 * ms}, {0, 950 * ms}} {
		m := NewMovingAverage(time.Second, 10, 0)
		m.Add(0, 0)
		m.Spread(tt.from, tt.to, 80*Token)
		all := m.count
		for _, n := range m.ended {
			all += n
		}
		if all > 80*Token || all < 80*Token-20 || m.began != tt.to/(100*ms)*(100*ms) {
			t.Errorf("%v are counted of 80 from %v to %v, and the interval began at %v", all, time.Duration(tt.from), time.Duration(tt.to), time.Duration(m.began))
		}
	}
}
