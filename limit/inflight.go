package limit

import (
	"cmp"
	"slices"
	"time"
	"unsafe"
)

// InFlight is the arithmetic of a concurrency limit, a semaphore of MaxInFlight permits. Each is
// held from Take until Finish, or until Timeout has passed.
//
// An InFlight is a value without state, safe for concurrent use.
type InFlight struct {
	quota     int64
	timeout   time.Duration
	unlimited bool
}

// InFlightState is the state of one key under an [InFlight]: the permits that are held. The zero
// value is a new key. It refers to memory of its own: copy it with Clone.
type InFlightState struct {
	permits []heldPermit // by expiry
	used    int64        // the cost of all permits
	latest  Time         // the latest time at which a permit was given
}

type heldPermit struct {
	permit  uint64
	expires Time
	cost    int64
}

// NewInFlight returns the arithmetic of a Concurrency policy, which must be valid.
func NewInFlight(p Policy) InFlight {
	return InFlight{quota: p.MaxInFlight, timeout: p.Timeout, unlimited: p.Unlimited}
}

// Take takes cost permits at now if they are free, under the number permit, and changes s only
// then. cost is at least 0; a cost of 0 takes none.
//
// RetryAfter of a refusal is an upper bound: the time until enough permits expire, and a holder
// that finishes frees its own sooner. ResetAfter likewise.
func (f *InFlight) Take(s *InFlightState, now Time, cost int64, permit uint64) Verdict {
	if f.unlimited {
		return unlimitedVerdict()
	}
	at := f.clamp(*s, now)
	expired, used := s.live(at)
	fits := f.fits(used, cost)
	if fits && cost > 0 {
		s.permits = slices.Delete(s.permits, 0, expired)
		p := heldPermit{permit, at.Add(f.timeout), cost}
		i := len(s.permits)
		// A policy change may have left permits that expire later.
		for i > 0 && s.permits[i-1].expires > p.expires {
			i--
		}
		s.permits = slices.Insert(s.permits, i, p)
		s.used, s.latest = used+cost, at
	}
	return f.verdict(s, now, cost, 0, fits)
}

// Peek answers as Take would and changes nothing.
func (f *InFlight) Peek(s InFlightState, now Time, cost int64) Verdict {
	if f.unlimited {
		return unlimitedVerdict()
	}
	_, used := s.live(f.clamp(s, now))
	if f.fits(used, cost) {
		return f.verdict(&s, now, cost, cost, true)
	}
	return f.verdict(&s, now, cost, 0, false)
}

// Refuse records that cost was refused by another limit. Refused requests are not
// in flight, so nothing changes.
func (f *InFlight) Refuse(*InFlightState, Time, int64) {}

// Finish gives back what is held under the number permit and reports whether anything was.
// Finishing twice, or after the time-out, changes nothing.
func (f *InFlight) Finish(s *InFlightState, permit uint64) bool {
	before := len(s.permits)
	s.permits = slices.DeleteFunc(s.permits, func(p heldPermit) bool {
		if p.permit != permit {
			return false
		}
		s.used -= p.cost
		return true
	})
	return len(s.permits) != before
}

// Keep has what is held under the number permit expire a whole time-out from now, and reports whether anything is held. It
// never expires sooner than before.
func (f *InFlight) Keep(s *InFlightState, now Time, permit uint64) bool {
	at := f.clamp(*s, now)
	kept := false
	for i := range s.permits {
		if p := &s.permits[i]; p.permit == permit && p.expires > at {
			p.expires, kept = max(p.expires, at.Add(f.timeout)), true
		}
	}
	if kept {
		s.latest = at
		slices.SortStableFunc(s.permits, func(a, b heldPermit) int { return cmp.Compare(a.expires, b.expires) })
	}
	return kept
}

// Fresh says whether s equals the state of a key that was never seen.
func (f *InFlight) Fresh(s InFlightState, now Time) bool {
	expired, _ := s.live(f.clamp(s, now))
	return expired == len(s.permits)
}

// Convert carries s over from another policy: permits stay held, with the time-outs that they
// were given. s must not be used afterwards.
func (f *InFlight) Convert(s InFlightState, from *InFlight, now Time) InFlightState {
	if from.Fresh(s, now) {
		return InFlightState{}
	}
	return s
}

// Bytes is the memory that s refers to, beyond its own size.
func (s *InFlightState) Bytes() int { return cap(s.permits) * int(unsafe.Sizeof(heldPermit{})) }

// Clone returns a copy of s that shares no memory with it.
func (s *InFlightState) Clone() InFlightState {
	c := *s
	c.permits = slices.Clone(s.permits)
	return c
}

func (f *InFlight) clamp(s InFlightState, now Time) Time { return max(now, 0, s.latest) }

func (f *InFlight) fits(used, cost int64) bool { return cost <= f.quota && used <= f.quota-cost }

// live returns how many entries have expired at now, and the cost of the others.
func (s *InFlightState) live(now Time) (expired int, used int64) {
	used = s.used
	for expired < len(s.permits) && s.permits[expired].expires <= now {
		used -= s.permits[expired].cost
		expired++
	}
	return expired, used
}

// verdict describes s after extra more was taken, which is what a Peek would take.
func (f *InFlight) verdict(s *InFlightState, now Time, cost, extra int64, fits bool) Verdict {
	now = max(now, 0)
	at := f.clamp(*s, now)
	expired, used := s.live(at)
	v := Verdict{Allowed: fits, Remaining: max(0, f.quota-addCounts(used, extra))}
	var last Time
	if expired < len(s.permits) {
		last = s.permits[len(s.permits)-1].expires
	}
	if extra > 0 {
		last = max(last, at.Add(f.timeout))
	}
	v.ResetAfter = waitUntil(last, now)
	if fits {
		return v
	}
	if cost > f.quota {
		v.Reason, v.RetryAfter = ReasonCost, Never
		return v
	}
	v.Reason = ReasonConcurrency
	for i := expired; i < len(s.permits) && used > f.quota-cost; i++ {
		used -= s.permits[i].cost
		v.RetryAfter = waitUntil(s.permits[i].expires, now)
	}
	return v
}
