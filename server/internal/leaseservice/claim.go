package leaseservice

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/leasestate"
)

// Claim is where services that could lend the same limits agree on which of them does.
type Claim interface {
	// Claim takes the claim for so long, or renews it. holder is who else has it; "" =
	// id has it. lost says that nothing is known of who had it before. An error says
	// that nobody answers.
	Claim(ctx context.Context, id, about string, lasts time.Duration) (holder string, lost bool, err error)
	// Unclaim gives it up. clean says that nothing is lent.
	Unclaim(ctx context.Context, id string, clean bool) error
}

const (
	// claimLasts is how long a claim outlives its last renewal. Not longer: nobody
	// lends for that long after a crash, and then for the time of recovery. Not
	// shorter: a pause of the network, or of Redis, should not change coordinators.
	claimLasts = 3 * time.Second
	// claimEvery is how often it is renewed: two renewals may be lost.
	claimEvery = claimLasts / 3
	// claimSoon is how often it is tried while nobody answers who was never asked. Not
	// longer: a start waits for it.
	claimSoon = 100 * time.Millisecond
)

// claim is what a service knows of being the only one.
type claim struct {
	id, about string
	// until is until when this service may lend without asking again, as a limit.Time;
	// 0 = it may not.
	until atomic.Int64
	// holder is who else lends; nil = nobody is known.
	holder atomic.Pointer[string]

	mu   sync.Mutex
	open chan struct{} // closed when it may lend; replaced when it may not any more

	// The rest is of the goroutine that claims.
	held     bool
	found    bool       // it was taken after it was lost, and not renewed yet
	unsure   bool       // it may have been taken without an answer
	answered limit.Time // when it was last held for sure
	logged   string     // the holder that was logged last
}

// init names the claim. A service that is started again with its state is the same one,
// so that it lends again at once after a crash.
func (c *claim) init(o *Options) {
	sum := sha256.Sum256(append([]byte("stint coordinator "), o.State.Key...))
	host, _ := os.Hostname() // "" where it cannot be read
	c.id, c.about = hex.EncodeToString(sum[:12]), fmt.Sprintf("process %d on %s", os.Getpid(), cmp.Or(host, "a host without a name"))
	c.open = make(chan struct{})
}

// lends says whether this service may lend at now.
func (s *Service) lends(now limit.Time) bool {
	if s.membership != nil {
		return s.membership.election.Leads(time.Now())
	}
	return s.opts.Claim == nil || int64(now) < s.claim.until.Load() || !s.Leasing()
}

// Asking says whether it is not known yet whether this service may lend.
func (s *Service) Asking() bool {
	if s.membership != nil {
		_, _, known := s.Leader()
		if known {
			s.membership.known.Store(true)
		}
		// Later a backend that is gone makes all members alike, and a load balancer must not take
		// all of them away.
		return !s.membership.known.Load()
	}
	return !s.lends(s.now()) && s.Elsewhere() == ""
}

// Elsewhere says who else lends the limits; "" = nobody is known.
func (s *Service) Elsewhere() string {
	if holder := s.claim.holder.Load(); holder != nil && s.Leasing() {
		return *holder
	}
	return ""
}

// notHere is what instances are answered while this service does not lend.
func (s *Service) notHere() error {
	if s.membership != nil {
		return errNotLeader
	}
	if holder := s.Elsewhere(); holder != "" {
		return status.Errorf(codes.FailedPrecondition, "this service does not lend: %s lends the limits of this Redis and prefix: give the address of that one", holder)
	}
	return status.Error(codes.Unavailable, "this service does not lend yet: Redis has not told whether another one does")
}

// awaitClaim waits until this service may lend. It reports false when ctx ended first, or
// the service.
func (s *Service) awaitClaim(ctx context.Context) bool {
	for !s.lends(s.now()) {
		s.claim.mu.Lock()
		open := s.claim.open
		s.claim.mu.Unlock()
		select {
		case <-open:
			if !s.lends(s.now()) {
				// It was paused for longer than a claim lasts, and asks again now.
				select {
				case <-time.After(claimSoon):
				case <-ctx.Done():
				}
			}
		case <-ctx.Done():
		case <-s.ended:
			return false
		}
		if ctx.Err() != nil {
			return false
		}
	}
	return true
}

// beginClaiming claims until ctx ends.
func (s *Service) beginClaiming(ctx context.Context) *sync.WaitGroup {
	var wg sync.WaitGroup
	if s.opts.Claim == nil {
		return &wg
	}
	wg.Go(func() {
		for {
			pause := time.NewTimer(s.claimOnce(ctx))
			select {
			case <-ctx.Done():
				pause.Stop()
				return
			case <-pause.C:
			}
		}
	})
	return &wg
}

