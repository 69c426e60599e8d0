package proxy

import (
	"io"
	"sync"
	"time"
)

// tunnels are the WebSockets in progress. The zero value is ready; it is safe for concurrent use.
type tunnels struct {
	mu   sync.Mutex
	live map[*tunnel]struct{}
	none chan struct{} // made by closing, closed when no tunnel is left
}

// tunnel is the upstream's side of one.
type tunnel struct {
	io.ReadWriteCloser
	of       *tunnels
	upstream *upstream
	pause    time.Duration
	timer    *time.Timer
	once     sync.Once
}

// open begins one, which ends when nothing goes through it for so long; 0 = it may be silent.
func (t *tunnels) open(c io.ReadWriteCloser, u *upstream, pause time.Duration) *tunnel {
	one := &tunnel{ReadWriteCloser: c, of: t, upstream: u, pause: pause}
	if pause > 0 {
		one.timer = time.AfterFunc(pause, func() { _ = one.Close() })
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live == nil {
		t.live = map[*tunnel]struct{}{}
	}
	t.live[one] = struct{}{}
	return one
}

// Read implements [io.Reader].
func (t *tunnel) Read(p []byte) (int, error) {
	n, err := t.ReadWriteCloser.Read(p)
	t.active()
	return n, err
}

// Write implements [io.Writer].
func (t *tunnel) Write(p []byte) (int, error) {
	t.active()
	return t.ReadWriteCloser.Write(p)
}

func (t *tunnel) active() {
	if t.timer != nil {
		t.timer.Reset(t.pause)
	}
}

// Close implements [io.Closer].
func (t *tunnel) Close() error {
	err := t.ReadWriteCloser.Close()
	t.once.Do(func() {
		if t.timer != nil {
			t.timer.Stop()
		}
		t.upstream.inFlight.Add(-1)
		t.of.mu.Lock()
		defer t.of.mu.Unlock()
		delete(t.of.live, t)
		t.of.checkLocked()
	})
	return err
}

func (t *tunnels) checkLocked() {
	if len(t.live) == 0 && t.none != nil {
		close(t.none)
		t.none = nil
	}
}

// count is how many are open.
func (t *tunnels) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.live)
}

// away returns a channel that is closed once no tunnel is open. Call it once.
func (t *tunnels) away() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	none := make(chan struct{})
	t.none = none
	t.checkLocked()
	return none
}

// end closes those that are open.
func (t *tunnels) end() {
	t.mu.Lock()
	all := make([]*tunnel, 0, len(t.live))
	for one := range t.live {
		all = append(all, one)
	}
	t.mu.Unlock()
	for _, one := range all {
		_ = one.Close() // whoever uses it sees the end
	}
}
