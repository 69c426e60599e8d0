package partition

import "github.com/stint-io/stint/limit"

// slots is the number of parts of a window in which used permits are counted. Not fewer: peaks
// of a tenth of a window are to be flattened. Not more: an instance often has only a few tokens
// in a window.
const slots = 10

// pace spreads the permits of a window by how the windows before it were used.
//
// With demand above the limit, the permits of a window are all used at its beginning. The spread
// u moves each from there (u = 0) towards the moment that it is due (u = 1), in proportion: the
// short delays. From how a window was used it takes an error
//
//	e = front - unused
//
// front is how far ahead of an even use the window was at its worst: the most, over the tenths,
// of what was used by then minus what was due by then, as a share of the window's permits; never
// below 0. unused is the share of permits that nobody used: it removes delays that cost permits,
// and delays that are not needed because the demand is below the limit. Then
//
//	u += Ki e + Kp (e - e1) + Kd (e - 2 e1 + e2)
//
// where e1 and e2 are the errors of the two windows before, and u stays within 0 and 1. In
// this velocity form of a PID controller the sum of errors is u itself, so that bounding
// u bounds the sum: it cannot wind up.
//
// How the gains were chosen: with more demand than permits, a window with spread u has
// its permits out after the part u of it, when the part u of them was due, so front is
// 1 - u, and e = 1 - unused - u. The loop's characteristic polynomial is then
//
//	z^3 - (1 - Ki - Kp - Kd) z^2 - (Kp + 2 Kd) z + Kd
//
// Ki = 0.6, Kp = 0.1, Kd = 0.05 put its roots at 0.45, 0.25 and -0.45: an error is below
// 2 % after six windows, at whatever limit, since all of it is in shares. Larger gains
// move a root towards -1, where front swings from window to window for ever (Ki = 1.6);
// smaller ones take longer than the few seconds that a peak lasts.
//
// Everything is in parts of 1/65536. The zero value begins with no spread.
type pace struct {
	spread int64
	e1, e2 int64

	begin   limit.Time // of the window that is counted
	began   bool
	spoiled bool // the terms changed within it: it says nothing
	used    [slots]int64
}

const (
	paceKi = SpreadWhole * 60 / 100
	paceKp = SpreadWhole * 10 / 100
	paceKd = SpreadWhole * 5 / 100
)

// admit counts n permits used at now.
func (p *pace) admit(now, window limit.Time, n int64) {
	if at := now - p.begin; at >= 0 && at < window {
		p.used[at*slots/window] += n
	}
}

// observe changes the spread by the window that has ended. even is what was due by the
// end of each tenth.
func (p *pace) observe(even [slots]int64) {
	all := even[slots-1]
	if all <= 0 {
		return
	}
	sum, ahead := int64(0), int64(0)
	for i, n := range p.used {
		sum += n
		ahead = max(ahead, sum-even[i])
	}
	p.correct(paceShare(ahead, all) - paceShare(max(0, all-sum), all))
}

// paceShare returns part/all in parts of 1/65536; part is at most all.
func paceShare(part, all int64) int64 {
	for all >= 1<<46 {
		part, all = part>>1, all>>1
	}
	return min(part, all) << spreadBits / all
}

// correct is the controller.
func (p *pace) correct(e int64) {
	u := paceKi*e + paceKp*(e-p.e1) + paceKd*(e-2*p.e1+p.e2)
	p.spread = min(max(p.spread+u>>spreadBits, 0), SpreadWhole)
	p.e1, p.e2 = e, p.e1
}

// roll begins a new window when now is in one.
func (s *Limiter) roll(now limit.Time) {
	p := s.pace
	start := now - now%s.window
	if p.began && start <= p.begin {
		return
	}
	if p.began && !p.spoiled {
		var even [slots]int64
		e := &s.eras[0]
		if first := e.rankFrom(p.begin); !e.dry() {
			for i := range even {
				even[i] = int64(e.rankFrom(p.begin+s.window*limit.Time(i+1)/slots) - first)
			}
			p.observe(even)
		}
		if start-p.begin > s.window {
			p.correct(-SpreadWhole) // windows without demand
		}
	}
	p.begin, p.began, p.spoiled, p.used = start, true, len(s.eras) > 1, [slots]int64{}
	if s.spread != p.spread {
		s.spread = p.spread
		s.advance()
	}
}
