package share

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

func TestHistoryWalkThrough(t *testing.T) {
	var h History
	for i, step := range []struct{ push, newest, most, mean, trend Amount }{
		{100, 100, 100, 100, 100},
		{160, 160, 160, 130, 220}, // the line through two points
		{130, 130, 160, 130, 160}, // 115, 130, 145 and on
		{0, 0, 160, 97, 15},       // 180 - 33i, at 5
		{-5, 0, 160, 78, 0},       // below 0 counts as 0; the line ends below 0
	} {
		h.Push(step.push)
		if h.Newest() != step.newest {
			t.Errorf("step %d: newest is %d, want %d", i, h.Newest(), step.newest)
		}
		if h.Max() != step.most || h.Mean() != step.mean || h.Trend() != step.trend {
			t.Errorf("step %d: max %d, mean %d, trend %d, want %d, %d, %d",
				i, h.Max(), h.Mean(), h.Trend(), step.most, step.mean, step.trend)
		}
	}
	for range HistorySize {
		h.Push(math.MaxInt64) // counts as the largest
	}
	if h.Len() != HistorySize || h.Max() != MaxAmount || h.Mean() != MaxAmount || h.Trend() != MaxAmount {
		t.Errorf("full of the largest: %d values, max %d, mean %d, trend %d", h.Len(), h.Max(), h.Mean(), h.Trend())
	}
	var empty History
	if empty.Len() != 0 || empty.Newest() != 0 || empty.Max() != 0 || empty.Mean() != 0 || empty.Trend() != 0 {
		t.Errorf("empty: %+v", empty)
	}
	steep := History{}
	steep.Push(0)
	steep.Push(0)
	steep.Push(9)
	if got := steep.Trend(); got != 12 { // the line 3 + 4.5(i-2), at 4
		t.Errorf("steep: got %d, want 12", got)
	}
}

// TestHistoryProperties compares with the last values kept in a slice, and the trend
// with least squares done in fractions.
func TestHistoryProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(17, 18))
	for range 2000 {
		var h History
		var last []Amount
		straight, slope := Amount(rng.Int64N(1e9)), Amount(rng.Int64N(1e8))
		line := rng.IntN(3) == 0
		for i := range 1 + rng.IntN(30) {
			v := logUniform(rng, MaxAmount)
			if line {
				v = straight + Amount(i)*slope
			}
			h.Push(v)
			last = append(last, v)
			last = last[max(0, len(last)-HistorySize):]
		}
		sum, most := new(big.Int), Amount(0)
		for _, v := range last {
			sum.Add(sum, big.NewInt(int64(v)))
			most = max(most, v)
		}
		mean := new(big.Int).Quo(sum, big.NewInt(int64(len(last)))).Int64()
		if h.Len() != len(last) || h.Newest() != last[len(last)-1] || h.Max() != most || h.Mean() != Amount(mean) {
			t.Fatalf("%v: newest %d, max %d, mean %d", last, h.Newest(), h.Max(), h.Mean())
		}
		trend := h.Trend()
		if trend < 0 || trend > MaxAmount || trend/2 > most {
			t.Fatalf("%v: trend %d", last, trend)
		}
		if want := leastSquares(last); trend != want {
			t.Fatalf("%v: trend %d, want %d", last, trend, want)
		}
		if line && len(last) > 1 && most > 0 && slope <= last[0] && trend != most+slope {
			t.Fatalf("%v lie on a line: trend %d, want %d", last, trend, most+slope)
		}
	}
}

func leastSquares(values []Amount) Amount {
	n := int64(len(values))
	if n == 1 {
		return values[0]
	}
	rat := func(x int64) *big.Rat { return new(big.Rat).SetInt64(x) }
	mx, my, sxy, sxx := big.NewRat(n+1, 2), new(big.Rat), new(big.Rat), new(big.Rat)
	most := values[0]
	for _, v := range values {
		my.Add(my, rat(int64(v)))
		most = max(most, v)
	}
	my.Quo(my, rat(n))
	for i, v := range values {
		dx := new(big.Rat).Sub(rat(int64(i+1)), mx)
		sxy.Add(sxy, new(big.Rat).Mul(dx, new(big.Rat).Sub(rat(int64(v)), my)))
		sxx.Add(sxx, new(big.Rat).Mul(dx, dx))
	}
	next := new(big.Rat).Mul(sxy.Quo(sxy, sxx), new(big.Rat).Sub(rat(n+1), mx))
	next.Add(next, my)
	if next.Sign() < 0 {
		return 0
	}
	down := new(big.Int).Quo(next.Num(), next.Denom())
	for _, bound := range []Amount{2 * min(most, MaxAmount/2), MaxAmount} {
		if b := big.NewInt(int64(bound)); down.Cmp(b) > 0 {
			down = b
		}
	}
	return Amount(down.Int64())
}

