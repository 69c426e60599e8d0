package costs

import (
	"runtime"
	"time"
)

// Pin is a goroutine that is bound to its thread, so that the thread's clock tells its CPU time.
// A [Meter] divides only the rest of the process's CPU time between all requests: runtime,
// network and goroutines of their own.
type Pin struct {
	meter  *Meter
	thread thread

	// Under the meter's lock:
	begin time.Duration // the thread's clock
	total time.Duration // once it is not bound any more
	bound bool
}

// Pin binds the calling goroutine to its thread until Unpin. It returns nil where the system has
// no clocks of threads, or the meter none of the process.
func (m *Meter) Pin() *Pin {
	if m.cpu == nil {
		return nil
	}
	t, ok := lockThread()
	if !ok {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	p := &Pin{meter: m, thread: t, begin: t.used(), bound: true}
	m.pins[p] = struct{}{}
	return p
}

// Unpin frees the goroutine, which is the one that called Pin, and is called once.
func (p *Pin) Unpin() {
	p.meter.mu.Lock()
	p.total, p.bound = p.used(), false
	delete(p.meter.pins, p)
	p.meter.pinned += p.total
	p.meter.mu.Unlock()
	runtime.UnlockOSThread()
}

// Used is the CPU time that the goroutine has used since Pin. Any goroutine may ask.
func (p *Pin) Used() time.Duration {
	p.meter.mu.Lock()
	defer p.meter.mu.Unlock()
	return p.used()
}

func (p *Pin) used() time.Duration {
	if !p.bound {
		return p.total
	}
	return max(0, p.thread.used()-p.begin)
}

// unexplained is the CPU time of the process that no thread's clock explains. It may go back by the
// tick by which the kernel brings the process clock up to date.
func (m *Meter) unexplained() time.Duration {
	pinned := m.pinned
	for p := range m.pins {
		pinned += p.used()
	}
	return m.cpu() - pinned
}
