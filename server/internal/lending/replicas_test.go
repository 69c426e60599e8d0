package lending

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

func level(i byte, tokens int64) coordinator.Level {
	return coordinator.Level{Bucket: coordinator.BucketID{i}, Tokens: fixed.Whole(tokens), Held: true, Leased: true, Fills: time.Minute}
}

// names has the record name the replicas that it should.
func names(l *replicaSet) []uint64 {
	s := l.inSync()
	l.writing(&s)
	l.written(&s)
	return s.Replicas
}

// TestWhatWaitsForReplicas: what is told is known when all replicas of the record have confirmed it; one that is
// lost is waited for until the record is written without it; one that begins is not waited for before a
// record names it.
func TestWhatWaitsForReplicas(t *testing.T) {
	l, now := newReplicaSet(5, 1), limit.Time(time.Second)
	n := uint64(1)
	tell := func(tokens int64) {
		n++
		l.tell(now, []coordinator.Level{level(1, tokens)}, n)
	}
	if tell(1); !l.know(n) {
		t.Error("it waits, and there is no replica")
	}
	a, b := newReplicaStream(1, "h"), newReplicaStream(2, "h")
	l.add(now, a, nil, -1)
	if got := names(l); len(got) != 0 {
		t.Errorf("the record names %v before they know anything", got)
	}
	if !l.confirm(now, a, (<-a.out).Number) || l.current() {
		t.Error("the first confirmation is not taken for that")
	}
	s := l.inSync()
	l.writing(&s)
	tell(2)
	if l.know(n) {
		t.Error("a replica is not waited for while the record that names it is being written")
	}
	l.written(&s)
	l.add(now, b, nil, -1)
	if l.know(n) || l.confirm(now, a, (<-a.out).Number) || !l.know(n) {
		t.Error("it does not wait for the confirmation, or longer")
	}
	l.confirm(now, b, (<-b.out).Number)
	if got := names(l); !slices.Equal(got, []uint64{1, 2}) || !l.current() {
		t.Errorf("the record names %v", got)
	}
	tell(3)
	l.confirm(now, a, n)
	for _, tt := range []struct {
		after, next time.Duration
		dropped     bool
	}{{0, replicaPatience - replicaGrace, false}, {replicaPatience - replicaGrace, replicaPatience, false}, {replicaPatience - 1, replicaPatience, false}, {replicaPatience, replicaPatience, true}} {
		if dropped, next := l.sweep(now.Add(tt.after)); dropped != tt.dropped || next != now.Add(tt.next) {
			t.Errorf("after %v it was given up: %v, and would be after %v", tt.after, dropped, time.Duration(next-now))
		}
	}
	if l.know(n) {
		t.Error("the record names it still, and it does not know")
	}
	if names(l); !l.know(n) {
		t.Error("it is waited for though no record names it")
	}
	l.remove(now, a)
	if l.know(0) {
		t.Error("a replica that is lost is taken for one that knows")
	}
	if names(l); !l.know(n) {
		t.Error("it is waited for though no record names it")
	}
}

// TestHostsThatAreLostAgainAndAgain: the next replica of a host waits, for twice as long each time that it is lost
// soon after it came, a minute at most, so that it does not hold up every new key and is not sent all
// buckets all the time. Other hosts do not wait, and one that has done well begins anew.
func TestHostsThatAreLostAgainAndAgain(t *testing.T) {
	l, now := newReplicaSet(1, 1), limit.Time(time.Second)
	next, well := newReplicaStream(0, "slow"), newReplicaStream(0, "well")
	id, waited, held := uint64(0), time.Duration(0), time.Duration(0)
	lose := func() {
		id++
		st := newReplicaStream(id, "slow")
		l.add(now, st, nil, -1)
		l.confirm(now, st, l.number)
		l.tell(now, []coordinator.Level{level(1, 1)}, l.number+1)
		for dropped := false; !dropped; {
			_, at := l.sweep(now)
			held += time.Duration(at - now)
			now = at
			dropped, _ = l.sweep(now)
		}
		if !l.may(now, well) {
			t.Error("another host waits")
		}
		for ; !l.may(now, next); now = now.Add(10 * time.Millisecond) {
			waited += 10 * time.Millisecond
		}
	}
	for range 20 {
		lose()
	}
	if held > 20*replicaPatience || waited < 13*time.Minute || waited > 20*time.Minute {
		t.Errorf("it held the leader up for %v in %v", held, waited)
	}
	waited, now = 0, now.Add(10*time.Minute)
	if lose(); waited != firstReplicaPause {
		t.Errorf("one that did well for long waits for %v", waited)
	}
}

// TestLeaderThatStoodStill gives a replica a chance whose confirmation may be on the way.
func TestLeaderThatStoodStill(t *testing.T) {
	l, st, now := newReplicaSet(1, 1), newReplicaStream(1, "h"), limit.Time(time.Second)
	l.add(now, st, nil, -1)
	l.confirm(now, st, 1)
	l.tell(now, []coordinator.Level{level(1, 1)}, 2)
	now = now.Add(time.Minute)
	if dropped, _ := l.sweep(now); dropped {
		t.Error("it is given up before the leader has read what it said")
	}
	l.confirm(now, st, 2)
	if dropped, next := l.sweep(now.Add(time.Minute)); dropped || next != lease.Never || l.may(now, st) {
		t.Error("it is given up though it knows everything, or its number counts twice")
	}
}

