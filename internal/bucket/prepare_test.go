package bucket

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

func TestBucketHold(t *testing.T) {
	b := NewBucket(nil)
	at := limit.Time(0)
	b.Update(at, 10*fixed.Token, 10*fixed.Token, 10*fixed.Token)
	h, taken, decided := b.Prepare(at, 4)
	if !taken || !decided || b.Remaining(at) != 6 || b.Observe(at).Attempted != 0 {
		t.Fatalf("taken %v, %d are left, %v attempted: what is held is not counted yet", taken, b.Remaining(at), b.Observe(at).Attempted)
	}
	if _, taken, decided := b.Prepare(at, 7); taken || !decided {
		t.Error("7 of 6 were held")
	}
	if b.Rollback(at, h, 4); b.Remaining(at) != 10 || b.Observe(at).Attempted != 0 {
		t.Errorf("%d are left, want 10", b.Remaining(at))
	}
	if h, taken, _ = b.Prepare(at, 4); taken {
		b.Commit(4)
	}
	if r := b.Observe(at); r.Level != 6*fixed.Token || r.Attempted != 4*fixed.Token || r.Admitted != 4*fixed.Token {
		t.Errorf("%+v after a Hold that was kept", r)
	}
	for _, n := range []int64{-1, 1 << 62} {
		if _, taken, decided := b.Prepare(at, n); taken || !decided {
			t.Errorf("a Hold of %d was taken", n)
		}
	}
	if _, taken, _ = b.Prepare(at, 6); !taken {
		t.Fatal("6 of 6 were not held")
	}
	// Somebody stands in line: what comes back is for them.
	b.Freeze()
	if _, _, decided := b.Prepare(at, 1); decided {
		t.Error("a Hold passed those in line")
	}
	b.Join(2)
	if b.Rollback(at, h, 6); !b.Serve(at, 2) {
		t.Error("what came back is not there for those in line")
	}
}

// TestCommitNotesTheArrival: the time of a request that was committed is known like that of one
// that was admitted at once, and one that was rolled back leaves none.
func TestCommitNotesTheArrival(t *testing.T) {
	b := NewBucket(nil)
	at := limit.Time(time.Hour)
	b.Update(at, 10*fixed.Token, 10*fixed.Token, 10*fixed.Token)
	h, _, _ := b.Prepare(at, 1)
	if b.Rollback(at, h, 1); b.Observe(at).Last != 0 {
		t.Errorf("the last arrival was at %v, want none", b.Observe(at).Last)
	}
	b.Prepare(at, 1)
	b.Commit(1)
	if b.Arrived(at); b.Observe(at).Last != at {
		t.Errorf("the last arrival was at %v, want %v", b.Observe(at).Last, at)
	}
}

// TestUndoGivesBackAtMostWhatWasTaken: whatever comes between a Hold and its Undo, time,
// others who take, updated settings, tokens added, a bucket has afterwards at most what one
// has that never saw it, with what either returned to the coordinator; and exactly that
// if nothing came in between.
func TestUndoGivesBackAtMostWhatWasTaken(t *testing.T) {
	exact, less := 0, 0
	for seed := range seeding.Draw(t, 20_000) {
		r := rand.New(rand.NewPCG(seed, 7))
		amount := func(most int64) fixed.Amount { return fixed.Amount(r.Int64N(most*int64(fixed.Token) + 1)) }
		own, oracle := NewBucket(nil), NewBucket(nil)
		now := limit.Time(r.Int64N(1e9))
		var returned [2]fixed.Amount
		amend := func() {
			rate, depth, add := amount(2000), amount(40), amount(20)*fixed.Amount(r.IntN(2))
			for i, b := range []*Bucket{own, oracle} {
				surplus, _ := b.Update(now, rate, depth, add)
				returned[i] += surplus
			}
		}
		take := func() {
			n := r.Int64N(10)
			if taken, _ := own.Try(now, n); taken {
				if also, _ := oracle.Try(now, n); !also {
					t.Fatalf("seed %d: %d taken beside what is held, not without it", seed, n)
				}
			}
		}
		pass := func() { now += limit.Time(r.Int64N(int64(10 * time.Millisecond))) }
		amend()
		for range r.IntN(4) {
			pass()
			take()
		}
		cost, between := 1+r.Int64N(20), 0
		h, taken, _ := own.Prepare(now, cost)
		for range r.IntN(4) {
			switch between++; r.IntN(4) {
			case 0:
				amend()
			case 1:
				pass()
			default:
				take()
			}
		}
		if taken {
			own.Rollback(now, h, cost)
		}
		a, b := own.Observe(now).Level+returned[0], oracle.Observe(now).Level+returned[1]
		// A conversion to another setting loses up to two ticks, here or there.
		if a > b+fixed.Amount(2*between) || between == 0 && a != b {
			t.Fatalf("seed %d: %v after a Hold of %d that was undone, %v without it", seed, a, cost, b)
		}
		if a == b {
			exact++
		} else {
			less++
		}
	}
	if exact < 5000 || less == 0 {
		t.Errorf("%d exact, %d less: the search is wrong", exact, less)
	}
}

// TestConcurrentHoldsConserve: what is held and undone by many at once leaves a bucket, and places,
// with what was not kept.
func TestConcurrentHoldsConserve(t *testing.T) {
	const depth, each, workers = 1000, 2000, 8
	b, p := NewBucket(nil), NewSemaphore(nil)
	b.Update(0, 0, depth*fixed.Token, depth*fixed.Token)
	p.Update(0, 0, depth*fixed.Token, 0)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range each {
				h, taken, _ := b.Prepare(0, 2)
				_, placed, _ := p.Prepare(0, 1)
				switch keep := i%100 == 0; {
				case taken && keep:
					b.Commit(2)
				case taken:
					b.Rollback(0, h, 2)
				}
				switch keep := i%100 == 0; {
				case placed && keep:
					p.Commit(1)
				case placed:
					p.Release(1)
				}
			}
		})
	}
	wg.Wait()
	const kept = workers * each / 100
	if got := b.Observe(0); got.Level != (depth-2*kept)*fixed.Token || got.Admitted != 2*kept*fixed.Token {
		t.Errorf("%+v, want a level of %d", got, depth-2*kept)
	}
	if got := p.Observe(0); got.InUse != kept*fixed.Token || got.Admitted != kept*fixed.Token {
		t.Errorf("%+v, want %d in use", got, kept)
	}
}

func TestSemaphorePrepare(t *testing.T) {
	p := NewSemaphore(nil)
	p.Update(0, 0, 3*fixed.Token, 0)
	if _, taken, decided := p.Prepare(0, 4); taken || !decided {
		t.Error("4 of 3 places were held")
	}
	if _, taken, _ := p.Prepare(0, 3); !taken || p.Remaining(0) != 0 {
		t.Errorf("3 of 3 were not held; %d are left", p.Remaining(0))
	}
	if _, taken, decided := p.Prepare(0, -1); taken || !decided {
		t.Error("-1 was held")
	}
	p.Freeze()
	if _, _, decided := p.Prepare(0, 0); decided {
		t.Error("a Hold passed those in line")
	}
}
