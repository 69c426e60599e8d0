package costs

import (
	"math"
	"sync"
	"time"
)

// Meter divides the CPU time that the process uses between the requests in flight, for servers
// whose handlers do not say what they used: Go does not tell the CPU time of a goroutine.
//
// In each interval between two readings of the process clock
//
//	rate = CPU used by the process / running time of the requests in flight
//
// where the running time is the sum over the requests, and a request is charged rate x the time
// that it ran: its service time x its share of the process's CPU. What was charged too much or too
// little, because the interval was not over yet, is made good in the next, so that all charges
// together follow the CPU used. CPU used while nothing ran is nobody's.
//
// Requests that run at the same time are charged alike, whether they compute or wait: the sum is
// right, and a route's mean is as right as its company is mixed. Handlers that know better say
// so. Meter is safe for concurrent use. Build it with [NewMeter].
type Meter struct {
	clock func() time.Duration // monotonic
	cpu   func() time.Duration // CPU time of the process so far
	cores float64

	mu       sync.Mutex
	running  int
	now      time.Duration // when the figures were last brought up to date
	position float64       // what a request would be charged that runs since ever, in nanoseconds
	rate     float64       // by which position advances, per nanosecond

	began   time.Duration // of this interval
	used    time.Duration // the process clock at its begin
	busy    float64       // running time of requests in this interval
	charged float64       // in this interval
	carry   float64       // used and not charged before it

	pins   map[*Pin]struct{} // goroutines that are bound to their threads
	pinned time.Duration     // CPU time of those that were
}

// sampleEvery is the least time between readings of the process clock. Not shorter: the kernel
// brings the clock of running threads up to date by its tick, 1 to 10 ms. Not longer: a cheap
// request is charged by the rate of the interval before it.
const sampleEvery = 5 * time.Millisecond

// NewMeter returns a meter of a process whose CPU time cpu returns, on so many cores. A nil cpu
// is this process's; where the system does not tell that, requests are charged their service time.
// clock is monotonic; nil is the time since the call.
func NewMeter(cpu, clock func() time.Duration, cores int) *Meter {
	if clock == nil {
		begin := time.Now()
		clock = func() time.Duration { return time.Since(begin) }
	}
	if cpu == nil {
		cpu = processClock()
	}
	m := &Meter{clock: clock, cpu: cpu, cores: float64(max(1, cores)), rate: 1, pins: map[*Pin]struct{}{}}
	m.now = clock()
	m.began = m.now
	if cpu != nil {
		m.used = cpu()
	}
	return m
}

// Begin notes that a request begins to run and returns a mark, from which its cost is counted.
func (m *Meter) Begin() (mark time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	m.running++
	return time.Duration(m.position)
}

// End notes that a request ends, and returns what it has cost since its mark. It is called once for
// each Begin.
func (m *Meter) End(mark, _ time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	if m.running == 0 {
		panic("costs: End without Begin")
	}
	m.running--
	return m.since(mark)
}

// SoFar returns what a running request has cost since its mark.
func (m *Meter) SoFar(mark time.Duration) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.advance()
	return m.since(mark)
}

func (m *Meter) since(mark time.Duration) time.Duration {
	return max(0, time.Duration(m.position)-mark)
}

// advance brings the figures up to date, and begins a new interval where the last is over.
func (m *Meter) advance() {
	now := max(m.clock(), m.now)
	elapsed := float64(now - m.now)
	m.now = now
	if m.cpu == nil || now-m.began < sampleEvery {
		m.charge(m.rate, elapsed)
		return
	}
	reading := m.unexplained()
	busy := m.busy + elapsed*float64(m.running)
	// No request uses more than all cores; what is used beyond that is not theirs.
	used := math.Min(float64(reading-m.used), busy*m.cores)
	owed := used + m.carry
	rate := m.rate
	if ran := elapsed * float64(m.running); m.running > 0 && elapsed >= float64(sampleEvery) {
		// The same requests ran all the while, so they used what nobody was charged for.
		rate = m.clip((owed - m.charged) / ran)
	}
	m.charge(rate, elapsed)
	if busy > 0 {
		m.carry = owed - m.charged
		m.rate = m.clip((used + m.carry) / busy)
	}
	m.began, m.used, m.busy, m.charged = now, reading, 0, 0
}

// charge charges the requests that run for the time since the last call.
func (m *Meter) charge(rate, elapsed float64) {
	m.position += rate * elapsed
	m.busy += elapsed * float64(m.running)
	m.charged += rate * elapsed * float64(m.running)
}

func (m *Meter) clip(rate float64) float64 { return math.Min(math.Max(0, rate), m.cores) }
