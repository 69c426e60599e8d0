package accepts

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Classes is how many classes of requests there are, 0 the most critical. A refusal of one class
// counts for those below it.
const Classes = 4

// slots is into how many parts a window is divided. Not fewer: credit would expire in steps that
// can be noticed. Not more: each host keeps four bytes for each.
const slots = 60

// few is the credit below which attempts are spaced. A server that has little capacity refuses the
// second of two that come together, and would accept it a moment later: without the spaces a
// client used 17 % of a server that refuses 90 % of its load, and with them 82 %
// (TestBackendThatRefuses). Not more: who has credit left may burst. Not less: two accepts at once
// would be followed by a burst of 2 x K.
const few = 5 * fixed.Token

// Config says how much is sent to a server that refuses. The zero value has the defaults.
type Config struct {
	// K is how many attempts an accept pays for, 1.1 to 100; 0 = 2. With 2, a server that is
	// overloaded refuses up to as many as it accepts, and the client learns of its recovery
	// quickly. With 1.1 it refuses a tenth, and the client also holds back while more than
	// nine per cent are refused for other reasons. With 1 nothing would ever pay for an attempt
	// more than before: once closed it would stay so.
	K float64

	// Window is how long an accept counts, 1s to 1h; 0 = 2m. Not shorter: a short fault would
	// close it. Not longer: it would take as long to notice.
	Window time.Duration

	// Probe is about how often a closed throttle tries again, at least 1ms; 0 = Window/120. Each
	// wait is drawn from half of it to half as much again, so that clients do not probe together.
	// Not shorter: each client of a fleet sends so many to a server that is down. Not longer: after
	// a recovery K multiplies what one probe has begun, and takes up to 8s for it with 1.1.
	Probe time.Duration

	// Spare is how many refusals are let pass before anything was accepted, 1 to 1,000,000;
	// 0 = 10. Not fewer: a client that sends little would be closed by a refusal or two. Not more:
	// each client of a fleet sends as many to a server that is gone.
	Spare int
}

// WithDefaults returns c with its defaults, or an error that names the value out of its range.
func (c Config) WithDefaults() (Config, error) {
	if c.K == 0 {
		c.K = 2
	}
	if c.Window == 0 {
		c.Window = 2 * time.Minute
	}
	if c.Probe == 0 {
		c.Probe = c.Window / 120
	}
	if c.Spare == 0 {
		c.Spare = 10
	}
	switch {
	case !(c.K >= 1.1 && c.K <= 100): // also NaN
		return c, fmt.Errorf("accepts: K is %v, want 1.1 to 100: with 1 a throttle that has closed never opens", c.K)
	case c.Window < time.Second || c.Window > time.Hour:
		return c, fmt.Errorf("accepts: the window is %v, want 1s to 1h", c.Window)
	case c.Probe < time.Millisecond || c.Probe > c.Window:
		return c, fmt.Errorf("accepts: the probe interval is %v, want 1ms to the window of %v", c.Probe, c.Window)
	case c.Spare < 1 || c.Spare > 1_000_000:
		return c, fmt.Errorf("accepts: Spare is %d, want 1 to 1000000", c.Spare)
	}
	return c, nil
}

// Throttle decides what is sent to one server. It is not safe for concurrent use; New makes one.
type Throttle struct {
	k       fixed.Amount // attempts that an accept pays for
	spare   fixed.Amount
	slot    int64 // length of a part of the window, in nanoseconds
	window  limit.Time
	probe   int64
	now     limit.Time // the latest that was seen
	classes [Classes]class
}

// class is the account of one class.
type class struct {
	credit   fixed.Amount  // attempts that may be sent, those reserved included
	reserved int64         // attempts in flight that have to be paid for
	accepted [slots]uint32 // accepts in each part of the window
	total    int64         // their sum
	part     int64         // the part of the window that is being counted, since the epoch
	refused  limit.Time    // of the last refusal of this class or one above it
	ever     bool          // whether there was one within the window
	probeAt  limit.Time    // when the next probe may be sent
	acceptAt limit.Time    // of the last accept
	gap      int64         // between attempts while there is little credit, in nanoseconds
	next     limit.Time    // when the next of these may be sent
}

// New returns an open throttle. c is what [Config.WithDefaults] returned.
func New(c Config) *Throttle {
	t := &Throttle{
		k:      fixed.Round(c.K * float64(fixed.Token)),
		spare:  fixed.Whole(int64(c.Spare)),
		slot:   int64(c.Window) / slots,
		window: limit.Time(c.Window),
		probe:  int64(c.Probe),
	}
	for i := range t.classes {
		t.classes[i].credit = t.spare
	}
	return t
}

