package lending

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/access"
)

// replication is a stream in memory between two members: the leader's side, and by follows the follower's.
type replication struct {
	ctx    context.Context
	cancel context.CancelFunc
	to     *townMember
	up     chan *leasepb.Confirmation
	down   chan *leasepb.Levels
	over   chan struct{} // the handler has returned
}

// replicate opens a stream to the member at an address.
func (m *townMember) replicate(ctx context.Context, address string, shard int) (grpc.BidiStreamingClient[leasepb.Confirmation, leasepb.Levels], func(), error) {
	w := m.town
	w.mu.Lock()
	defer w.mu.Unlock()
	leader := w.members[address]
	if leader == nil || leader.down || m.down || m.deaf || w.unreplicated {
		return nil, nil, errCut
	}
	own, cancel := context.WithCancel(access.NewContext(ctx, w.who))
	k := &replication{ctx: own, cancel: cancel, to: m, up: make(chan *leasepb.Confirmation, 64), down: make(chan *leasepb.Levels, 64), over: make(chan struct{})}
	leader.copies[k], m.copies[k] = true, true
	go func() {
		// The status of the handler is for the follower, which asks again whatever it is.
		_ = leader.nth(shard).replicate(k)
		close(k.over)
	}()
	return (*followerEnd)(k), cancel, nil
}

func (k *replication) Recv() (*leasepb.Confirmation, error) {
	select {
	case m := <-k.up:
		return m, nil
	case <-k.ctx.Done():
		return nil, k.ctx.Err()
	case <-k.over:
		return nil, io.EOF
	}
}

func (k *replication) Send(m *leasepb.Levels) error {
	select {
	case k.down <- m:
		return nil
	case <-k.ctx.Done():
		return k.ctx.Err()
	}
}
func (k *replication) Context() context.Context     { return k.ctx }
func (k *replication) SetHeader(metadata.MD) error  { return nil }
func (k *replication) SendHeader(metadata.MD) error { return nil }
func (k *replication) SetTrailer(metadata.MD)       {}
func (k *replication) SendMsg(any) error            { return errCut }
func (k *replication) RecvMsg(any) error            { return errCut }

// followerEnd is the follower's side. A member that is deaf receives nothing, and its stream stays open.
type followerEnd replication

func (k *followerEnd) Send(m *leasepb.Confirmation) error {
	select {
	case k.up <- m:
		return nil
	case <-k.ctx.Done():
		return k.ctx.Err()
	case <-k.over:
		return io.EOF
	}
}

func (k *followerEnd) Recv() (*leasepb.Levels, error) {
	for {
		k.to.town.mu.Lock()
		deaf := k.to.deaf
		k.to.town.mu.Unlock()
		in := k.down
		if deaf {
			in = nil
		}
		select {
		case m := <-in:
			return m, nil
		case <-k.ctx.Done():
			return nil, k.ctx.Err()
		case <-k.over:
			return nil, io.EOF
		case <-time.After(10 * time.Millisecond): // it may have become deaf, or hear again
		}
	}
}
func (k *followerEnd) CloseSend() error             { return nil }
func (k *followerEnd) Context() context.Context     { return k.ctx }
func (k *followerEnd) Header() (metadata.MD, error) { return nil, nil }
func (k *followerEnd) Trailer() metadata.MD         { return nil }
func (k *followerEnd) SendMsg(any) error            { return errCut }
func (k *followerEnd) RecvMsg(any) error            { return errCut }

const dailyConfig = `limits:
  - {name: daily, key: [user], rate: 30/day, burst: 30, sharing: leased}
`

// customer is an instance that spends keys of the daily limit.
type customer struct {
	keyed *client.Keyed
	stop  func()
}

