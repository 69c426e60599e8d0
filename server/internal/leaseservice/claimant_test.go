package leaseservice

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease"
)

// TestClaimTakenWithoutAnAnswer: a service whose question was taken and not answered does
// not know whether another lends, though its next question finds the claim to be its own.
// It lends nothing before the other one's leases have ended.
func TestClaimTakenWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true, mute: map[string]int{}, cut: map[string]bool{}}
		first := run(t, p, 1)
		time.Sleep(time.Second)
		if !first.may() {
			t.Fatal("the only one does not lend")
		}
		second := run(t, p, 2)
		time.Sleep(time.Second)
		for range 5 {
			p.set(func() { // its memory is lost, and the second asks first
				p.holder, p.until, p.clean = "", time.Time{}, false
				p.cut[first.claim.id], p.mute[second.claim.id] = true, 3
			})
			time.Sleep(claimEvery + claimSoon)
			p.set(func() { delete(p.cut, first.claim.id) })
			last := time.Now()
			for end := last.Add(15 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				synctest.Wait()
				if first.may() {
					last = time.Now()
				}
				if second.may() && time.Since(last) < lease.DefaultLease {
					t.Fatalf("the second lends %v after the first did", time.Since(last))
				}
			}
			if !second.may() {
				t.Fatal("nobody lends")
			}
			first, second = second, first
		}
	})
}

// TestNoLeasedLimitsNoClaim: a service whose limits are shared by leases no more gives the
// claim up, and ends its streams with where to go; another one takes over, who learns what
// may be in use, as the leases run on.
func TestNoLeasedLimitsNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true}
		first := run(t, p, 1)
		time.Sleep(time.Second)
		pipe, err := first.Pipe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := pipe.Send(&lease.Report{Member: lease.Member{Instance: "i", Session: 1}, Number: 1}); err != nil {
			t.Fatal(err)
		}
		if _, err := pipe.Receive(); err != nil {
			t.Fatal(err)
		}
		second := run(t, p, 2)
		time.Sleep(time.Second)
		if !first.may() || second.may() || second.Elsewhere() == "" {
			t.Fatalf("the first lends: %v, the second: %v, which knows of %q", first.may(), second.may(), second.Elsewhere())
		}
		first.Reload(limits(t, "limits: [{name: other, rate: 1/s}]"))
		reloaded := time.Now()
		for !second.lends(second.now()) && time.Since(reloaded) < time.Minute {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		// The first gives it up when it would renew it; the second asks next within as long,
		// and once more, since something may be lent. The claim's end, and these two, would
		// take a second longer at least.
		most := 3*claimEvery + claimEvery/2
		if took := time.Since(reloaded); took > most+20*time.Millisecond {
			t.Errorf("another one took over after %v, want %v without waiting for the claim's end", took, most)
		}
		if second.Recovering() == 0 {
			t.Error("it knows nothing of what was lent, and does not learn")
		}
		if first.Elsewhere() != "" || second.Elsewhere() != "" {
			t.Errorf("%q and %q lend elsewhere", first.Elsewhere(), second.Elsewhere())
		}
		for {
			if _, err = pipe.Receive(); err != nil {
				break
			}
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ends with %v", err)
		}
		first.Reload(limits(t, config)) // and back
		time.Sleep(20 * time.Second)
		if first.may() || !second.may() || first.Elsewhere() == "" {
			t.Errorf("the first lends: %v, the second: %v", first.may(), second.may())
		}
	})
}

// TestClaimIsGivenUp: who ends gives its claim up, and says whether something is lent; who
// has none leaves that of others alone. One line is logged where that fails, and none else.
func TestClaimIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true}
		lines := new(lockedBuffer)
		logged := func(key byte) claimant {
			return run(t, p, key, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(lines, nil)) })
		}
		first, second := logged(1), logged(2)
		time.Sleep(time.Second)
		synctest.Wait()
		if holder := p.held(); !strings.Contains(second.Elsewhere()+first.Elsewhere(), holder) {
			t.Errorf("the holder is %q; known are %q and %q", holder, first.Elsewhere(), second.Elsewhere())
		}
		if first.Elsewhere() != "" {
			first, second = second, first
		}
		second.stop()
		if p.held() != first.claim.id {
			t.Error("one that did not lend gave up the claim of another")
		}
		first.stop()
		p.Lock()
		holder, clean := p.holder, p.clean
		p.Unlock()
		if holder != "" || !clean {
			t.Errorf("%q holds it, clean %v, after the end of the one who lent nothing", holder, clean)
		}
		if text := lines.String(); strings.Contains(text, "given up") || strings.Count(text, "another service lends") != 1 {
			t.Errorf("logged:\n%s", text)
		}
		third := logged(3)
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if !third.may() {
			t.Error("the next one waits though nothing was lent")
		}
		p.set(func() { p.down = true })
		third.stop()
		if strings.Count(lines.String(), "cannot be given up") != 1 {
			t.Errorf("logged:\n%s", lines)
		}
	})
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	s := New(Options{Limits: limits(t, config)})
	if !strings.Contains(s.claim.about, host) || s.opts.Logger == nil {
		t.Errorf("it is told as %q", s.claim.about)
	}
}

// lockedBuffer takes what is logged.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
