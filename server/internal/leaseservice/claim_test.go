package leaseservice

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/leasestate"
)

// place is where services agree, as Redis does it.
type place struct {
	sync.Mutex
	holder string
	clean  bool
	until  time.Time
	down   bool
	mute   map[string]int  // whose next questions are taken, and not answered
	cut    map[string]bool // who does not reach it
	hangs  bool            // a caller waits until its context ends
	slow   time.Duration   // how long each call takes, also of a caller that has gone
	asking int             // questions under way
	given  []bool          // of each time that the claim was given up, whether it was clean
}

func (p *place) Claim(ctx context.Context, id, _ string, lasts time.Duration) (string, bool, error) {
	p.Lock()
	defer p.Unlock()
	p.asking++
	defer func() { p.asking-- }()
	if hangs, slow := p.hangs, p.slow; hangs || slow > 0 {
		p.Unlock()
		if time.Sleep(slow); hangs {
			<-ctx.Done()
		}
		p.Lock()
	}
	if p.hangs {
		return "", false, context.DeadlineExceeded
	}
	if p.down || p.cut[id] {
		return "", false, errors.New("no answer")
	}
	was, alive := p.holder, time.Now().Before(p.until)
	if was != "" && was != id && alive {
		return was, false, nil
	}
	lost := !(was == id && alive || was == "" && p.clean)
	p.holder, p.until, p.clean = id, time.Now().Add(lasts), false
	if p.mute[id] > 0 {
		p.mute[id]--
		return "", false, errors.New("no answer")
	}
	return "", lost, nil
}

// held is who has it.
func (p *place) held() string {
	p.Lock()
	defer p.Unlock()
	return p.holder
}

func (p *place) set(f func()) {
	p.Lock()
	defer p.Unlock()
	f()
}

func (p *place) Unclaim(_ context.Context, id string, clean bool) error {
	p.Lock()
	defer p.Unlock()
	if p.down || p.cut[id] {
		return errors.New("no answer")
	}
	p.given = append(p.given, clean)
	if p.holder == id {
		p.holder, p.clean = "", clean
	}
	return nil
}

// claimant is a service that runs beside others.
type claimant struct {
	*Service
	stop func()
}

func run(t *testing.T, p *place, key byte, change ...func(*Options)) claimant {
	o := Options{Limits: limits(t, config), State: leasestate.State{Epoch: leasestate.Above(0), Key: []byte{key}}, Claim: p, Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&o)
	}
	s := New(o)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	c := claimant{s, sync.OnceFunc(func() { cancel(); <-ended })}
	t.Cleanup(c.stop)
	return c
}

// may says whether a service lends what may be in use elsewhere.
func (c claimant) may() bool { return c.lends(c.now()) && c.Recovering() == 0 }

// TestOneClaimantLends: whichever service comes, goes, is cut off from Redis or has it come back
// empty, what one service has lent has ended before another lends; where Redis is away for
// all the one that lends goes on.
func TestOneClaimantLends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{cut: map[string]bool{}}
		all := []claimant{run(t, p, 1), run(t, p, 2), run(t, p, 3)}
		last, by := time.Time{}, -1
		pass := func(d time.Duration) {
			t.Helper()
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				synctest.Wait()
				for i, c := range all {
					if !c.may() {
						continue
					}
					if by >= 0 && by != i && time.Since(last) < lease.DefaultLease {
						t.Fatalf("%d lends %v after %d did", i, time.Since(last), by)
					}
					last, by = time.Now(), i
				}
			}
		}
		lends := func(want bool, when string) {
			t.Helper()
			if got := time.Since(last) < time.Second; got != want {
				t.Errorf("%s: lent %v", when, got)
			}
		}
		pass(20 * time.Second)
		lends(true, "at the start")
		p.set(func() { p.down = true })
		former := by
		pass(time.Minute)
		lends(true, "Redis is away")
		p.set(func() { p.down, p.holder, p.clean = false, "", false }) // it comes back empty
		pass(time.Second)
		if by != former {
			t.Errorf("%d lends in place of %d", by, former)
		}
		pass(20 * time.Second)
		lends(true, "Redis is back")
		for range 10 { // Redis loses its memory, and somebody else asks first
			former := all[by].claim.id
			p.set(func() { p.holder, p.clean, p.cut[former] = "", false, true })
			pass(claimEvery)
			p.set(func() { delete(p.cut, former) })
			pass(20 * time.Second)
			lends(true, "after a claim was lost")
		}
		former = by
		all[former].stop()
		all[former].Service.claim.until.Store(0)
		pass(20 * time.Second)
		lends(true, "after the first has ended")
		if by == former {
			t.Error("one that has ended lends")
		}
		// Started again with its state it is the same one, and waits for nobody.
		former = by
		id := all[by].claim.id
		p.set(func() { p.cut[id] = true })
		all[by].stop()
		p.set(func() { delete(p.cut, id) })
		all[by].Service.claim.until.Store(0)
		all[by] = run(t, p, byte(by+1))
		pass(time.Second)
		if by != former || time.Since(last) > 100*time.Millisecond {
			t.Errorf("%d lends, the last %v ago; %d was started again", by, time.Since(last), former)
		}
	})
}

// TestPausedClaimant: a service that has not asked for as long as a claim lasts lends
// nothing before it has asked again.
func TestPausedClaimant(t *testing.T) {
	r := start(t, Options{Claim: &place{clean: true}})
	if !r.awaitClaim(t.Context()) {
		t.Fatal("it ended")
	}
	p, err := r.Pipe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	r.within(t.Context(), func(now limit.Time) {
		r.claim.until.Store(int64(now)) // as if nobody had run since
		r.take(now, event{stream: p.stream, report: &lease.Report{Member: lease.Member{Instance: "i", Session: 1}, Number: 1}})
	})
	if g, err := p.Receive(); status.Code(err) != codes.Unavailable {
		t.Errorf("it answers %v, %v", g, err)
	}
	if p, err = r.Pipe(t.Context()); err != nil || !r.lends(r.now()) {
		t.Fatalf("it has asked again: %v", err)
	}
	if err := p.CloseSend(); err != nil {
		t.Error(err)
	}
}
