package overload

import (
	"slices"
	"time"
)

// SEDA is our model of the adaptive overload control of SEDA (Welsh and Culler, USITS 2003): the
// rate of a token bucket follows the 90th percentile of response times. The controllers stand at
// the callers, as those that Breakwater was compared with (OSDI 2020) did; its authors' tuning for
// service times of 0.1 ms is scaled by the service time.
type SEDA struct{ Tuning }

// Name is that of the table.
func (s SEDA) Name() string { return s.name("seda") }

// The constants of the paper's table: of 100 samples, or of fewer after a time-out.
const (
	sedaSamples  = 100
	sedaSmooth   = 0.7  // weight of what was before
	sedaErrUp    = -0.5 // raise the rate when the error is below
	sedaErrDown  = 0.0  // lower it when the error is above
	sedaOffset   = -0.1 // weight of the additive rise
	sedaDepth    = 4    // tokens
	sedaQuantile = 0.9
)

// sedaController adapts a rate to response times.
type sedaController struct {
	target   float64 // seconds
	timeout  int64
	rise     float64 // requests per second
	fall     float64 // factor
	least    float64
	rate     float64
	smoothed float64
	samples  []float64
	updated  int64
}

// observe takes a response time.
func (s *sedaController) observe(now int64, seconds float64) {
	s.samples = append(s.samples, seconds)
	if len(s.samples) < sedaSamples && now-s.updated <= s.timeout {
		return
	}
	s.updated = now
	slices.Sort(s.samples)
	sample := s.samples[int(sedaQuantile*float64(len(s.samples)))]
	s.samples = s.samples[:0]
	s.smoothed = sedaSmooth*s.smoothed + (1-sedaSmooth)*sample
	switch err := (s.smoothed - s.target) / s.target; {
	case err > sedaErrDown:
		s.rate = max(s.rate/s.fall, s.least)
	case err < sedaErrUp:
		s.rate += -(err - sedaOffset) * s.rise
	}
}

// tokens is a token bucket.
type tokens struct {
	depth, level float64
	at           int64
}

// wait returns after how many seconds a token is there, and takes it if that is at most some.
func (t *tokens) take(now int64, rate, atMost float64) (wait float64, ok bool) {
	t.level = min(t.depth, t.level+rate*float64(now-t.at)/float64(time.Second))
	t.at = now
	if t.level < 1 {
		if wait = (1 - t.level) / rate; wait > atMost || rate <= 0 {
			return 0, false
		}
	}
	t.level--
	return wait, true
}

type seda struct {
	none
	tuning   Tuning
	sessions map[[2]int]*sedaSession // by caller and server
}

type sedaSession struct {
	sedaController
	tokens
}

// New begins a run.
func (s SEDA) New(env *Env) Control {
	return &seda{none: none{env}, tuning: s.Tuning, sessions: map[[2]int]*sedaSession{}}
}

func (s *seda) session(c *Call) *sedaSession {
	key := [2]int{c.Caller, c.Server}
	v := s.sessions[key]
	if v != nil {
		return v
	}
	// A caller's part of what the server can do.
	service := s.env.meanWork(c.Server)
	share := s.env.capacity(c.Server) / float64(s.env.callers(c.Server))
	v = &sedaSession{
		sedaController: sedaController{
			target: s.tuning.target(7.2 * service), timeout: int64(s.tuning.interval(10 * service)),
			rise: s.tuning.rise(0.1) * share, fall: 1 + s.tuning.fall(0.3), least: 0.002 * share,
			rate: (0.002 + 0.002*s.env.Rand().Float64()) * share,
		},
		tokens: tokens{depth: sedaDepth, level: 1, at: s.env.now},
	}
	s.sessions[key] = v
	return v
}

func (s *seda) Send(c *Call) {
	v := s.session(c)
	// It waits at its caller for as long as a call takes.
	wait, ok := v.take(s.env.now, v.rate, s.env.meanWork(c.Server))
	switch {
	case !ok:
		s.env.Drop(c, Dropped)
	case wait == 0:
		s.env.Deliver(c)
	default:
		s.env.After(time.Duration(wait*float64(time.Second)), func() { s.env.Deliver(c) })
	}
}

func (s *seda) Answer(c *Call, o Outcome) {
	if o == Answered {
		s.session(c).observe(s.env.now, float64(s.env.now-c.sentAt)/float64(time.Second))
	}
}
