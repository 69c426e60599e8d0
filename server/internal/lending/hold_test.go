package lending

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// call is a stream as gRPC gives it to the handler, in virtual time.
type call struct {
	grpc.ServerStream
	ctx     context.Context
	hangUp  context.CancelFunc // as gRPC does when the handler has returned
	reports chan *leasepb.Report
	broken  chan error // what Recv fails with
	linger  time.Duration
	number  uint64

	mu     sync.Mutex
	deaf   bool  // grants are not read
	mute   error // what Send fails with
	grants []*leasepb.Grant
	recvs  int

	ended chan struct{}
	err   error // how the handler ended
	took  time.Duration
}

func (c *call) Context() context.Context { return c.ctx }

func (c *call) Recv() (*leasepb.Report, error) {
	c.mu.Lock()
	c.recvs++
	c.mu.Unlock()
	select {
	case r, open := <-c.reports:
		if !open {
			return nil, io.EOF
		}
		return r, nil
	case err := <-c.broken:
		return nil, err
	case <-c.ctx.Done():
		time.Sleep(c.linger)
		return nil, c.ctx.Err()
	}
}

func (c *call) Send(g *leasepb.Grant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mute != nil {
		return c.mute
	}
	if c.deaf {
		c.mu.Unlock()
		<-c.ctx.Done()
		c.mu.Lock()
		return c.ctx.Err()
	}
	c.grants = append(c.grants, g)
	return nil
}

// received is what the instance was sent.
func (c *call) received() []*leasepb.Grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.grants
}

// dial opens a stream, after prepare.
func (s *shard) dial(t *testing.T, prepare ...func(*call)) *call {
	ctx, cancel := context.WithCancel(t.Context())
	c := &call{ctx: ctx, hangUp: cancel, reports: make(chan *leasepb.Report), broken: make(chan error), ended: make(chan struct{})}
	for _, f := range prepare {
		f(c)
	}
	begun := time.Now()
	go func() {
		c.err = s.hold(c)
		c.took = time.Since(begun)
		c.hangUp()
		close(c.ended)
	}()
	t.Cleanup(func() { c.hangUp(); <-c.ended })
	return c
}

// report sends a report, unless the stream has ended.
func (c *call) report(instance string, session uint64, demands ...*leasepb.Demand) {
	c.number++
	m := &leasepb.Report{Instance: instance, Session: session, Version: 1, Number: c.number, Stamp: int64(c.number) * 1e9, Demands: demands}
	select {
	case c.reports <- m:
	case <-c.ended:
	}
	synctest.Wait()
}

// over says whether the stream has ended.
func (c *call) over() bool {
	synctest.Wait()
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// wantEnd waits for the end of a stream and says how it should be.
func (c *call) wantEnd(t *testing.T, code codes.Code, text string) {
	t.Helper()
	<-c.ended
	if status.Code(c.err) != code || code != codes.OK && !strings.Contains(c.err.Error(), text) {
		t.Errorf("it ends with %v, want %v with %q", c.err, code, text)
	}
	for _, g := range c.received() {
		if duplicate := g.GetStatus() == leasepb.Status_STATUS_DUPLICATE_INSTANCE; duplicate != (code == codes.AlreadyExists) {
			t.Errorf("it ends with %v and was sent %v", code, g)
		}
	}
}

// lender is a service that runs until stop.
type lender struct {
	*shard
	stop func()
}

// lend runs a service in a bubble, with the defaults.
func lend(t *testing.T, change ...func(*Options)) lender {
	o := Options{Limits: limits(t, config), State: State{Epoch: 5, Key: make([]byte, 32)}, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&o)
	}
	return live(t, newShard(o))
}

// live runs a service until stop.
func live(t *testing.T, s *shard) lender {
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.run(ctx); close(ended) }()
	c := lender{s, sync.OnceFunc(func() { cancel(); <-ended })}
	t.Cleanup(c.stop)
	return c
}

