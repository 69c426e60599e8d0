package traffic

import (
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

// What is drawn is never below 0, has small beside large and changes each time or nearly, in
// each of the four ways; a part that moves leaves the sum as it was.
func TestSource(t *testing.T) {
	s := Source{Rand: seeding.Rand(t), Each: 50}
	wants := s.First(20)
	smallest, largest := wants[0], wants[0]
	same, moved, one, many := 0, 0, 0, 0
	for range 2000 {
		before := slices.Clone(wants)
		next := s.Next(wants)
		if !slices.Equal(wants, before) {
			t.Fatal("Next changed what it was given")
		}
		changed, sum := 0, 0.0
		for i, w := range next {
			if w < 0 || w > 1e9 {
				t.Fatalf("%v", next)
			}
			sum += w - wants[i]
			if w != wants[i] {
				changed++
			}
			smallest, largest = min(smallest, w), max(largest, w)
		}
		switch {
		case changed == 0:
			same++
		case changed == 2 && sum < 1e-9 && sum > -1e-9:
			moved++
		case changed == 1:
			one++
		default:
			many++
		}
		wants = next
	}
	if same > 400 || moved < 200 || one < 300 || many < 600 || smallest != 0 || largest < 8*50*0.9 {
		t.Errorf("%d the same, %d moved, %d of one, %d of many; from %g to %g", same, moved, one, many, smallest, largest)
	}
}

// Between draws within its bounds, as often below the geometric mean as above it.
func TestBetween(t *testing.T) {
	s := Source{Rand: seeding.Rand(t)}
	below := 0
	for range 10000 {
		x := s.Between(0.01, 100)
		if x < 0.01 || x > 100 {
			t.Fatal(x)
		}
		if x < 1 {
			below++
		}
	}
	if below < 4800 || below > 5200 {
		t.Errorf("%d of 10000 are below the geometric mean", below)
	}
}
