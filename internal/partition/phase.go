package partition

import "github.com/stint-io/stint/limit"

// Phase is a wall clock that cannot be stepped. It is read once, at the beginning, and
// carried on by a monotonic clock; what the wall clock says later only moves it slowly,
// by at most [PhaseStep] each [PhaseEvery]: one part in a thousand.
//
// So a limit that uses it admits at most 0.1 % more than its rate while the clock is moved
// forward, at most 1 ms worth at a time, whatever the wall clock does, and 0.1 % less while it
// is moved back.
//
// The zero value begins at time 0. A Phase must not be used concurrently.
type Phase struct {
	shift, adjusted limit.Time
}

// PhaseStep in PhaseEvery is how fast a [Phase] follows its wall clock. Not slower: 250 ms
// take four minutes. Not faster: the rate would be off by more than 0.1 %, and a wall
// clock that is stepped by mistake would be followed before it is set right.
const (
	PhaseEvery limit.Time = 1e9
	PhaseStep  limit.Time = 1e6
)

// NewPhase returns a clock that shows wall when the monotonic clock shows mono.
func NewPhase(mono, wall limit.Time) Phase { return Phase{shift: wall - mono, adjusted: mono} }

// Shift returns the difference between this clock and the monotonic clock.
func (p *Phase) Shift() limit.Time { return p.shift }

// Due reports whether it is time to read the wall clock again.
func (p *Phase) Due(mono limit.Time) bool { return mono-p.adjusted >= PhaseEvery }

// Adjust moves the clock towards the wall clock, if it is [Phase.Due]. With a window, only the
// position within the window counts: an error of whole windows is none.
func (p *Phase) Adjust(mono, wall, window limit.Time) {
	if !p.Due(mono) {
		return
	}
	p.adjusted = mono
	off := wall - (mono + p.shift)
	if window > 0 {
		off %= window
		if off > window/2 {
			off -= window
		} else if off < -window/2 {
			off += window
		}
	}
	p.shift += min(max(off, -PhaseStep), PhaseStep)
}
