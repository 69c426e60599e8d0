package lending

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// parentWire is a stream to a parent that answers as a test says.
type parentWire struct {
	ctx     context.Context
	reports chan *lease.Report
	grants  chan *lease.Grant
	err     error // what Receive fails with when grants are over
}

func (w *parentWire) Send(r *lease.Report) error {
	select {
	case w.reports <- r:
	default:
	}
	return nil
}

func (w *parentWire) Receive() (*lease.Grant, error) {
	select {
	case g, open := <-w.grants:
		if !open {
			return nil, w.err
		}
		return g, nil
	case <-w.ctx.Done():
		return nil, w.ctx.Err()
	}
}

func (w *parentWire) CloseSend() error { return nil }
func (w *parentWire) Close()           {}

// site is a link whose loop steps at once, and the addresses that it has connected to.
type site struct {
	*parentLink
	origin time.Time
	lends  atomic.Bool
	loop   sync.Mutex

	mu   sync.Mutex // of the rest
	to   []string
	text strings.Builder
}

func (s *site) now() limit.Time { return limit.Time(time.Since(s.origin) + time.Second) }

// called are the addresses that it has opened streams to.
func (s *site) called() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.to)
}

func (s *site) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(line)
}

// log is what operators read.
func (s *site) log() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func (s *site) post(_ context.Context, e lease.Event) bool {
	s.loop.Lock()
	defer s.loop.Unlock()
	s.take(e, func() { s.site.Step(s.now(), e) })
	return true
}

// run links a site to parents that answer as answer says, in virtual time. f is called beside run, which
// ends with it.
func run(t *testing.T, answer func(address string, w *parentWire) error, f func(s *site), parents ...string) {
	synctest.Test(t, func(t *testing.T) {
		s := &site{origin: time.Now()}
		s.lends.Store(true)
		p := &Parent{Addresses: parents, Site: "eu", Connect: func(ctx context.Context, address string) (ParentStream, error) {
			s.mu.Lock()
			s.to = append(s.to, address)
			s.mu.Unlock()
			w := &parentWire{ctx: ctx, reports: make(chan *lease.Report, 10), grants: make(chan *lease.Grant, 10), err: io.EOF}
			if err := answer(address, w); err != nil {
				return nil, err
			}
			return w, nil
		}}
		s.parentLink = newParentLink(linkOptions{
			parent: p, lends: s.lends.Load, post: s.post, logger: slog.New(slog.NewTextHandler(s, nil)),
			translate: func(id lease.ResourceID) (lease.ResourceID, []string, bool) { return id, nil, true },
		}, coordinator.Options{
			Epoch: 1, Lease: lease.DefaultLease, Refresh: lease.DefaultRefresh, Recovery: time.Hour,
			Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return lease.Terms{}, lease.StatusUnknownLimit },
		}, s.now())
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { s.run(ctx) })
		f(s)
		cancel()
		running.Wait()
	})
}

// TestLinkFollowsItsParent: a parent that does not coordinate sends the site on, a few times in a row; then, and
// when nobody answers, the next of its addresses is tried.
func TestLinkFollowsItsParent(t *testing.T) {
	run(t, func(address string, w *parentWire) error {
		switch address {
		case "a":
			return errors.New("refused")
		case "b":
			w.grants <- &lease.Grant{NotMaster: true, Master: "c"}
		default:
			w.grants <- &lease.Grant{NotMaster: true, Master: "d"}
		}
		return nil
	}, func(s *site) {
		time.Sleep(firstParentPause) // before the pause after it, which is twice as long
		synctest.Wait()
		if called := s.called(); !slices.Equal(called, []string{"a", "b", "c", "d", "d", "d", "d"}) {
			t.Errorf("it called %v", called)
		}
		if err := s.err(); err == nil || !errors.Is(err, errNoMaster) {
			t.Errorf("the problem is %v", err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := strings.Count(s.log(), "refused"); n < 2 {
			t.Errorf("the address that refused was tried again %d times: %s", n, s.log())
		}
	}, "a", "b")
}

// TestLinkOfADuplicateSite: another server under the name of this site is a problem that says what to do, once in the
// log however often it is met.
func TestLinkOfADuplicateSite(t *testing.T) {
	for name, answer := range map[string]func(w *parentWire){
		"by a grant":  func(w *parentWire) { w.grants <- &lease.Grant{Status: lease.StatusDuplicate} },
		"by a status": func(w *parentWire) { w.err = status.Error(codes.AlreadyExists, "taken"); close(w.grants) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(_ string, w *parentWire) error { answer(w); return nil }, func(s *site) {
				time.Sleep(time.Minute)
				synctest.Wait()
				if err := s.err(); err == nil || !strings.Contains(err.Error(), `another server reports to the parent as site "eu"`) {
					t.Errorf("the problem is %v", err)
				}
				if n := strings.Count(s.log(), "level=WARN"); n != 1 || len(s.called()) < 5 {
					t.Errorf("%d warnings of %d streams: %s", n, len(s.called()), s.log())
				}
			}, "a")
		})
	}
}