// An instance that opens a stream has ten seconds to name itself, and not a nanosecond more.
func TestFirstReportInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		in, late := s.dial(t), s.dial(t)
		time.Sleep(10*time.Second - 1)
		in.report("in", 1)
		if late.over() {
			t.Fatalf("it ended after %v: %v", late.took, late.err)
		}
		late.wantEnd(t, codes.DeadlineExceeded, "no report came within 10s")
		if late.took != 10*time.Second || len(late.received()) > 0 {
			t.Errorf("it ended after %v, and was told %v", late.took, late.received())
		}
		time.Sleep(time.Second)
		if in.over() || len(in.received()) == 0 {
			t.Errorf("the one that reported ended with %v", in.err)
		}
	})
}

// An instance that is silent for six leases, or does not read a grant for ten seconds, has no
// stream any more within a second; one that reports and reads goes on.
func TestStreamsOfNoUseEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		time.Sleep(300 * time.Millisecond)
		live, silent, deaf := s.dial(t), s.dial(t), s.dial(t, func(c *call) { c.deaf = true })
		silent.report("silent", 1, demand(1, "shared", 10))
		for range 100 {
			live.report("live", 1, demand(1, "shared", 10))
			deaf.report("deaf", 1, demand(1, "shared", 10))
			time.Sleep(time.Second)
		}
		silent.wantEnd(t, codes.DeadlineExceeded, "not reported for several leases")
		if least := 6 * lease.DefaultLease; silent.took <= least || silent.took > least+time.Second {
			t.Errorf("the silent one ended after %v", silent.took)
		}
		deaf.wantEnd(t, codes.ResourceExhausted, "does not read")
		if deaf.took <= 10*time.Second || deaf.took > 11*time.Second {
			t.Errorf("the one that does not read ended after %v", deaf.took)
		}
		if live.over() {
			t.Errorf("the one that reports and reads ended with %v", live.err)
		}
	})
}

// The status says to the instance how its stream ended: what broke, that the end was good, or that the
// service goes. Nobody but a duplicate is called one.
func TestHowStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t, func(o *Options) { o.maxStreams = 4 })
		good, broken, mute, cut := s.dial(t), s.dial(t), s.dial(t, func(c *call) { c.mute = status.Error(codes.Internal, "no way") }), s.dial(t)
		for i, c := range []*call{good, broken, mute, cut} {
			c.report(fmt.Sprint(i), 1, demand(1, "shared", 1))
		}
		close(good.reports)
		good.wantEnd(t, codes.OK, "")
		broken.broken <- status.Error(codes.ResourceExhausted, "too large")
		broken.wantEnd(t, codes.ResourceExhausted, "too large")
		mute.wantEnd(t, codes.Internal, "no way")
		cut.hangUp()
		cut.wantEnd(t, codes.Unavailable, "")
		synctest.Wait()
		// All four have made room, and no more than four have it.
		for i := range 5 {
			c := s.dial(t)
			if c.over() != (i == 4) {
				t.Errorf("stream %d of 4: ended %v with %v", i+1, c.over(), c.err)
			}
			if i == 4 {
				c.wantEnd(t, codes.ResourceExhausted, "4 instances are served")
			}
		}
		time.Sleep(time.Second)
		if f := s.figures.Load(); f.Streams != 4 || f.StreamsRefused != 1 || f.Panics != 0 {
			t.Errorf("%+v", f)
		}
	})
}

