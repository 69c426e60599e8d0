package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// script is a Transport that answers each try as it is scripted, and notes the tries.
type script struct {
	answer func(try int, address string) (*scene, error)
	begin  time.Time

	mu    sync.Mutex
	tries []attempt
}

type attempt struct {
	address string
	at      time.Duration
}

// scene is a stream that yields some grants and then ends with err, or with its context
// where that is nil.
type scene struct {
	grants []*lease.Grant
	err    error
	send   error
	ctx    context.Context

	slow   time.Duration // what Send takes
	mu     sync.Mutex
	sent   int
	within int // Send
	closed int
}

// Connect implements Transport.
func (s *script) Connect(ctx context.Context, address string) (Stream, error) {
	s.mu.Lock()
	n := len(s.tries)
	s.tries = append(s.tries, attempt{address, time.Since(s.begin)})
	s.mu.Unlock()
	stream, err := s.answer(n, address)
	if err != nil {
		return nil, err
	}
	stream.ctx = ctx
	return stream, nil
}

func (s *script) addresses() (all []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.tries {
		all = append(all, a.address)
	}
	return all
}

// Send implements Stream.
func (s *scene) Send(*lease.Report) error {
	s.mu.Lock()
	s.sent++
	s.within++
	s.mu.Unlock()
	time.Sleep(s.slow)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.within--
	return s.send
}

// CloseSend implements Stream.
func (s *scene) CloseSend() error { return nil }

// Receive implements Stream.
func (s *scene) Receive() (*lease.Grant, error) {
	if len(s.grants) > 0 {
		g := s.grants[0]
		s.grants = s.grants[1:]
		return g, nil
	}
	if s.err == nil {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	return nil, s.err
}

// Close implements Stream.
func (s *scene) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
}