// TestManyReplicas: the record names so many, always the same.
func TestManyReplicas(t *testing.T) {
	l := newReplicaSet(1, 1)
	for i := range uint64(30) {
		st := newReplicaStream(i, "h")
		if may := l.may(1, st); may != (i < maxReplicas) {
			t.Errorf("replica %d may begin: %v", i, may)
		} else if may {
			l.add(1, st, nil, -1)
			l.confirm(1, st, 1)
		}
	}
	if got := names(l); len(got) != coordinator.MaxInSync || !l.current() {
		t.Errorf("the record names %v", got)
	}
}

// TestReplicaThatDoesNotRead is ended when so many messages wait for it, and one whose confirmation is of
// nothing that was sent is not believed.
func TestReplicaThatDoesNotRead(t *testing.T) {
	l, st := newReplicaSet(1, 1), newReplicaStream(1, "h")
	l.add(1, st, nil, -1)
	if l.confirm(1, st, 2) || l.confirm(1, newReplicaStream(1, "h"), 1) {
		t.Error("it is believed")
	}
	for i := range uint64(replicaQueue) {
		if st.over() {
			t.Fatal("it was ended too early")
		}
		l.tell(1, []coordinator.Level{level(1, 1)}, 2+i)
	}
	if dropped, _ := l.sweep(1); !dropped || l.count() != 0 {
		t.Error("it goes on")
	}
}

// TestLevelsOnTheWire are what was sent, in messages that gRPC takes, and what is damaged is refused.
func TestLevelsOnTheWire(t *testing.T) {
	r := seeding.Rand(t)
	var levels []coordinator.Level
	for i := range 2*maxLevels + 5 {
		one := coordinator.Level{Tokens: fixed.Amount(r.Int64N(1<<50) - 1<<49), Leased: r.IntN(2) == 0, Fills: time.Duration(r.Int64())}
		one.Bucket[0], one.Bucket[5] = byte(i), byte(i>>8)
		if one.Held = one.Leased && r.IntN(2) == 0; !one.Held {
			one.Age = time.Duration(r.Int64N(1 << 50))
		}
		levels = append(levels, one)
	}
	l, st := newReplicaSet(7, 1), newReplicaStream(1, "h")
	l.add(1, st, levels, 42)
	var got []coordinator.Level
	for complete := false; !complete; {
		m := <-st.out
		text, err := proto.Marshal(m)
		if err != nil || len(text) > 1<<20 || m.Epoch != 7 || (len(got) == 0) != (m.Others == 42) {
			t.Fatalf("%d bytes, epoch %d, others %d, %v", len(text), m.Epoch, m.Others, err)
		}
		back := new(leasepb.Levels)
		if err := proto.Unmarshal(text, back); err != nil {
			t.Fatal(err)
		}
		if got, err = fromLevels(got, back); err != nil {
			t.Fatal(err)
		}
		complete = m.Complete
	}
	if !slices.Equal(got, levels) {
		t.Error("they are not what was sent")
	}
	for i, damage := range []func(m *leasepb.Levels){
		func(m *leasepb.Levels) { m.Buckets = m.Buckets[1:] },
		func(m *leasepb.Levels) { m.Tokens = m.Tokens[1:] },
		func(m *leasepb.Levels) { m.Age = append(m.Age, 0) },
		func(m *leasepb.Levels) { m.Fills = nil },
		func(m *leasepb.Levels) { m.Leased = nil },
		func(m *leasepb.Levels) { m.Age[0] = -2 },
		func(m *leasepb.Levels) { m.Age[0] = math.MaxInt64 },
		func(m *leasepb.Levels) { m.Fills[0] = -1 },
		func(m *leasepb.Levels) { m.Tokens[0] = math.MaxInt64 },
		func(m *leasepb.Levels) { m.Tokens[0] = math.MinInt64 },
	} {
		m := new(leasepb.Levels)
		toLevels(m, levels[:3])
		if damage(m); i >= 0 {
			if _, err := fromLevels(nil, m); err == nil {
				t.Errorf("damage %d was not noticed", i)
			}
		}
	}
}

// script is a leader that says what it was given, and then fails.
type script struct {
	grpc.ClientStream
	say       []*leasepb.Levels
	confirmed []uint64
	id        uint64
}

func (s *script) Send(m *leasepb.Confirmation) error {
	s.id = m.Replica
	s.confirmed = append(s.confirmed, m.Number)
	return nil
}

func (s *script) Recv() (*leasepb.Levels, error) {
	if len(s.say) == 0 {
		return nil, io.EOF
	}
	m := s.say[0]
	s.say = s.say[1:]
	return m, nil
}