// Another run of an instance is refused for as long as the one that has the name may hold a
// lease, and then replaces it; of the same run the newest stream counts.
func TestWhoHasTheName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		first := s.dial(t)
		first.report("a", 1, demand(1, "shared", 10))
		time.Sleep(lease.DefaultLease - 1)
		early := s.dial(t)
		early.report("a", 2)
		early.wantEnd(t, codes.AlreadyExists, "name of its own")
		if g := early.received(); len(g) != 1 || g[0].GetEpoch() != 5 {
			t.Errorf("the duplicate was told %v", g)
		}
		time.Sleep(1)
		next := s.dial(t)
		next.report("a", 2, demand(1, "shared", 10))
		first.wantEnd(t, codes.Aborted, "newer stream")
		again := s.dial(t, func(c *call) { c.number = next.number })
		again.report("a", 2, demand(1, "shared", 10))
		next.wantEnd(t, codes.Aborted, "newer stream")
		// The ends of the older streams are not taken for that of the newest.
		time.Sleep(time.Second)
		before := len(again.received())
		again.report("a", 2)
		if again.over() || len(again.received()) == before {
			t.Errorf("the newest stream is sent nothing: %v", again.err)
		}
		third := s.dial(t)
		third.report("a", 3)
		third.wantEnd(t, codes.AlreadyExists, "name of its own")
		// Without a stream the name is free at once.
		again.hangUp()
		<-again.ended
		synctest.Wait()
		fourth := s.dial(t)
		if fourth.report("a", 4); fourth.over() || len(fourth.received()) == 0 {
			t.Errorf("the name is not free: %v", fourth.err)
		}
	})
}

// What an instance has decided is known for two leases after its stream has ended, so that
// one that comes back goes on, and no longer.
func TestInstancesAreForgotten(t *testing.T) {
	for _, away := range []time.Duration{2*lease.DefaultLease - 10*time.Millisecond, 2*lease.DefaultLease + time.Second + 10*time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := lend(t)
			decided := func() (sum uint64) {
				figures, _, ok := s.allInstances(t.Context())
				if !ok {
					t.Fatal("it does not run")
				}
				for _, f := range figures {
					sum += f.Admitted
				}
				return sum
			}
			use := func(number uint64) *call {
				c := s.dial(t)
				c.reports <- &leasepb.Report{Instance: "a", Session: 1, Number: number, Stamp: int64(number), Usage: []*leasepb.Usage{{Limit: "shared", Admitted: 7}}}
				synctest.Wait()
				return c
			}
			c := use(1)
			c.hangUp()
			time.Sleep(away)
			known := away < 2*lease.DefaultLease
			if got := decided(); got != map[bool]uint64{true: 7}[known] {
				t.Errorf("%d decided, %v after the stream has ended", got, away)
			}
			use(2)
			if got := decided(); got != map[bool]uint64{true: 14, false: 7}[known] {
				t.Errorf("%d decided, back after %v", got, away)
			}
			if usage := s.usage(); len(usage) != 1 || usage[0].Admitted != 14 {
				t.Errorf("in all %+v", usage)
			}
		})
	}
}

// A handle that was closed makes room for another one: only those that are open count.
func TestOpenHandlesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		c := s.dial(t)
		all := make([]*leasepb.Demand, maxHandles)
		for i := range all {
			all[i] = demand(uint32(i), "nobody", 1)
		}
		c.report("a", 1, all...)
		closed := demand(7, "nobody", 1)
		closed.Closed = true
		c.report("a", 1, closed, demand(maxHandles, "nobody", 1))
		if c.over() {
			t.Fatalf("at %d handles it ends with %v", maxHandles, c.err)
		}
		c.report("a", 1, demand(maxHandles+1, "nobody", 1))
		c.wantEnd(t, codes.ResourceExhausted, "more than 10000 open handles")
	})
}

// run returns when all that it and its streams began has ended, and begins nothing then.
func TestRunEndsLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		begun := time.Now()
		served, unknown := s.dial(t, func(c *call) { c.linger = 300 * time.Millisecond }), s.dial(t)
		served.report("a", 1, demand(1, "shared", 1))
		s.stop()
		if took := time.Since(begun); took != 300*time.Millisecond {
			t.Errorf("Run returns after %v, a stream is read for 300 ms more", took)
		}
		late := s.dial(t)
		for _, c := range []*call{served, unknown, late} {
			c.wantEnd(t, codes.Unavailable, "the coordinator goes")
		}
		synctest.Wait()
		if late.recvs != 0 {
			t.Error("a stream that came after the end is read")
		}
		if p, err := s.pipe(t.Context(), true); status.Code(err) != codes.Unavailable {
			t.Errorf("a pipe after the end: %v, %v", p, err)
		}
		if s.inLoop(t.Context(), func(limit.Time) {}) {
			t.Error("something ran in a loop that has ended")
		}
	})
}

