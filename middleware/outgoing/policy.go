// Package outgoing is what the clients of HTTP and gRPC have in common: how a program treats the
// servers that it calls. Package httpclient and package grpcclient are its doors; use one of them,
// or a [Guard] for another protocol.
//
// Before a request is sent
//
//  1. what the server said last is obeyed: Retry-After, and RateLimit with nothing remaining;
//  2. the throttle asks whether the server accepts enough of what it gets to be worth an attempt;
//  3. a limit of one's own is asked, if there is one.
//
// A request that is not sent fails with a [Refusal], which says why and when to try again. One that
// the server refuses is tried again, if it may be, within a budget.
//
// Accepted is every answer but a refusal (429 and 503, RESOURCE_EXHAUSTED and UNAVAILABLE).
// A request that was sent and not answered, because the connection broke, counts as refused: servers
// under load look like that. One whose deadline came before the answer counts as refused for its scope
// alone, which is throttled by itself: a call that waits for an event, such as a long poll, closes no
// other. Where requests of more than eight scopes are not answered in time the server counts as a whole.
// A request that never reached the server, because there was no connection, and one that its caller
// cancelled count for nothing.
package outgoing

import (
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/accepts"
	"github.com/stint-io/stint/internal/retrybudget"
	"github.com/stint-io/stint/limit"
)

// Policy says how requests are sent. The zero value throttles with K = 2 in a window of two minutes,
// tries again up to twice within a budget of a tenth, obeys what servers say, and waits for
// nothing else.
type Policy struct {
	// Limit is asked before each attempt; nil = no limit of one's own. Its requests have the
	// attributes host and method, for HTTP path, and those that the door adds.
	Limit limit.Taker

	// MaxWait is how long a request may wait for Limit and for the time that the server named,
	// at least 0. With 0 it fails at once. A wait that cannot succeed fails at once as well.
	MaxWait time.Duration

	Throttle Throttle
	Retry    Retry

	// LongestHold bounds the time for which a server can ask not to be called, at least 0;
	// 0 = 10m, and less than a second is an error. Not longer: a mistake of one server would
	// silence its clients for hours. Not shorter: a daily quota that is used up would be asked
	// again and again.
	LongestHold time.Duration

	// Deaf sends requests although the server has asked to wait. The server's Retry-After is
	// obeyed by retries all the same.
	Deaf bool

	// MaxHosts bounds the servers of which something is remembered, 1 to 1,000,000; 0 = 1000. A
	// new one takes the place of one that has not been called for a second or longer; where there
	// is none it is called without throttle. Each takes some 2 KiB.
	MaxHosts int

	// Hooks are called with each refusal, and with each decision of Limit.
	Hooks limit.Hooks
}

// Throttle says how much is sent to a server that refuses. The zero value has the defaults.
type Throttle struct {
	// Off sends everything.
	Off bool

	// K is how many attempts an accept pays for, 1.1 to 100; 0 = 2. A server that is overloaded
	// gets at most K times what it accepts. Nearer to 1 spares it, and makes the client hold back
	// sooner: with 1.1 when one in eleven is refused.
	K float64

	// Window is how long an accept counts, 1s to 1h; 0 = 2m.
	Window time.Duration

	// Probe is about how often a server that accepts nothing is tried, at least 1ms; 0 = Window/120.
	Probe time.Duration

	// Spare is how many refusals are let pass before anything was accepted, 1 to 1,000,000; 0 = 10.
	Spare int
}

// Retry says what is tried again. The zero value has the defaults.
type Retry struct {
	// Attempts is how often a request is sent at most, 1 to 10; 0 = 3. With 1 nothing is tried
	// again.
	Attempts int

	// Percent is how many retries there may be for a hundred requests to a server, 0 to 100;
	// 0 = 10. With 10 a server gets at most 1.1 times the requests of its clients.
	Percent float64

	// Reserve is how many there may be beyond that, from the first request on, 0 to 1000. With
	// 0, the first nine requests are not tried again.
	Reserve int

	// Base and Longest are the time before the first retry, and before any; 0 = 100ms and 10s.
	// The time is drawn from 0 to Base, 2 x Base, 4 x Base, and so on ("full jitter"). A
	// server's Retry-After goes first: the retry comes up to Base later than that, and not at
	// all if it is above Longest, or comes after the request's deadline.
	Base, Longest time.Duration
}

// rules is a Policy with its defaults.
type rules struct {
	Policy
	throttle accepts.Config
	budget   retrybudget.Config
}

var errPolicy = errors.New("outgoing")

func (p Policy) withDefaults() (rules, error) {
	r := rules{Policy: p}
	var err error
	t := p.Throttle
	r.throttle, err = accepts.Config{K: t.K, Window: t.Window, Probe: t.Probe, Spare: t.Spare}.WithDefaults()
	if err != nil {
		return r, fmt.Errorf("%w: the throttle: %w", errPolicy, err)
	}
	if p.Retry.Percent < 0 {
		return r, fmt.Errorf("%w: Retry.Percent is %v, want 0 to 100; Attempts: 1 tries nothing again", errPolicy, p.Retry.Percent)
	}
	r.budget, err = retrybudget.Config{Percent: p.Retry.Percent, Reserve: p.Retry.Reserve}.WithDefaults()
	if err != nil {
		return r, fmt.Errorf("%w: retries: %w", errPolicy, err)
	}
	setDefault(&r.Retry.Attempts, 3)
	setDefault(&r.Retry.Base, 100*time.Millisecond)
	setDefault(&r.Retry.Longest, 10*time.Second)
	setDefault(&r.LongestHold, 10*time.Minute)
	setDefault(&r.MaxHosts, 1000)
	switch {
	case r.Retry.Attempts < 1 || r.Retry.Attempts > 10:
		return r, fmt.Errorf("%w: Retry.Attempts is %d, want 1 to 10", errPolicy, r.Retry.Attempts)
	case r.Retry.Base < time.Millisecond || r.Retry.Longest < r.Retry.Base || r.Retry.Longest > time.Hour:
		return r, fmt.Errorf("%w: Retry.Base is %v and Longest %v, want 1ms at least, and not more than Longest, which is at most 1h", errPolicy, r.Retry.Base, r.Retry.Longest)
	case r.LongestHold < time.Second || r.LongestHold > 24*time.Hour:
		return r, fmt.Errorf("%w: LongestHold is %v, want 1s to 24h", errPolicy, r.LongestHold)
	case r.MaxWait < 0:
		return r, fmt.Errorf("%w: MaxWait is %v, want at least 0", errPolicy, r.MaxWait)
	case r.MaxHosts < 1 || r.MaxHosts > 1_000_000:
		return r, fmt.Errorf("%w: MaxHosts is %d, want 1 to 1000000", errPolicy, r.MaxHosts)
	}
	return r, nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