// TestFollower: what is known counts when it is complete, for a record that names the replica and a term that
// follows that of its leader. A stream that ends before it is complete takes nothing away.
func TestFollower(t *testing.T) {
	of := func(number, epoch uint64, complete bool, levels ...coordinator.Level) *leasepb.Levels {
		m := &leasepb.Levels{Number: number, Epoch: epoch, Complete: complete, Others: -1}
		toLevels(m, levels)
		return m
	}
	one := &script{say: []*leasepb.Levels{of(3, 9, false, level(1, 5)), of(3, 9, true, level(2, 5)), of(4, 9, true, level(3, 5))}}
	two := &script{say: []*leasepb.Levels{of(1, 10, false, level(4, 5))}}
	three := &script{say: []*leasepb.Levels{of(1, 10, true), {Number: 2, Buckets: []byte{1}}}}
	streams := []*script{one, two, three}
	f := &follower{leader: func() (string, bool) { return "leader", true }, now: func() limit.Time { return 1 }, connect: func(_ context.Context, address string, shard int) (grpc.BidiStreamingClient[leasepb.Confirmation, leasepb.Levels], func(), error) {
		if address != "leader" || shard != 6 {
			return nil, nil, fmt.Errorf("connected to %s of shard %d", address, shard)
		}
		s := streams[0]
		streams = streams[1:]
		return s, func() {}, nil
	}, shard: 6}
	used := func(former, epoch uint64, s *script) bool {
		return f.used(1, former, &coordinator.InSync{Epoch: epoch, Replicas: []uint64{s.id}}) != nil
	}
	if f.used(1, 0, &coordinator.InSync{}) != nil || f.buckets() != 0 {
		t.Error("something is known before there was a leader")
	}
	if err := f.follow(t.Context(), "leader"); !errors.Is(err, io.EOF) || !slices.Equal(one.confirmed, []uint64{0, 3, 4}) || f.buckets() != 3 {
		t.Errorf("%v; it confirmed %v, and knows %d buckets", err, one.confirmed, f.buckets())
	}
	if !used(9, 9, one) || used(10, 9, one) || used(10, 10, one) || used(9, 9, two) {
		t.Error("it counts for another term, or not for its own")
	}
	if err := f.follow(t.Context(), "leader"); !errors.Is(err, io.EOF) || !used(9, 9, one) || used(10, 10, two) {
		t.Errorf("%v; one that is not complete counts", err)
	}
	if err := f.follow(t.Context(), "leader"); !errors.Is(err, errLevels) || !used(10, 10, three) || used(9, 9, one) || f.buckets() != 0 {
		t.Errorf("%v; the latest does not count", err)
	}
}

// frozen is a leader whose connections stay open, and from which nothing comes.
type frozen struct {
	script
	ctx context.Context
}

func (s *frozen) Recv() (*leasepb.Levels, error) {
	<-s.ctx.Done()
	return nil, s.ctx.Err()
}

// TestLeaderThatHangs is left when another one is known, so that this has a replica at once; while none is known, its
// stream goes on.
func TestLeaderThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var leader atomic.Value
		leader.Store("a")
		connected := make(chan string, 10)
		f := &follower{
			leader: func() (string, bool) { address := leader.Load().(string); return address, address != "" },
			now:    func() limit.Time { return 1 },
			connect: func(ctx context.Context, address string, _ int) (grpc.BidiStreamingClient[leasepb.Confirmation, leasepb.Levels], func(), error) {
				connected <- address
				return &frozen{ctx: ctx}, func() {}, nil
			},
		}
		go f.run(t.Context())
		time.Sleep(time.Minute)
		leader.Store("")
		time.Sleep(time.Minute)
		leader.Store("b")
		time.Sleep(2 * lookAgain)
		if n := len(connected); n != 2 || <-connected != "a" || <-connected != "b" {
			t.Errorf("it connected %d times, want to a and then to b", n)
		}
	})
}

// TestAfter: what waits is called once, in order, when the replicas of the record know what it waits for, at once where
// they do already, and with false when the term ends.
func TestAfter(t *testing.T) {
	l, now := newReplicaSet(5, 1), limit.Time(time.Second)
	var said []string
	after := func(what string, number uint64) {
		l.after(number, func(known bool) { said = append(said, fmt.Sprint(what, known)) })
	}
	want := func(want ...string) {
		t.Helper()
		if !slices.Equal(said, want) {
			t.Errorf("%q, want %q", said, want)
		}
		said = nil
	}
	after("no replica ", 1)
	want("no replica true")
	a := newReplicaStream(1, "h")
	l.add(now, a, nil, -1)
	l.confirm(now, a, (<-a.out).Number)
	names(l)
	for n := uint64(2); n <= 4; n++ {
		l.tell(now, []coordinator.Level{level(1, int64(9-n))}, n)
	}
	after("known ", 1)
	after("two ", 2)
	after("four ", 4)
	after("three ", 3)
	l.release()
	want("known true")
	l.confirm(now, a, 3)
	l.release()
	want("two true")
	l.confirm(now, a, 4)
	l.release()
	l.release()
	want("four true", "three true")
	l.tell(now, []coordinator.Level{level(1, 1)}, 5)
	after("five ", 5)
	l.endAll()
	l.endAll()
	l.release()
	want("five false")
}
