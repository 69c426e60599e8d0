package measure_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/bench/internal/measure"
)

func TestSliceCountsEveryWorker(t *testing.T) {
	seen := make([]int64, 3)
	s := measure.Slice(3, time.Millisecond, func(w, n int) int {
		seen[w] += int64(n)
		return n / 2
	})
	if !slices.Equal(seen, s.ByWorker) {
		t.Errorf("by worker %v, want %v", s.ByWorker, seen)
	}
	if s.Ops == 0 || s.Yes*2 != s.Ops || s.NsPerOp <= 0 {
		t.Errorf("got %+v", s)
	}
}

var sink []byte

func TestSliceCountsAllocations(t *testing.T) {
	s := measure.Slice(1, time.Millisecond, func(_, n int) int {
		for range n {
			sink = make([]byte, 16)
		}
		return 0
	})
	if a := s.AllocsPerOp(); a < 0.99 || a > 1.1 {
		t.Errorf("%.3f allocations per operation, want 1", a)
	}
}

func TestInterleaveShiftsTheOrderAndDropsTheFirstRound(t *testing.T) {
	var order []int
	got, err := measure.Interleave(2, 3, func(c int) (measure.Sample, error) {
		order = append(order, c)
		return measure.Sample{Ops: int64(len(order))}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []int{0, 1, 2, 1, 2, 0, 2, 0, 1}; !slices.Equal(order, want) {
		t.Errorf("order %v, want %v", order, want)
	}
	if len(got[0]) != 2 || got[0][0].Ops != 6 || got[0][1].Ops != 8 {
		t.Errorf("samples of contender 0: %+v", got[0])
	}
}

func TestInterleaveStopsAtAnError(t *testing.T) {
	want := errors.New("wrong answers")
	_, err := measure.Interleave(3, 2, func(c int) (measure.Sample, error) {
		if c == 1 {
			return measure.Sample{}, want
		}
		return measure.Sample{}, nil
	})
	if !errors.Is(err, want) {
		t.Errorf("got %v", err)
	}
}

func TestSeries(t *testing.T) {
	s := measure.Series{4, 1, 3}
	if s.Median() != 3 || (measure.Series{4, 1, 3, 2}).Median() != 2.5 || (measure.Series{}).Median() != 0 {
		t.Error("wrong median")
	}
	if !slices.Equal(s, measure.Series{4, 1, 3}) {
		t.Error("Median sorted its receiver: the rounds no longer match")
	}
	// Twice as slow in each round, on a machine that slows down by ten.
	slow, fast := measure.Series{2, 200, 20}, measure.Series{1, 100, 10}
	if r := slow.Over(fast); !slices.Equal(r, measure.Series{2, 2, 2}) {
		t.Errorf("ratios %v", r)
	}
	if got := s.Format("%.0f"); got != "3 [1–4]" {
		t.Errorf("Format: %q", got)
	}
}