// perform runs a client on a script for a while, in a bubble.
func perform(t *testing.T, d time.Duration, answer func(try int, address string) (*scene, error), during func(c *Client)) (s *script, log string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s = &script{answer: answer, begin: time.Now()}
		var out bytes.Buffer
		c, err := New(Options{Transport: s, Address: "a", Others: []string{"b", "c"}, Instance: "i", Logger: slog.New(slog.NewTextHandler(&out, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if c.Err() != nil || c.Connected() {
			t.Errorf("before the first try: %v, connected %v", c.Err(), c.Connected())
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		if during != nil {
			during(c)
		}
		time.Sleep(d - time.Since(s.begin))
		cancel()
		if err := <-ended; err != nil || c.Connected() {
			t.Errorf("Run: %v; connected %v", err, c.Connected())
		}
		if err := c.Run(t.Context()); err == nil {
			t.Error("it runs twice")
		}
		log = out.String()
	})
	return s, log
}

// TestSilentCoordinatorIsLeft: a stream that brings nothing for 2.5 s, from a coordinator that stands
// still with its connections open, is followed by one to another address, though it had answered.
func TestSilentCoordinatorIsLeft(t *testing.T) {
	s, log := perform(t, 4*time.Second, func(int, string) (*scene, error) {
		return &scene{grants: []*lease.Grant{{Epoch: 1}}}, nil
	}, nil)
	if got := s.addresses(); len(got) != 2 || got[0] != "a" || got[1] != "b" {
		t.Fatalf("tried %v, want a and then b", got)
	}
	if at := s.tries[1].at; at < silence || at > silence+firstPause {
		t.Errorf("the second try is at %v, want %v and a pause of %v at most", at, silence, firstPause)
	}
	if !strings.Contains(log, "has said nothing for 2.5s") {
		t.Errorf("the log does not say why:\n%s", log)
	}
}

// pauses checks the time between tries: each is at most what want says, and at least half.
func pauses(t *testing.T, tries []attempt, want func(i int) time.Duration) {
	t.Helper()
	for i := range tries[1:] {
		if got, most := tries[i+1].at-tries[i].at, want(i); got > most || got < most/2 {
			t.Errorf("pause %d is %v, want %v to %v", i, got, most/2, most)
		}
	}
}

var errGone = errors.New("gone")

// TestPausesGrow: where nobody answers the addresses are tried one after the other, after pauses that
// double up to the longest, Err says what the latest try met with, and the log says it once for each
// address.
func TestPausesGrow(t *testing.T) {
	growing := func(i int) time.Duration { return min(firstPause<<i, longestPause) }
	for name, answer := range map[string]func(int, string) (*scene, error){
		"refused":           func(int, string) (*scene, error) { return nil, errGone },
		"ends at once":      func(int, string) (*scene, error) { return &scene{err: errGone}, nil },
		"is not the master": func(int, string) (*scene, error) { return &scene{grants: []*lease.Grant{{NotMaster: true}}}, nil },
		"knows another of the name": func(int, string) (*scene, error) {
			return &scene{grants: []*lease.Grant{{Status: lease.StatusDuplicate}}}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, log := perform(t, 20*time.Second, answer, func(c *Client) {
				time.Sleep(time.Second)
				want := map[string]error{"is not the master": errNotMaster, "knows another of the name": ErrDuplicate}[name]
				if want == nil {
					want = errGone
				}
				if !errors.Is(c.Err(), want) || c.Connected() {
					t.Errorf("while nobody answers: %v, connected %v", c.Err(), c.Connected())
				}
			})
			for i, a := range s.tries {
				if want := []string{"a", "b", "c"}[i%3]; a.address != want {
					t.Fatalf("try %d is at %s, want %s", i, a.address, want)
				}
			}
			pauses(t, s.tries, growing)
			if n := strings.Count(log, "no connection"); n != 3 || len(s.tries) < 12 {
				t.Errorf("%d of %d tries are logged, want one for each address", n, len(s.tries))
			}
		})
	}
}

// TestWhoAnsweredIsTriedFirst: one that has answered is asked again when its stream ends,
// after a short pause each time.
func TestWhoAnsweredIsTriedFirst(t *testing.T) {
	s, _ := perform(t, 5*time.Second, func(try int, address string) (*scene, error) {
		if address != "b" {
			return nil, errGone
		}
		return &scene{grants: []*lease.Grant{{}}, err: errGone}, nil
	}, nil)
	for i, a := range s.tries[1:] {
		if a.address != "b" {
			t.Fatalf("try %d is at %s, want b", i+1, a.address)
		}
	}
	pauses(t, s.tries, func(int) time.Duration { return firstPause })
	if len(s.tries) < 100 {
		t.Errorf("%d tries in 5 s", len(s.tries))
	}
}

// TestSentOn: a coordinator that names another is left for it at once, at most maxRedirects
// times in a row; one that answers in between begins the count anew.
func TestSentOn(t *testing.T) {
	circle := func(_ int, address string) (*scene, error) {
		return &scene{grants: []*lease.Grant{{NotMaster: true, Master: map[string]string{"a": "x", "x": "a"}[address]}}}, nil
	}
	s, _ := perform(t, 10*time.Second, circle, func(c *Client) {
		time.Sleep(firstPause / 4)
		if len(c.addresses) != 3 {
			t.Errorf("addresses %v", c.addresses)
		}
	})
	begun := s.addresses()[:maxRedirects+2]
	if want := []string{"a", "x", "a", "x", "a", "x", "b"}; !slices.Equal(begun, want) {
		t.Errorf("tries at %v, want %v", begun, want)
	}
	if s.tries[maxRedirects].at != 0 || s.tries[maxRedirects+1].at == 0 {
		t.Errorf("tries at %v, want %d at once", s.tries[:maxRedirects+2], maxRedirects+1)
	}
	s, _ = perform(t, time.Second, func(try int, _ string) (*scene, error) {
		if try == 3 {
			return &scene{grants: []*lease.Grant{{}, {NotMaster: true, Master: "x"}}}, nil
		}
		if try == 3+maxRedirects {
			return &scene{}, nil
		}
		return &scene{grants: []*lease.Grant{{NotMaster: true, Master: "x"}}}, nil
	}, nil)
	if len(s.tries) != 4+maxRedirects || s.tries[len(s.tries)-1].at != 0 {
		t.Errorf("tries %v, want all at once: one of them had answered", s.tries)
	}
}

// TestErrIsOfNow: Err is nil while a coordinator answers, and says why a stream ended.
func TestErrIsOfNow(t *testing.T) {
	perform(t, 10*time.Second, func(try int, _ string) (*scene, error) {
		switch {
		case try == 0:
			return nil, errGone
		case try == 1:
			return &scene{grants: []*lease.Grant{{}}}, nil
		default:
			return nil, io.ErrUnexpectedEOF
		}
	}, func(c *Client) {
		synctest.Wait()
		if !errors.Is(c.Err(), errGone) || c.Connected() {
			t.Errorf("after the first try: %v, connected %v", c.Err(), c.Connected())
		}
		time.Sleep(firstPause)
		synctest.Wait()
		if c.Err() != nil || !c.Connected() {
			t.Errorf("answered: %v, connected %v", c.Err(), c.Connected())
		}
	})
}

// TestBrokenStreamIsLeft: a stream that takes no more reports is closed once, and another is
// opened, though it would yield grants for ever.
func TestBrokenStreamIsLeft(t *testing.T) {
	var scenes []*scene
	s, _ := perform(t, 5*time.Second, func(int, string) (*scene, error) {
		one := &scene{send: http.ErrServerClosed}
		scenes = append(scenes, one)
		return one, nil
	}, func(c *Client) { openLimit(t, c, "m", LimitOptions{}) })
	if len(s.tries) < 5 {
		t.Errorf("%d tries in 5 s", len(s.tries))
	}
	for i, one := range scenes {
		if one.closed != 1 || one.sent != 1 {
			t.Errorf("stream %d of %d: closed %d times, sent %d after the first failed", i, len(scenes), one.closed, one.sent-1)
		}
	}
}

// TestRunOutlivesItsStream: Run ends when the stream has taken its last report, and not while
// something of it is under way, however a stream ends.
func TestRunOutlivesItsStream(t *testing.T) {
	for _, err := range []error{nil, errGone} {
		var one *scene
		perform(t, 5*time.Second, func(try int, _ string) (*scene, error) {
			if try > 0 {
				return nil, errGone
			}
			one = &scene{slow: 200 * time.Millisecond, err: err}
			return one, nil
		}, func(c *Client) {
			openLimit(t, c, "m", LimitOptions{})
			if err == nil {
				time.Sleep(5*time.Second - 100*time.Millisecond)
				c.lanes()[0].nudge()
			}
		})
		if one.within != 0 || one.closed != 1 || one.sent == 0 {
			t.Errorf("stream that ends with %v: %d reports are under way after the end; closed %d times", err, one.within, one.closed)
		}
	}
}

// TestFirstTryThatFails: a waiter for the first answer is notified as soon as it is known that
// none comes: by a Take as a refusal, while a Wait goes on until its time is over.
func TestFirstTryThatFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.down = true
		c := h.run(t, "one")
		l := openLimit(t, c, "m", LimitOptions{})
		begin := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			d, err := l.Take(t.Context(), limit.Request{})
			if err != nil || d.Allowed || !d.Results[0].StoreFailed || d.Results[0].Reason != limit.ReasonStoreFailure || time.Since(begin) != link20 {
				t.Errorf("Take: %+v, %v after %v, want a refusal after %v", d, err, time.Since(begin), link20)
			}
		})
		wg.Go(func() {
			if err := l.WaitMax(t.Context(), time.Second); !errors.Is(err, limit.ErrWaitTooLong) || time.Since(begin) != time.Second {
				t.Errorf("WaitMax: %v after %v", err, time.Since(begin))
			}
		})
		wg.Wait()
	})
}