// claimOnce asks for the claim, and returns when to do so again.
//
// A holder that gets no answer goes on: leases do not need Redis, and its loss must not
// end them. It goes on only while it keeps asking, so one that was paused lends nothing
// before it knows whether another has the claim.
func (s *Service) claimOnce(ctx context.Context) time.Duration {
	c := &s.claim
	if !s.Leasing() {
		if c.held {
			s.within(ctx, func(limit.Time) { s.shut() })
			s.unclaim(false)
		}
		c.holder.Store(nil)
		return claimSoon
	}
	asked := s.now()
	asking, cancel := context.WithTimeout(ctx, claimEvery)
	holder, lost, err := s.opts.Claim.Claim(asking, c.id, c.about, claimLasts)
	cancel()
	switch {
	case ctx.Err() != nil:
	case err != nil && !c.held:
		c.unsure = true
		return claimSoon
	case err != nil:
		c.until.Store(int64(asked.Add(claimLasts)))
		return claimSoon // Redis may come back empty, and then the claim is for who asks first
	case holder != "":
		c.holder.Store(&holder)
		c.found, c.unsure = false, false
		if c.held {
			c.held = false
			s.within(ctx, func(limit.Time) { s.shut() })
		}
		if c.logged != holder {
			c.logged = holder
			s.opts.Logger.Error("another service lends the limits that are shared by leases, of which there may be exactly one: this one lends nothing, refuses what needs a lease, and takes over when the other one ends; point clients at that one, or give each service a prefix of its own in the URL of its store",
				"coordinator", holder)
		}
	case (lost || c.unsure) && !c.held:
		c.unsure = false
		// Where Redis has lost its memory the holder is alive, and gives way when it asks
		// next. What it lends until then counts from the next renewal on.
		c.found = true
		return claimEvery + claimEvery/2
	default:
		s.claimed(ctx, asked, lost || c.found)
		c.found, c.unsure = false, false
	}
	return claimEvery
}

// claimed takes note that the claim is this service's. What another has lent in the
// meantime is learnt first. One that took a lost claim learns for a lease itself, and so has
// lent nothing if this one had the claim less than a lease ago.
func (s *Service) claimed(ctx context.Context, asked limit.Time, lost bool) {
	c := &s.claim
	waited := c.holder.Swap(nil) != nil
	sure := c.held && asked-c.answered < limit.Time(s.opts.Lease)
	learn := waited || lost && !sure
	if learn || !c.held {
		s.within(ctx, func(now limit.Time) {
			if learn {
				s.takeOver(now)
			}
			c.until.Store(int64(asked.Add(claimLasts)))
			c.mu.Lock()
			defer c.mu.Unlock()
			select {
			case <-c.open: // it was this service's already
			default:
				close(c.open)
			}
		})
	} else {
		c.until.Store(int64(asked.Add(claimLasts)))
	}
	if ctx.Err() != nil {
		return // it may not have been done
	}
	if waited {
		c.logged = ""
		s.opts.Logger.Warn("this service takes over: it lends the limits that are shared by leases once those of the former coordinator must have ended", "for", s.Recovering().Round(time.Millisecond))
	}
	c.held, c.answered = true, asked
}

// within runs f in the loop, which owns the coordinator, and waits for it.
func (s *Service) within(ctx context.Context, f func(now limit.Time)) {
	done := make(chan struct{})
	if !s.post(ctx, event{snapshot: func(now limit.Time) { defer close(done); f(now) }}) {
		return
	}
	select {
	case <-done:
	case <-ctx.Done():
	case <-s.ended:
	}
}

// takeOver makes the coordinator learn what another one may have lent.
func (s *Service) takeOver(now limit.Time) {
	grants := s.step(now, coordinator.Takeover{})
	s.noteEpoch()
	if s.opts.Raise != nil {
		if err := s.opts.Raise(s.loop.epoch); err != nil {
			s.opts.Logger.Error("the epoch cannot be kept: leases of this coordinator cannot be claimed from the next one", "error", err)
		}
	}
	for i := range grants {
		s.send(&grants[i])
	}
}

// resume begins with the buckets as the former coordinator left them at its end in order, at which nothing
// was lent; they count as empty where that is not known. After a crash the coordinator counts them as empty itself.
func (s *Service) resume(st *leasestate.State) {
	if st.Former == 0 || st.Recovery > 0 || s.parent != nil {
		return
	}
	var used *coordinator.Used
	if r, err := coordinator.DecodeRecord(st.Last); err == nil && r.Used != nil {
		used = r.Used
		used.Later(st.Down)
	}
	s.step(s.now(), coordinator.Takeover{Epoch: st.Epoch, Former: st.Former, Used: used})
	s.noteEpoch()
}

// Last returns what a later start on the same host has to know of what is left. It is called when Run has
// reported that nothing is lent.
func (s *Service) Last() []byte { return s.lastRecord(s.now()) }

// shut ends lending: another service does it.
func (s *Service) shut() {
	s.claim.until.Store(0)
	s.claim.mu.Lock()
	s.claim.open = make(chan struct{})
	s.claim.mu.Unlock()
	s.loop.members.EndAll(s.notHere())
}

// unclaim gives the claim up, so that the next one need not wait for its end.
func (s *Service) unclaim(nothingLent bool) {
	c := &s.claim
	if s.opts.Claim == nil || !c.held {
		return
	}
	c.held = false
	ctx, cancel := context.WithTimeout(context.Background(), claimEvery)
	defer cancel()
	if err := s.opts.Claim.Unclaim(ctx, c.id, nothingLent); err != nil {
		s.opts.Logger.Warn("the claim to lend limits cannot be given up: the next service waits for its end", "for", claimLasts, "error", err)
	}
}