// TestLinkCarriesBothWays: reports reach the parent and its grants the loop, which ends a problem; what goes is given
// back at the end.
func TestLinkCarriesBothWays(t *testing.T) {
	streams := make(chan *parentWire, 1)
	var accept atomic.Bool
	run(t, func(_ string, w *parentWire) error {
		if !accept.Load() {
			return errors.New("refused")
		}
		streams <- w
		return nil
	}, func(s *site) {
		synctest.Wait()
		if err := s.err(); err == nil || err.Error() != "refused" {
			t.Errorf("the problem is %v", err)
		}
		accept.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		open := <-streams
		r := <-open.reports
		if r.Instance != "eu" || r.Session == 0 {
			t.Errorf("the report is of %+v", r.Member)
		}
		open.grants <- &lease.Grant{Epoch: 1, Echo: r.Stamp, Lease: lease.DefaultLease, Refresh: lease.DefaultRefresh}
		synctest.Wait()
		if err := s.err(); err != nil || !s.supplied(s.now()) || !strings.Contains(s.log(), "lends to this site again") {
			t.Errorf("after a grant: %v, supplied %v: %s", err, s.supplied(s.now()), s.log())
		}
		if now := s.now().Add(time.Hour); s.supplied(now) {
			t.Error("it is supplied when its lease is over")
		}
		var reporting sync.WaitGroup
		reporting.Add(1)
		begun := time.Now()
		s.leave(s.now(), &reporting)
		if took := time.Since(begun); took != leaveWithin {
			t.Errorf("it waits %v for a parent that does not end the stream", took)
		}
		reporting.Done()
		synctest.Wait()
		var last *lease.Report
		for len(open.reports) > 0 {
			last = <-open.reports
		}
		if last == nil || !last.Leaving {
			t.Errorf("the last report is %+v", last)
		}
	}, "a")
}

// TestLinkIsOfWhoLends: of the members of a site the one that lends has the stream. One that does not any more
// ends it at the next grant, and opens another when it lends again.
func TestLinkIsOfWhoLends(t *testing.T) {
	streams := make(chan *parentWire, 2)
	run(t, func(_ string, w *parentWire) error { streams <- w; return nil }, func(s *site) {
		synctest.Wait()
		if err := s.err(); err == nil || !strings.Contains(err.Error(), "has not answered yet") || s.supplied(s.now()) {
			t.Errorf("before the first answer the problem is %v", err)
		}
		s.lends.Store(false)
		(<-streams).grants <- &lease.Grant{Epoch: 1}
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(s.called()) != 1 || s.reports.Load() != nil {
			t.Errorf("it called %v and does not lend", s.called())
		}
		if err := s.err(); err != nil {
			t.Errorf("what does not lend has the problem %v", err)
		}
		s.lends.Store(true)
		time.Sleep(time.Second)
		synctest.Wait()
		if len(s.called()) != 2 || s.reports.Load() == nil {
			t.Errorf("it called %v and lends again", s.called())
		}
	}, "a")
}

// TestLinkTriesForAsLongAsItTakes: the pauses between tries grow, up to one that a parent which comes back is found after.
func TestLinkTriesForAsLongAsItTakes(t *testing.T) {
	run(t, func(string, *parentWire) error { return errors.New("refused") }, func(s *site) {
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		before := len(s.called())
		time.Sleep(10 * longestParentPause)
		synctest.Wait()
		if tries := len(s.called()) - before; tries < 10 || tries > 20 {
			t.Errorf("%d tries in ten of the longest pauses", tries)
		}
	}, "a")
}