func TestHistoryAllocatesNothing(t *testing.T) {
	var h History
	if n := testing.AllocsPerRun(100, func() {
		h.Push(h.Trend() + h.Mean() + h.Max() + 1)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestCheckThresholds(t *testing.T) {
	for _, ok := range [][2]float64{{0.09, 0.1}, {0, 0.01}} {
		if err := CheckThresholds(ok[0], ok[1]); err != nil {
			t.Errorf("%v: %v", ok, err)
		}
	}
	for _, bad := range [][2]float64{{0.1, 0.1}, {0.2, 0.1}} {
		if err := CheckThresholds(bad[0], bad[1]); !errors.Is(err, ErrThreshold) {
			t.Errorf("%v: %v", bad, err)
		}
	}
	nan := math.NaN()
	for _, bad := range [][2]float64{{-0.1, 0.1}, {nan, 0.1}, {0.05, nan}, {0.05, 1}, {0.05, 0}} {
		if err := CheckThresholds(bad[0], bad[1]); err == nil {
			t.Errorf("%v passed", bad)
		}
	}
}

func TestWantedByUse(t *testing.T) {
	for _, tt := range []struct {
		name              string
		held, admitted    Amount
		tolerance, growth float64
		want              Amount
	}{
		{"it uses all", Whole(100), Whole(100), 0.1, 1.5, Whole(150)},
		{"it is busy", Whole(100), Whole(90) + 1, 0.1, 1.5, Whole(150)},
		{"at the tolerance it is not", Whole(100), Whole(90), 0.1, 1.5, Whole(100)},
		{"it uses half", Whole(100), Whole(45), 0.1, 1.5, Whole(50)},
		{"it uses nothing", Whole(100), 0, 0.1, 1.5, 0},
		{"it spent a burst", Whole(100), Whole(500), 0.1, 1.5, Whole(500)},
		{"it holds nothing", 0, 0, 0.1, 1.5, 0},
		{"it held something", 0, Whole(3), 0.1, 1.5, Whole(3)},
		{"usual settings", Whole(100), Whole(100), 0, 0, Whole(150)},
		{"no settings", Whole(100), Whole(45), math.NaN(), math.NaN(), Whole(50)},
		{"endless growth", Whole(1), Whole(1), 0.1, math.Inf(1), Whole(1000)},
		{"the largest", MaxAmount, math.MaxInt64, 0.1, 2, MaxAmount},
		{"below 0", -5, -5, 0.1, 2, 0},
		{"whole tolerance", Whole(100), Whole(1), 1, 2, Whole(200)},
	} {
		if got := WantedByUse(tt.held, tt.admitted, tt.tolerance, tt.growth); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

// TestWantedByUseSettles: who gets what it wants and goes on as before wants the same
// from then on, and no more than 1/(1 - tolerance) and one step of growth above it.
func TestWantedByUseSettles(t *testing.T) {
	rng := rand.New(rand.NewPCG(19, 20))
	for range 5000 {
		demand, held := logUniform(rng, 1e12), logUniform(rng, 1e12)
		tolerance, growth := 0.01+0.4*rng.Float64(), 1.1+rng.Float64()
		last := Amount(-1)
		for range 1000 {
			held = WantedByUse(held, min(held, demand), tolerance, growth)
			if held == last {
				break
			}
			last = held
			if held < 10 { // growth of a few units rounds to none
				held = 10
			}
		}
		if used := float64(demand) / (1 - tolerance); last != held || float64(held) > used*growth+10 || held < min(demand, 10) {
			t.Fatalf("demand %v, tolerance %v, growth %v: ends at %v, before %v", demand, tolerance, growth, held, last)
		}
	}
}
