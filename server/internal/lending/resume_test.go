package lending

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/internal/seeding"
)

// restarts is one coordinator after the other, alone, with one state directory.
type restarts struct {
	t       *testing.T
	dir     string
	state   State
	service *shard
	stop    context.CancelFunc
	ran     chan bool
}

func (r *restarts) begin(first bool) {
	r.t.Helper()
	state, err := OpenState(r.dir, 0, first)
	if err != nil {
		r.t.Fatal(err)
	}
	r.state = state
	r.service = newShard(Options{Limits: limits(r.t, "limits:\n  - {name: day, key: [user], rate: 1/minute, burst: 24, sharing: leased}\n"), State: state, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	r.stop, r.ran = cancel, make(chan bool, 1)
	service, ran := r.service, r.ran
	go func() { ran <- service.run(ctx) }()
}

func (r *restarts) end(killed bool) {
	r.t.Helper()
	r.stop()
	nothingLent := <-r.ran
	if err := r.state.Close(nothingLent && !killed, r.service.lastRecord(r.service.now())); err != nil {
		r.t.Fatal(err)
	}
}

// take asks for up to n tokens of a user, one by one.
func (r *restarts) take(user string, n int) (got int) {
	r.t.Helper()
	key, err := leasewire.EncodeKey(user)
	if err != nil {
		r.t.Fatal(err)
	}
	m := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: "day", Key: key}}}}
	r.service.limits.Load().canonical(&m)
	for got < n {
		answers, err := r.service.answer(r.t.Context(), []lease.Ask{{Resource: m.Demands[0].Resource, Cost: fixed.Whole(1)}})
		if err != nil {
			r.t.Fatal(err)
		}
		if !answers[0].Decided || !answers[0].Admitted {
			break
		}
		got++
	}
	return got
}

// TestRestartsNeverRefill: a coordinator that is alone is ended in order and killed, at any time, for any time. No key
// has more than its bucket and the rate since the beginning, whether it was used before or not; and one that saw no kill
// has all of that.
func TestRestartsNeverRefill(t *testing.T) {
	if testing.Short() {
		t.Skip("TestChaos has the same goroutines: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 12) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 15))
			r := &restarts{t: t, dir: t.TempDir()}
			r.begin(true)
			begun, used, killed := time.Now(), map[string]int{}, false
			for range 40 {
				switch random.IntN(4) {
				case 0:
					kill := seed%2 == 0 && random.IntN(3) == 0
					killed = killed || kill
					r.end(kill)
					time.Sleep(time.Duration(random.Int64N(int64(2 * time.Minute))))
					r.begin(false)
				case 1:
					time.Sleep(time.Duration(random.Int64N(int64(time.Minute))))
				default:
					key := fmt.Sprint("user", random.IntN(5))
					used[key] += r.take(key, 1+random.IntN(30))
					if most := 24 + int(time.Since(begun)/time.Minute); used[key] > most {
						t.Fatalf("seed %d: %s has had %d after %v, more than %d", seed, key, used[key], time.Since(begun), most)
					}
				}
			}
			time.Sleep(48 * time.Minute) // all are full
			r.end(false)
			r.begin(false)
			for key := range used {
				if got := r.take(key, 100); got != 24 {
					t.Errorf("seed %d: %s has %d of 24 after 48 minutes (killed: %v)", seed, key, got, killed)
				}
				r.end(false)
				down := time.Duration(random.Int64N(int64(90 * time.Second)))
				time.Sleep(down)
				r.begin(false)
				time.Sleep(90*time.Second - down)
				if got := r.take(key, 100); got != 1 {
					t.Errorf("seed %d: %s has %d a minute and a half after it had nothing, want 1", seed, key, got)
				}
			}
			r.end(false)
		})
	}
}
