package lasthour

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// ErrConcurrency says that how long requests ran is not kept.
var ErrConcurrency = errors.New("lasthour: what another number of requests in flight would do is not known: when requests ended is not kept")

// Answer says what another policy would have done.
type Answer struct {
	// From and To say of which time.
	From, To time.Time
	// Asked are the requests, and Refused those that were refused in truth, of all keys.
	Asked, Refused float64
	// Now are those that the first policy refuses when they are played again: it differs from Refused by what is
	// known less exactly, by other limits that charge, and by changes in between. Then are those that the other refuses.
	Now, Then float64
	// Sampling is the standard error of Then because of the keys that are not kept; 0 = all are.
	Sampling float64
	// Keys are those that were played, and KeysRefused those of them of which the other policy refuses a request. The keys
	// that asked most are kept, and one in Part of the others; figures count each of these for as many as they stand for.
	Keys, KeysRefused, Part int
	// Slot is how exactly times are known. Requests of one key within it are played at random times, as of clients that
	// know nothing of each other: a bucket may be off by what it refills in that time.
	Slot time.Duration
}

// mostRequests is about how many requests, or groups of them, are played by a policy. It takes half a second.
const mostRequests = 1 << 20

// played is an entry of some key.
type played struct {
	entry
	key  int
	hash uint64
}

// requests are some of an entry that are played at one time.
type requests struct {
	at      uint32
	key     int
	n, cost int64 // of each
}

// WhatIf plays the requests of the latest time, an hour for 0, by two policies.
func (l *Log) WhatIf(ctx context.Context, now, then limit.Policy, latest time.Duration) (Answer, error) {
	if now.Algorithm == limit.Concurrency || then.Algorithm == limit.Concurrency {
		return Answer{}, ErrConcurrency
	}
	if latest <= 0 || latest > Hour {
		latest = Hour
	}
	list, top, from := l.snapshot(latest)
	keys := len(top)
	part := math.Exp2(float64(bits.OnesCount64(l.mask.Load())))
	at := func(unit uint32) time.Time {
		return time.Unix(0, int64(l.r.start)+int64(unit)*int64(Slot)).UTC()
	}
	width := l.width.Load()
	a := Answer{From: at(from), To: time.Unix(0, int64(l.r.now())).UTC(), Keys: keys, Part: int(part), Slot: time.Duration(width) * Slot}
	ofTop, ofOthers := 0.0, 0.0
	for i := range list {
		a.Refused += float64(list[i].asked - list[i].took)
		if asked := float64(list[i].asked); top[list[i].key] {
			ofTop += asked
		} else {
			ofOthers += asked
		}
	}
	a.Asked = ofTop + ofOthers
	weight := 1.0 // of a request of another key
	if all := l.all.Load(); all != nil {
		a.Asked, a.Refused = all.sum(from / unitsOfAMinute)
		if ofOthers > 0 {
			weight = max(1, (a.Asked-ofTop)/ofOthers)
		}
		a.Sampling = a.Asked - ofTop - weight*ofOthers // where no other is kept, nothing is known of them
	}
	for _, one := range []struct {
		policy limit.Policy
		total  *float64
	}{{now, &a.Now}, {then, &a.Then}} {
		refused, err := play(ctx, list, width, keys, one.policy, l.r.start)
		if err != nil {
			return Answer{}, err
		}
		squares, with := 0.0, 0
		for key, n := range refused {
			if n > 0 {
				with++
			}
			if top[key] {
				*one.total += float64(n)
				continue
			}
			*one.total += float64(n) * weight
			squares += float64(n) * float64(n)
		}
		a.KeysRefused = with
		if ofOthers > 0 {
			a.Sampling = math.Sqrt(squares * weight * (weight - 1))
		}
	}
	return a, nil
}