func pipeOf(t *testing.T, s lender) *Pipe {
	t.Helper()
	p, err := s.pipe(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A fault that stays takes no processor: the loop pauses after each panic.
func TestFaultsThatStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(Options{Limits: limits(t, config), Logger: slog.New(slog.DiscardHandler)})
		faults := 0
		s.step = func(limit.Time, lease.Event) []lease.Grant { faults++; panic("always") }
		c := live(t, s)
		time.Sleep(10 * time.Second)
		c.stop()
		if faults < 100 || faults > int(10*time.Second/breath)+2 {
			t.Errorf("%d faults in 10 s", faults)
		}
		if got := s.figures.Load().Panics; got < 100 || got > uint64(faults) {
			t.Errorf("%d faults are counted of %d", got, faults)
		}
	})
}

// What has come while the loop was busy is served in one round, before a tick that was due
// meanwhile, and however long each report takes.
func TestOneRoundServesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShard(Options{Limits: limits(t, config), State: State{Epoch: 5}, Logger: slog.New(slog.DiscardHandler)})
		whole := s.step
		var events []string
		var rounds []uint64 // that had been run after each event
		s.step = func(now limit.Time, e lease.Event) []lease.Grant {
			events = append(events, fmt.Sprintf("%T", e))
			if _, report := e.(*lease.Report); report {
				time.Sleep(100 * time.Millisecond) // of a report about thousands of limits
			}
			defer func() { rounds = append(rounds, s.loop.coordinator.Stats().Rounds) }()
			return whole(now, e)
		}
		c := live(t, s)
		var pipes []*Pipe
		for range 20 {
			pipes = append(pipes, pipeOf(t, c))
		}
		held := make(chan struct{})
		go s.inLoop(t.Context(), func(limit.Time) { <-held; events, rounds = nil, nil })
		synctest.Wait()
		for i, p := range pipes {
			go func() {
				_ = p.Send(&lease.Report{
					Member: lease.Member{Instance: fmt.Sprint(i), Session: 1}, Number: 1,
					Demands: []lease.Demand{{Handle: 1, Resource: lease.ResourceID{Limit: "shared"}, Rate: fixed.Token}},
				})
			}()
		}
		time.Sleep(time.Second) // a tick is due
		close(held)
		time.Sleep(10 * time.Second)
		c.stop()
		if len(events) < 20 {
			t.Fatalf("%d events", len(events))
		}
		for _, e := range events[:20] {
			if e != "*lease.Report" {
				t.Errorf("%s between the reports", e)
			}
		}
		if before, after := rounds[0], rounds[19]; after > before {
			t.Errorf("%d rounds between the reports", after-before)
		}
		if rounds[len(rounds)-1] == rounds[19] {
			t.Error("no round after the reports")
		}
	})
}

// Who goes while the loop is busy and its queue is full waits for neither: its stream makes
// room, and its report is not taken.
func TestWhoGoesFromAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		ctx, cancel := context.WithCancel(t.Context())
		p, err := s.pipe(ctx, true)
		if err != nil {
			t.Fatal(err)
		}
		held := make(chan struct{})
		go s.inLoop(t.Context(), func(limit.Time) { <-held })
		synctest.Wait()
		for len(s.events) < cap(s.events) {
			s.events <- event{snapshot: func(limit.Time) {}}
		}
		c := s.dial(t)
		c.report("a", 1, demand(1, "shared", 1))
		sent := make(chan error, 1)
		go func() { sent <- p.Send(&lease.Report{Member: lease.Member{Instance: "b", Session: 1}, Number: 1}) }()
		synctest.Wait()
		c.hangUp()
		cancel()
		c.wantEnd(t, codes.Unavailable, "")
		synctest.Wait()
		select {
		case err := <-sent:
			if err == nil {
				t.Error("the report is taken")
			}
		default:
			t.Error("who goes waits for the loop")
		}
		close(held)
		time.Sleep(2 * time.Second)
		if f := s.figures.Load(); f.Streams != 0 || f.Instances != 0 {
			t.Errorf("%+v", f)
		}
	})
}