// Attempt is one that was sent. It is ended once, by Accepted, Refused or Dropped.
type Attempt struct {
	Class int
	// Probe says that it was sent although there was no credit.
	Probe bool
	// Reserved says that it waits for its answer at the expense of others. Attempts sent while
	// nothing is being refused do not: nobody knows that they will be.
	Reserved bool

	at limit.Time // when it was sent
}

// Send decides whether a request of a class may be sent at now, and if not, how long until one
// may be, at the latest. draw is a random number from [0, 1), for the time of that.
func (t *Throttle) Send(now limit.Time, of int, draw float64) (a Attempt, wait time.Duration, ok bool) {
	c := t.at(now, of)
	a = Attempt{Class: of, Reserved: true, at: t.now}
	switch {
	case c.calm():
		a.Reserved = false
		return a, 0, true
	case c.free() >= fixed.Token && (t.now >= c.next || c.free() >= few):
		c.next = t.now.Add(time.Duration(c.gap))
	case t.now >= c.probeAt:
		// A probe brings the credit that it spends, so that what it earns is left.
		a.Probe = true
		c.credit += fixed.Token
		c.probeAt = t.now.Add(time.Duration(float64(t.probe) * (0.5 + draw)))
	default:
		until := c.probeAt
		if c.free() >= fixed.Token {
			until = min(until, c.next)
		}
		return Attempt{}, time.Duration(until - t.now), false
	}
	c.reserved++
	return a, 0, true
}

// Accepted ends an attempt that the server accepted.
func (t *Throttle) Accepted(now limit.Time, a Attempt) {
	c := t.end(now, a)
	c.accepted[c.part%slots]++
	c.total++
	// Accepts that come so far apart are followed by K times as many attempts, evenly. Where the
	// one before is long ago the round trip counts, so that K also holds for each of these.
	c.gap = min(int64(t.now-a.at), int64(t.now-c.acceptAt), t.probe) * int64(fixed.Token) / int64(t.k)
	c.acceptAt = t.now
	c.credit = min(c.credit+t.k-fixed.Token, t.most(c))
}

// Refused ends an attempt that the server refused.
func (t *Throttle) Refused(now limit.Time, a Attempt) {
	c := t.end(now, a)
	closed := c.free() < fixed.Token
	for below := a.Class; below < Classes; below++ {
		c := t.at(now, below)
		// Debt is not kept: attempts beyond the credit were sent before anybody knew, and to
		// pay for them would take as long as the fault has lasted.
		c.credit = max(c.credit-fixed.Token, 0)
		c.refused, c.ever = t.now, true
	}
	if !closed && c.free() < fixed.Token {
		// It has just closed. A probe at once would tell nothing new.
		c.probeAt = max(c.probeAt, t.now.Add(time.Duration(t.probe/2)))
	}
}

// Dropped ends an attempt of which nothing is known: it never reached the server, or its caller
// gave it up. What was reserved is free again.
func (t *Throttle) Dropped(now limit.Time, a Attempt) { t.end(now, a) }

func (t *Throttle) end(now limit.Time, a Attempt) *class {
	c := t.at(now, a.Class)
	if a.Reserved {
		c.reserved--
	}
	return c
}

// Calm reports whether nothing was refused for a window, so that t is as a new one.
func (t *Throttle) Calm(now limit.Time) bool {
	for of := range t.classes {
		if !t.at(now, of).calm() {
			return false
		}
	}
	return true
}

// calm reports whether nothing was refused for a window.
func (c *class) calm() bool { return !c.ever }

// free is the credit that no attempt in flight has reserved.
func (c *class) free() fixed.Amount { return c.credit - fixed.Amount(c.reserved)*fixed.Token }

// most is the credit that may be kept: what the accepts of the window have left over.
func (t *Throttle) most(c *class) fixed.Amount {
	return fixed.SaturatingAdd(t.spare, fixed.Whole(c.total).Scale(t.k-fixed.Token, fixed.Token))
}

// at returns the account of a class with what has expired at now taken off.
func (t *Throttle) at(now limit.Time, of int) *class {
	t.now = max(t.now, now)
	c := &t.classes[of]
	if c.ever && t.now-c.refused > t.window {
		// What was refused is forgotten, as at the start.
		c.ever, c.gap, c.credit = false, 0, max(c.credit, t.spare)
	}
	part := int64(t.now) / t.slot
	if part == c.part {
		return c
	}
	for i := max(c.part+1, part-slots+1); i <= part; i++ {
		c.total -= int64(c.accepted[i%slots])
		c.accepted[i%slots] = 0
	}
	c.part = part
	c.credit = min(c.credit, t.most(c))
	return c
}
