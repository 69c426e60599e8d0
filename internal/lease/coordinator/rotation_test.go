package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// admitted runs a fleet for a while and returns what each was admitted.
func admitted(f *fleet, d time.Duration) []int64 {
	was := make([]int64, len(f.instances))
	for i, in := range f.instances {
		was[i] = in.took
	}
	f.run(d)
	for i, in := range f.instances {
		was[i] = in.took - was[i]
	}
	return was
}

// TestFewerTokensThanInstances: with a bucket for one or two, all have their turn.
func TestFewerTokensThanInstances(t *testing.T) {
	for _, terms := range []lease.Terms{
		{Rate: 5 * fixed.Token, Burst: fixed.Token}, {Rate: 20 * fixed.Token, Burst: 2 * fixed.Token}, {Rate: 2 * fixed.Token, Burst: 3 * fixed.Token},
	} {
		f := newFleet(t, 1, 7, terms)
		for _, in := range f.instances {
			f.load(in, 10*terms.Rate.Float())
		}
		f.run(10 * time.Second)
		got := admitted(f, 5*time.Minute)
		fair := int64(terms.Rate.Float() * 300 / 7)
		for i, n := range got {
			if n < fair*6/10 || n > fair*14/10 {
				t.Errorf("%+v: %v were admitted to instances alike, %d to %d; fair were %d", terms, got, n, i, fair)
				break
			}
		}
	}
}

// TestSilentHasItsTurn: one that never asks is not forgotten where there are fewer
// tokens than instances.
func TestSilentHasItsTurn(t *testing.T) {
	for _, others := range []float64{1, 40} {
		f := newFleet(t, 1, 3, lease.Terms{Rate: 8 * fixed.Token, Burst: fixed.Token})
		f.instances[2].opts.Silent = true
		f.start(f.instances[2])
		for _, in := range f.instances {
			f.load(in, others)
		}
		f.load(f.instances[2], 40)
		f.run(10 * time.Second)
		got := admitted(f, 3*time.Minute)
		if want := int64(8 * 180 / 3); got[2] < want/2 {
			t.Errorf("the silent one was admitted %d in 3 min, want about %d; all: %v", got[2], want, got)
		}
	}
}
