package lending

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// question asks for n tokens of a user of the daily limit.
func (m *townMember) question(user string, n int64) lease.Ask {
	key, err := leasewire.EncodeKey(user)
	if err != nil {
		m.town.t.Error(err)
	}
	r := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: "daily", Key: key}}}}
	m.limits.Load().canonical(&r)
	return lease.Ask{Resource: r.Demands[0].Resource, Cost: fixed.Whole(n)}
}

// ask takes up to n of a user's bucket without a lease, from the member that leads, one by one. What a member says
// that was killed meanwhile does not arrive.
func (w *town) ask(user string, n int) (got int) {
	m := w.leader()
	if m == nil {
		return 0
	}
	for range n {
		ctx, cancel := context.WithTimeout(w.t.Context(), time.Second)
		answers, err := m.answer(ctx, []lease.Ask{m.question(user, 1)})
		if cancel(); err != nil {
			return got
		}
		w.mu.Lock()
		down := m.down
		w.mu.Unlock()
		if down || !answers[0].Decided || !answers[0].Admitted {
			return got
		}
		got++
	}
	return got
}

// TestAsksAndKillsNeverRefill: while keys are spent by asking and by leases, all the time, members are killed and
// parted. No key has more than its 30 a day, and one that nobody used has all of them at the end.
func TestAsksAndKillsNeverRefill(t *testing.T) {
	sum := 0
	for seed := range seeding.Draw(t, 3) {
		inTown(t, func(w *town) {
			r := rand.New(rand.NewPCG(seed, 75))
			w.config, w.slow = dailyConfig, time.Duration(r.Int64N(int64(40*time.Millisecond)))
			addresses := []string{"a", "b", "c"}
			for _, a := range addresses {
				w.start(a)
			}
			var mu sync.Mutex
			used, ended := map[string]int{}, false
			var all sync.WaitGroup
			for i := range 4 {
				one, r := w.customer(i), rand.New(rand.NewPCG(seed, uint64(i)))
				all.Go(func() {
					for {
						key := fmt.Sprint("k", r.IntN(24))
						got := 0
						if i == 0 && r.IntN(4) == 0 {
							got = one.hurry(key, 1+r.IntN(3))
						} else {
							got = w.ask(key, 1+r.IntN(4))
						}
						mu.Lock()
						used[key] += got
						over := ended
						if mu.Unlock(); over {
							return
						}
						pass(time.Duration(r.Int64N(int64(300 * time.Millisecond))))
					}
				})
			}
			for range 8 {
				pass(time.Duration(r.Int64N(int64(6 * time.Second))))
				m := w.members[addresses[r.IntN(3)]]
				if l := w.leader(); l != nil && r.IntN(2) == 0 {
					m = l
				}
				w.mu.Lock()
				down := m.down
				w.mu.Unlock()
				switch what := r.IntN(4); {
				case down:
					w.start(m.address)
				case what < 2:
					m.kill()
				case what == 2:
					w.mu.Lock()
					m.cut = !m.cut
					w.mu.Unlock()
				default:
					w.mu.Lock()
					m.deaf = !m.deaf
					w.mu.Unlock()
				}
			}
			w.heal(addresses)
			pass(10 * time.Second)
			mu.Lock()
			ended = true
			mu.Unlock()
			all.Wait()
			for key, n := range used {
				if sum += n; n > 30 {
					t.Errorf("seed %d: %d of %s were admitted", seed, n, key)
				}
			}
		})
	}
	t.Logf("%d were admitted", sum)
	if sum < 3*100 { // in one of them all members may be gone for most of the time
		t.Errorf("%d were admitted", sum)
	}
}

// heal has all members run and reach each other.
func (w *town) heal(addresses []string) {
	for _, a := range addresses {
		m := w.members[a]
		w.mu.Lock()
		m.cut, m.deaf = false, false
		again := m.down
		if w.mu.Unlock(); again {
			w.start(a)
		}
	}
}

// TestAsksSurviveAKill: with replicas, after a kill a key that was asked for has what is left of it or half as
// much, and another one has all.
func TestAsksSurviveAKill(t *testing.T) {
	inTown(t, func(w *town) {
		w.config = dailyConfig
		for _, a := range []string{"a", "b", "c"} {
			w.start(a)
		}
		w.settle(2)
		used := map[string]int{}
		for i := range 30 {
			used[fmt.Sprint("k", i)] = w.ask(fmt.Sprint("k", i), i)
		}
		w.settle(2).kill()
		for w.leader() == nil {
			pass(10 * time.Millisecond)
		}
		for key, n := range used {
			if got := w.ask(key, 31); got > 30-n || got < (30-n)/2-1 {
				t.Errorf("%s: %d of 30 were used, and %d are left", key, n, got)
			}
		}
		if got := w.ask("new", 31); got != 30 {
			t.Errorf("a new key has %d of 30", got)
		}
	})
}

