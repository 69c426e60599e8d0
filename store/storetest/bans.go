package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// banned is a limit with a ban by attempts in words: it remembers each attempt.
type banned struct {
	most     int64 // attempts in a period
	period   time.Duration
	ban      time.Duration
	quota    int64 // of the limit, which nothing comes back to
	begin    limit.Time
	attempts int64
	until    limit.Time // banned; 0 = not
}

// attempt returns whether a request is admitted, and otherwise why not.
func (b *banned) attempt(now limit.Time, cost int64) (allowed bool, why limit.Reason, wait time.Duration) {
	if b.until > 0 && now >= b.until || now >= b.begin.Add(b.period) && b.until == 0 {
		b.begin, b.attempts, b.until = now, 0, 0
	}
	over := now >= b.begin.Add(b.period) // the period is, the ban is not
	if b.attempts += cost; b.attempts > b.most {
		b.until = b.begin.Add(b.period + b.ban)
	}
	switch {
	case cost > b.most:
		return false, limit.ReasonCost, limit.Never // however long it waits
	case over:
		return false, limit.ReasonBanned, time.Duration(b.until - now)
	case b.until > 0:
		return false, limit.ReasonRate, time.Duration(b.until - now)
	case cost > b.quota:
		return false, limit.ReasonNone, 0 // by the limit itself
	}
	b.quota -= cost
	return true, limit.ReasonNone, 0
}

// bans takes from a limit and the counter of attempts behind its ban together, as the engine
// does, at random times.
func bans(h *harness) {
	for seed := range seeds(h, h.Options) {
		r := rand.New(rand.NewPCG(seed, 77))
		b := banned{most: 1 + r.Int64N(6), period: time.Duration(1+r.IntN(20)) * time.Second, ban: time.Duration(1+r.IntN(60)) * time.Second, quota: 5 + r.Int64N(60)}
		name := fmt.Sprint(seed)
		of := h.bind("limit "+name, limit.Policy{Burst: b.quota})
		attempts := h.bind("ban "+name, limit.Policy{
			Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: b.most, Period: b.period}, Align: limit.AlignFirstHit, CountRefused: true, Ban: b.ban,
		})
		for step := range 120 {
			cost := int64(1)
			if r.IntN(8) == 0 {
				cost += r.Int64N(b.most + 1)
			}
			charges := []store.Charge{charge(of, "k", cost), charge(attempts, "k", cost)}
			allowed := h.take(charges...)
			want, why, wait := b.attempt(h.now(), cost)
			if v := charges[1].Verdict; allowed != want || v.Allowed != (why == limit.ReasonNone) || v.Reason != why || v.RetryAfter != wait {
				h.Fatalf("seed %d, step %d, cost %d: admitted %v, the ban says %+v, want %v, %v, %v: %+v", seed, step, cost, allowed, v, want, why, wait, b)
			}
			h.wantRemaining(of, "k", b.quota)
			switch r.IntN(6) {
			case 0:
				h.advance(time.Duration(r.Int64N(int64(b.period))))
			case 1:
				h.advance(b.period)
			case 2:
				if now := h.now(); now < b.until {
					h.advance(time.Duration(b.until-now) - h.Resolution*time.Duration(r.IntN(2)))
				}
			}
		}
	}
}

// strangeCounters belong to no store.
type strangeCounters struct{}

func (strangeCounters) Spec() store.Spec { return store.Spec{ID: "strange", Policy: five} }

func countedWaits(h *harness) {
	room := h.bind("room", limit.Policy{Burst: 1 << 30})
	for name, p := range policies() {
		if !p.CountRefused || p.Ban > 0 {
			continue
		}
		for _, beside := range []bool{false, true} {
			r := rand.New(rand.NewPCG(uint64(len(name)), 78))
			c := h.bind(fmt.Sprintf("%s %v", name, beside), p)
			take := func(cost int64) (bool, limit.Verdict) {
				charges := []store.Charge{charge(c, "k", cost)}
				if beside {
					charges = append(charges, charge(room, "k", cost))
				}
				return h.take(charges...), charges[0].Verdict
			}
			refused := 0
			for range 120 {
				cost := 1 + r.Int64N(3)
				ok, v := take(cost)
				if ok {
					h.advance(time.Duration(r.Int64N(int64(time.Second))))
					continue
				}
				refused++
				now := h.clock.Load()
				for _, early := range []time.Duration{h.Resolution, 0} {
					h.clock.Store(now)
					h.advance(v.RetryAfter - early)
					// A peek counts nothing.
					if fits, err := h.store.Peek(context.Background(), []store.Charge{charge(c, "k", cost)}); err != nil || fits != (early == 0) {
						h.Fatalf("%s, beside another %v, cost %d: told to come after %v, and %v before that it fits: %v, %v", name, beside, cost, v.RetryAfter, early, fits, err)
					}
				}
				if r.IntN(2) == 0 {
					h.clock.Store(now)
				}
			}
			if refused < 30 {
				h.Errorf("%s: %d refusals", name, refused)
			}
		}
	}
}