func (w *town) customer(i int) *customer {
	c, err := client.New(client.Options{Transport: &resident{town: w}, Address: "a", Others: []string{"b", "c"}, Instance: fmt.Sprint("c", i), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	one := &customer{stop: func() { cancel(); <-ended }}
	w.t.Cleanup(one.stop)
	if one.keyed, err = c.Keyed("daily", []string{"user"}, client.KeyedOptions{}); err != nil {
		w.t.Fatal(err)
	}
	return one
}

// spend takes up to n of a key, and asks again for a second before it gives up.
func (one *customer) spend(key string, n int) int { return one.take(key, n, 100*time.Millisecond) }

// hurry is spend that asks again for a tenth of a second.
func (one *customer) hurry(key string, n int) int { return one.take(key, n, 10*time.Millisecond) }

func (one *customer) take(key string, n int, pause time.Duration) (got int) {
	for range n {
		for range 10 {
			d, err := one.keyed.Take(context.Background(), limit.Request{Attributes: []limit.Attribute{{Name: "user", Value: key}}, Cost: 1})
			if err == nil && d.Allowed {
				got++
				break
			}
			pass(pause)
		}
	}
	return got
}

// settle waits until the leader's record names n replicas.
func (w *town) settle(n int) *townMember {
	for range 1000 {
		if m := w.leader(); m != nil {
			listed := 0
			m.inLoop(w.t.Context(), func(limit.Time) {
				if !m.membership.publishing && m.membership.replicas.current() {
					listed = len(m.membership.replicas.mayBeInRecord().Replicas)
				}
			})
			if listed == n {
				return m
			}
		}
		pass(10 * time.Millisecond)
	}
	w.t.Fatalf("the record does not come to name %d replicas", n)
	return nil
}

// TestKillLosesNoBucket: when the leader was killed, a key that nobody has used has all of its 30 a day, one that
// was used and given back has what is left of it, and none has more.
func TestKillLosesNoBucket(t *testing.T) {
	inTown(t, func(w *town) {
		w.config = dailyConfig
		for _, a := range []string{"a", "b", "c"} {
			w.start(a)
		}
		one := w.customer(1)
		used := map[string]int{}
		for round := range 3 {
			w.settle(2)
			for i := range 5 {
				key := fmt.Sprint("k", i)
				used[key] += one.spend(key, 2+i)
			}
			pass(20 * time.Second) // what is not used is given back
			m := w.settle(2)
			m.kill()
			pass(8 * time.Second)
			if got := one.spend(fmt.Sprint("new", round), 31); got != 30 {
				t.Errorf("kill %d: a new key has %d of 30", round, got)
			}
			w.start(m.address)
		}
		for key, n := range used {
			if got := one.spend(key, 31); got+n != 30 {
				t.Errorf("%s: %d were used before the kills, and %d after them, want 30 in all", key, n, got)
			}
		}
	})
}

// TestLapseLosesNoBucket: when no member has reached the register until the term was over, the next leader knows the
// buckets: a new key has all of its 30 a day, and one that was used what is left of it.
func TestLapseLosesNoBucket(t *testing.T) {
	if testing.Short() {
		t.Skip("TestKillLosesNoBucket has the same goroutines: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 4) {
		inTown(t, func(w *town) {
			r := rand.New(rand.NewPCG(seed, 75))
			w.config = dailyConfig
			addresses := []string{"a", "b", "c"}[:1+r.IntN(3)]
			for _, a := range addresses {
				w.start(a)
			}
			one := w.customer(1)
			used := map[string]int{}
			for round := range 3 {
				w.settle(len(addresses) - 1)
				for i := range 5 {
					key := fmt.Sprint("k", i)
					used[key] += one.spend(key, r.IntN(6))
				}
				pass(20 * time.Second) // what is not used is given back
				lapses := 1
				if len(addresses) == 1 {
					lapses += r.IntN(3) // while leases of before may be in use; with others a leader may have told nobody yet
				}
				for range lapses {
					w.mu.Lock()
					for _, m := range w.members {
						m.cut = true
					}
					w.mu.Unlock()
					pass(2*time.Second + time.Duration(r.Int64N(int64(8*time.Second))))
					w.heal(addresses)
					pass(time.Duration(r.Int64N(int64(3 * time.Second))))
				}
				pass(8 * time.Second)
				if got := one.spend(fmt.Sprint("new", round), 31); got != 30 {
					t.Errorf("seed %d, %d members, lapse %d: a new key has %d of 30", seed, len(addresses), round, got)
				}
			}
			for key, n := range used {
				if got := one.spend(key, 31); got+n != 30 {
					t.Errorf("seed %d, %d members, %s: %d were used before the lapses, and %d after them, want 30 in all", seed, len(addresses), key, n, got)
				}
			}
		})
	}
}

// TestLapsesBeforeAnythingIsLent: leaders that are killed or cut off before they lend anything leave the buckets as they
// found them, though nobody has a replica: full, or as the last one left them that resigned. Where something is taken at that
// moment, no bucket has more.
func TestLapsesBeforeAnythingIsLent(t *testing.T) {
	if testing.Short() {
		t.Skip("TestKillLosesNoBucket has the same goroutines: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 24) {
		inTown(t, func(w *town) {
			r := rand.New(rand.NewPCG(seed, 76))
			w.config, w.slow, w.unreplicated = dailyConfig, time.Duration(r.Int64N(int64(50*time.Millisecond))), true
			addresses := []string{"a", "b", "c"}
			for _, a := range addresses {
				w.start(a)
			}
			used, racing := 0, r.IntN(2) == 0
			leads := func() *townMember {
				for w.leader() == nil {
					pass(10 * time.Millisecond)
				}
				return w.leader()
			}
			if r.IntN(2) == 0 {
				leads()
				first := w.customer(1)
				used = first.spend("k", 12)
				first.stop() // and gives back what it has left
				m := leads()
				m.stop()
				m.kill()
				w.start(m.address)
			}
			one := w.customer(2)
			for range 1 + r.IntN(4) {
				m := leads()
				pass(time.Duration(r.Int64N(int64(3 * time.Second))))
				taken, early, asks := make(chan int, 1), time.Duration(r.Int64N(int64(50*time.Millisecond))), r.IntN(2) == 0
				go func() {
					pass(early)
					switch {
					case !racing:
						taken <- 0
					case asks:
						taken <- w.ask("k", 5)
					default:
						taken <- one.hurry("k", 5)
					}
				}()
				pass(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
				if r.IntN(2) == 0 {
					m.kill()
				} else {
					w.mu.Lock()
					m.cut = true
					w.mu.Unlock()
				}
				used += <-taken
				pass(3 * time.Second)
				w.heal(addresses)
			}
			pass(20 * time.Second)
			if got := one.spend("k", 31); got+used > 30 || got+used < 30 && !racing {
				t.Errorf("seed %d: %d were used before the last lapse, and %d after it, want 30 in all", seed, used, got)
			}
		})
	}
}

// TestKillsNeverRefill: whoever is killed, cut off or deaf, and whenever, no key has more than its 30 a day, and
// when all is well a new key has all of them.
func TestKillsNeverRefill(t *testing.T) {
	if testing.Short() {
		t.Skip("TestTownSchedules has the same goroutines: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 4) {
		inTown(t, func(w *town) {
			r := rand.New(rand.NewPCG(seed, 74))
			w.config, w.slow = dailyConfig, time.Duration(r.Int64N(int64(60*time.Millisecond)))
			addresses := []string{"a", "b", "c"}
			for _, a := range addresses {
				w.start(a)
			}
			all := []*customer{w.customer(0), w.customer(1), w.customer(2)}
			used := map[string]int{}
			spend := func(n int) {
				for range n {
					key := fmt.Sprint("k", r.IntN(4))
					used[key] += all[r.IntN(len(all))].spend(key, 1+r.IntN(9))
				}
			}
			for range 10 {
				spend(3)
				m := w.members[addresses[r.IntN(3)]]
				if l := w.leader(); l != nil && r.IntN(2) == 0 {
					m = l
				}
				switch r.IntN(5) {
				case 0, 1:
					m.kill()
				case 2:
					m.stop()
					m.kill()
				case 3:
					w.mu.Lock()
					m.cut = true
					w.mu.Unlock()
				case 4:
					w.mu.Lock()
					m.deaf = true
					w.mu.Unlock()
				}
				spend(3)
				pass(time.Duration(r.Int64N(int64(8 * time.Second))))
				for _, a := range addresses {
					m := w.members[a]
					w.mu.Lock()
					if r.IntN(3) > 0 {
						m.cut, m.deaf = false, false
					}
					again := m.down && r.IntN(3) > 0
					if w.mu.Unlock(); again {
						w.start(a)
					}
				}
			}
			w.heal(addresses)
			pass(8 * time.Second)
			w.settle(2).kill()
			pass(8 * time.Second)
			// The day has not passed, and in it a bucket gains a token each 48 minutes.
			for key, n := range used {
				if n > 30 {
					t.Errorf("seed %d: %d of %s were admitted", seed, n, key)
				}
			}
		})
	}
}

// TestReplicaThatGoes: grants wait for a replica that is silent or gone until the record does not name it, and
// no longer; one that comes is named.
func TestReplicaThatGoes(t *testing.T) {
	inTown(t, func(w *town) {
		w.config, w.slow = dailyConfig, 20*time.Millisecond
		for _, a := range []string{"a", "b", "c"} {
			w.start(a)
		}
		one := w.customer(1)
		one.spend("first", 1)
		leader := w.settle(2)
		var followers []*townMember
		for _, m := range w.members {
			if m != leader {
				followers = append(followers, m)
			}
		}
		followers[0].kill()
		if began := time.Now(); one.spend("second", 30) != 30 || time.Since(began) > 300*time.Millisecond {
			t.Errorf("a key waits for %v after a follower was killed", time.Since(began))
		}
		w.settle(1)
		w.mu.Lock()
		followers[1].deaf = true
		w.mu.Unlock()
		pass(20 * time.Millisecond) // what it was about to hear
		if began := time.Now(); one.spend("third", 30) != 30 || time.Since(began) < 300*time.Millisecond || time.Since(began) > time.Second {
			t.Errorf("a key waits for %v after a follower was deaf", time.Since(began))
		}
		w.settle(0)
		w.mu.Lock()
		followers[1].deaf = false
		w.mu.Unlock()
		w.settle(1)
		if in, _ := leader.replicas(); in != 1 {
			t.Errorf("it shows %d replicas", in)
		}
		if _, buckets := followers[1].replicas(); buckets != 3 {
			t.Errorf("the replica shows %d buckets", buckets)
		}
	})
}

// TestRecordNamesAReplicaThatIsGone when the leader is killed: nothing was sent that the replica does not
// know, though nobody waits for it in the end.
func TestRecordNamesAReplicaThatIsGone(t *testing.T) {
	inTown(t, func(w *town) {
		w.config = dailyConfig
		w.start("a")
		one := w.customer(1)
		one.spend("first", 1)
		w.start("b")
		leader := w.settle(1)
		follower := w.members["b"]
		w.write(400 * time.Millisecond) // the record is written late, or never
		w.mu.Lock()
		for k := range leader.copies {
			k.cancel()
		}
		follower.deaf = true
		w.mu.Unlock()
		used := one.spend("key", 3)
		leader.kill()
		w.write(0)
		pass(8 * time.Second)
		if got := one.spend("key", 31); used+got > 30 {
			t.Errorf("%d were admitted before the kill and %d after it, of 30", used, got)
		}
	})
}

// TestReplicasOfAnEpochThatRose know nothing of what is lent from then on, so that no record names them before
// they have begun anew.
func TestReplicasOfAnEpochThatRose(t *testing.T) {
	inTown(t, func(w *town) {
		w.config = strings.Replace(config, "burst: 10,", "burst: 200,", 1)
		w.bucket.burst, w.bucket.level = 200, 200
		for _, a := range []string{"a", "b"} {
			w.start(a)
		}
		all := []*resident{w.resident(1)}
		all[0].demand = 50
		w.live(4*time.Second, all)
		leader := w.settle(1)
		leader.inLoop(w.t.Context(), func(now limit.Time) {
			leader.feed(now, nil, &lease.Report{Member: lease.Member{Instance: "x", Session: 1}, Version: lease.ProtocolVersion, Number: 1, Epoch: leader.loop.epoch + 5})
			if n := leader.membership.replicas.count(); n != 0 {
				w.t.Errorf("%d replicas go on", n)
			}
		})
		all[0].demand = 400
		w.live(5500*time.Millisecond, all)
		leader.kill()
		w.live(10*time.Second, all)
	})
}

// TestReplicaInARecordThatIsBeingWritten is waited for: a successor may read that record before the leader
// knows that it was written.
func TestReplicaInARecordThatIsBeingWritten(t *testing.T) {
	inTown(t, func(w *town) {
		w.config = dailyConfig
		w.start("a")
		one := w.customer(1)
		one.spend("first", 1)
		w.write(150 * time.Millisecond)
		follower := w.start("b")
		for followed := 0; followed == 0; pass(time.Millisecond) {
			_, followed = follower.replicas()
		}
		w.mu.Lock()
		follower.deaf = true
		w.mu.Unlock()
		pass(180 * time.Millisecond) // the record is written, and the leader does not know it
		used := one.hurry("key", 1)
		w.leader().kill()
		w.write(0)
		pass(8 * time.Second)
		if got := one.spend("key", 31); used+got > 30 {
			t.Errorf("%d were admitted before the kill and %d after it, of 30", used, got)
		}
	})
}

// TestReplicaOfAMemberThatIsNoneAnyMore: a stream of an identity that has lost the role member ends with its next
// confirmation.
func TestReplicaOfAMemberThatIsNoneAnyMore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "auth.yaml")
	roles := func(roles string) {
		sum := sha256.Sum256([]byte("peer"))
		testca.File(filepath.Dir(path), "auth.yaml", fmt.Appendf(nil, "identities: [{name: peer, token_sha256: '%x', roles: [%s]}]", sum, roles))
	}
	roles("member")
	live, err := access.Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	token, err := access.TokenOf("peer")
	if err != nil {
		t.Fatal(err)
	}
	inTown(t, func(w *town) {
		w.config, w.who = dailyConfig, live.Begin(token)
		w.start("a")
		one := w.customer(1)
		one.spend("first", 1)
		follower := w.start("b")
		w.settle(1)
		roles("take")
		if err := live.Reload(); err != nil {
			t.Fatal(err)
		}
		if began := time.Now(); one.spend("second", 30) != 30 || time.Since(began) > 300*time.Millisecond {
			t.Errorf("a key waits for %v", time.Since(began))
		}
		w.settle(0)
		if _, buckets := follower.replicas(); buckets > 2 {
			t.Errorf("it was told of %d buckets", buckets)
		}
	})
}