// TestAskOfAFollower: who does not lead takes nothing and says so, and what is out of range is refused.
func TestAskOfAFollower(t *testing.T) {
	inTown(t, func(w *town) {
		w.config = dailyConfig
		w.start("a")
		w.start("b")
		leader := w.settle(1)
		for _, m := range w.members {
			_, err := m.ask(w.t.Context(), leasewire.ToAsks([]lease.Ask{m.question("anna", 1)}))
			if want := map[bool]codes.Code{true: codes.OK, false: codes.Unavailable}[m == leader]; status.Code(err) != want {
				t.Errorf("leads %v: %v", m == leader, err)
			}
		}
		for what, m := range map[string]*leasepb.Asks{
			"many": {Asks: make([]*leasepb.Question, leasewire.MaxAsks+1)},
			"long": {Asks: []*leasepb.Question{{Limit: "daily", Key: make([]byte, leasewire.MaxMemberKey+1)}}},
			"name": {Asks: []*leasepb.Question{{Limit: strings.Repeat("x", leasewire.MaxLimitName+1)}}},
			"cost": {Asks: []*leasepb.Question{{Limit: "daily", Cost: int64(fixed.MaxAmount) + 1}}},
			"back": {Asks: []*leasepb.Question{{Limit: "daily", Cost: -int64(fixed.MaxAmount) - 1}}},
		} {
			if _, err := leader.ask(w.t.Context(), m); status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", what, err)
			}
		}
		answers, err := leader.ask(w.t.Context(), &leasepb.Asks{Asks: []*leasepb.Question{{Limit: "nobody's"}, {Limit: "daily", Key: []byte("no key")}, {}}})
		if err != nil || len(answers.Answers) != 3 || answers.Answers[0].Decided || answers.Answers[1].Decided || answers.Answers[2].Decided {
			t.Errorf("%v, %v", answers, err)
		}
	})
}

// TestAskWaitsForReplicas: an answer waits for a follower in the record that is silent, until the record is written
// without it; one about a token of which a replica knows waits for nothing.
func TestAskWaitsForReplicas(t *testing.T) {
	inTown(t, func(w *town) {
		w.config = dailyConfig
		w.start("a")
		w.start("b")
		leader := w.settle(1)
		for _, m := range w.members {
			w.mu.Lock()
			m.deaf = m != leader
			w.mu.Unlock()
		}
		pass(20 * time.Millisecond) // what it was about to hear
		began := time.Now()
		if got := w.ask("x", 1); got != 1 || time.Since(began) < 300*time.Millisecond || time.Since(began) > time.Second {
			t.Errorf("%d admitted after %v", got, time.Since(began))
		}
		w.settle(0)
		began = time.Now()
		if got := w.ask("y", 20); got != 20 || time.Since(began) > 10*time.Millisecond {
			t.Errorf("%d admitted after %v", got, time.Since(began))
		}
	})
}

// TestAskThatWaitsAtTheEnd: an answer that waits when the term ends is not given.
func TestAskThatWaitsAtTheEnd(t *testing.T) {
	inTown(t, func(w *town) {
		w.config = dailyConfig
		w.start("a")
		w.start("b")
		leader := w.settle(1)
		w.mu.Lock()
		leader.cut = true // it cannot write the record, or renew its term
		for _, m := range w.members {
			m.deaf = m != leader
		}
		w.mu.Unlock()
		pass(20 * time.Millisecond)
		answers, err := leader.answer(w.t.Context(), []lease.Ask{leader.question("x", 1)})
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%v, %v", answers, err)
		}
	})
}

// TestAskThatFails: a fault of the coordinator before it answers is an error of the ask, one after it is not, and the
// next ask is answered. Replicas begin anew: they have not been told what the step took before it failed.
func TestAskThatFails(t *testing.T) {
	for _, after := range []bool{false, true} {
		inTown(t, func(w *town) {
			w.config = dailyConfig
			w.start("a")
			w.start("b")
			m := w.settle(1)
			step := m.step
			m.inLoop(w.t.Context(), func(limit.Time) {
				m.step = func(now limit.Time, e lease.Event) []lease.Grant {
					if m.step = step; after {
						step(now, e)
					}
					panic("on purpose")
				}
			})
			answers, err := m.answer(w.t.Context(), []lease.Ask{m.question("x", 1)})
			if after && (err != nil || !answers[0].Admitted) || !after && status.Code(err) != codes.Unavailable {
				t.Errorf("after %v: %v, %v", after, answers, err)
			}
			if in, _ := m.replicas(); after && in != 0 {
				t.Errorf("the record names %d replicas that were not told", in)
			}
			want := map[bool]int{true: 29, false: 30}[after]
			if got := w.ask("x", 31); got != want {
				t.Errorf("after %v: %d of %d were admitted", after, got, want)
			}
			w.settle(1)
		})
	}
}