// snapshot copies what is kept, ascending by time. top says of each key whether it is one of those that asked most.
func (l *Log) snapshot(latest time.Duration) (list []played, top []bool, from uint32) {
	now := l.r.unit()
	from = l.since.Load()
	if n := uint32(latest / Slot); now > n {
		from = max(from, now-n)
	}
	if l.all.Load() != nil { // counts are by the minute
		if from -= from % unitsOfAMinute; from < l.since.Load() {
			from += unitsOfAMinute
		}
	}
	mask := l.mask.Load()
	l.each(func(_ *shard, id name, t *track) {
		if id.hash&mask != 0 && !t.top {
			return
		}
		before := len(list)
		for _, e := range t.entries {
			if e.at >= from {
				list = append(list, played{e, len(top), id.hash})
			}
		}
		if len(list) > before {
			top = append(top, t.top)
		}
	})
	slices.SortStableFunc(list, func(a, b played) int { return cmp.Compare(a.at, b.at) })
	return list, top, from
}

// spread appends the requests of the entries of one slot, ascending by time: at random times, or at regular ones where an
// entry has more requests than parts. A slot has so many units. The times are the same whatever the policy.
func spread(list []requests, slot []played, width, parts uint32) []requests {
	var random rand.PCG
	for i := range slot {
		e := &slot[i]
		random.Seed(e.hash, uint64(e.at))
		n := min(e.asked, parts)
		for j := range n {
			r := requests{at: e.at + uint32(uint64(width)*uint64(j)/uint64(n)), key: e.key, n: int64(e.asked / n), cost: (int64(e.cost) + int64(e.asked)/2) / int64(e.asked)}
			if e.asked <= parts {
				r.at = e.at + uint32(random.Uint64()%uint64(width))
			} else if j < e.asked%n {
				r.n++
			}
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b requests) int { return cmp.Compare(a.at, b.at) })
	return list
}

// play returns how many requests of each key a policy refuses. Buckets are full at the beginning.
func play(ctx context.Context, list []played, width uint32, keys int, policy limit.Policy, start limit.Time) (refused []int64, err error) {
	clock := start
	st := memory.New(memory.Options{Now: func() limit.Time { return clock }, MaxBytes: 256 << 20})
	defer func() { err = errors.Join(err, st.Close()) }()
	counters, err := st.Bind(store.Spec{ID: "what if", Policy: policy})
	if err != nil {
		return nil, fmt.Errorf("lasthour: %w", err)
	}
	refused = make([]int64, keys)
	charges := make([]store.Charge, 1)
	key := make([]byte, 8)
	one := func(r *requests) error {
		clock = max(clock, start+limit.Time(r.at)*limit.Time(Slot))
		binary.LittleEndian.PutUint64(key, uint64(r.key))
		fit := r.n
		if r.cost > 0 {
			charges[0] = store.Charge{Counters: counters, Key: key}
			if _, err := st.Peek(ctx, charges); err != nil {
				return err
			}
			fit = min(r.n, charges[0].Verdict.Remaining/r.cost)
		}
		refused[r.key] += r.n - fit
		over := r.n - fit
		if !policy.CountRefused {
			over = 0 // what is refused takes nothing
		}
		for _, n := range []int64{fit, over} {
			if n == 0 || r.cost == 0 || n > limit.MaxCount/r.cost {
				continue
			}
			charges[0] = store.Charge{Counters: counters, Key: key, Cost: n * r.cost}
			if _, err := st.Take(ctx, charges); err != nil {
				return err
			}
		}
		return nil
	}
	parts := min(width, uint32(1+mostRequests/(1+len(list))))
	var slot []requests
	for rest := list; len(rest) > 0; {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		n := 1
		for n < len(rest) && rest[n].at == rest[0].at {
			n++
		}
		slot = spread(slot[:0], rest[:n], width, parts)
		for i := range slot {
			if err := one(&slot[i]); err != nil {
				return nil, fmt.Errorf("lasthour: %w", err)
			}
		}
		rest = rest[n:]
	}
	return refused, nil
}
