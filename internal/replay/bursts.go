package replay

import (
	"maps"
	"slices"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// maxFitted bounds the keys of all limits whose bursts are followed. Not more: they take some 200 bytes each. It is
// a variable for tests alone.
var maxFitted = 1 << 20

// fitted are the rates for which bursts are told: half of the limit's, the limit's own, and twice as much.
const fitted = 3

// Bursts say which burst a token bucket would have needed to refuse nothing, were it the only limit.
type Bursts struct {
	// Of says whose they are: "" for the limit's own rate, or the override.
	Of string `json:"of,omitempty"`
	// Keys are those that came. Left are requests of further keys, which are not in the figures.
	Keys int64 `json:"keys"`
	Left int64 `json:"left,omitempty"`
	// Rates are half of the rate, the rate, and twice as much.
	Rates []RateBursts `json:"rates"`
}

// RateBursts are the smallest bursts with which so many of the keys would have been refused nothing at a rate.
type RateBursts struct {
	Rate   string `json:"rate"`
	Half   int64  `json:"half"`
	Nine   int64  `json:"nine_in_ten"`
	Ninety int64  `json:"99_in_100"`
	All    int64  `json:"all"`
}

// bursts follow what the keys of one bucket's policy would need. A bucket that is never short says by the
// least that was left how large it had to be, so the arithmetic is that of the limit itself.
type bursts struct {
	rates   [fitted]limit.Rate
	buckets [fitted]limit.Bucket // of the largest size that there is
	keys    map[string]*need
	left    int64
}

// need is that of one key.
type need struct {
	states [fitted]limit.BucketState
	bursts [fitted]int64
}

// fits keeps bursts by the index of the variant, for no more keys than maxFitted.
type fits struct {
	of    map[int]*bursts
	known int
}

// note takes a request that met a limit. Requests that other limits refused count as well: those might have been
// admitted by other bursts.
func (f *fits) note(h *engine.Hit, r *limit.Result, now limit.Time, cost int64) {
	if f == nil || h.Variant.Policy.Algorithm != limit.TokenBucket || r.Reason == limit.ReasonMissing {
		return
	}
	b := f.of[h.Variant.Index]
	if b == nil {
		if b = newBursts(&h.Variant.Policy); b == nil {
			return
		}
		f.of[h.Variant.Index] = b
	}
	n := b.keys[string(h.Key())]
	if n == nil {
		if f.known == maxFitted {
			b.left++
			return
		}
		f.known++
		n = &need{}
		b.keys[string(h.Key())] = n
	}
	for i := range fitted {
		v := b.buckets[i].Take(&n.states[i], now, cost)
		n.bursts[i] = max(n.bursts[i], limit.MaxCount-v.Remaining)
	}
}

// newBursts returns nil for a policy that has no rate.
func newBursts(p *limit.Policy) *bursts {
	const most = 1 << 61 // what can be doubled
	if p.Unlimited || p.Rate.Count <= 0 || p.Rate.Count > most || p.Rate.Period > most {
		return nil
	}
	b := &bursts{keys: map[string]*need{}, rates: [fitted]limit.Rate{
		{Count: p.Rate.Count, Period: 2 * p.Rate.Period}, p.Rate, {Count: 2 * p.Rate.Count, Period: p.Rate.Period},
	}}
	if half := &b.rates[0]; half.Count%2 == 0 {
		half.Count, half.Period = half.Count/2, p.Rate.Period
	}
	for i, rate := range b.rates {
		b.buckets[i] = limit.NewBucket(limit.Policy{Rate: rate, Burst: limit.MaxCount})
	}
	return b
}

// report says what the variants of a limit would need; nil when nothing was followed.
func (f *fits) report(l *rules.Limit) []Bursts {
	if f == nil {
		return nil
	}
	variants := []*rules.Variant{&l.Base}
	for i := range l.Overrides {
		variants = append(variants, &l.Overrides[i].Variant)
	}
	var all []Bursts
	for _, v := range variants {
		b := f.of[v.Index]
		if b == nil {
			continue
		}
		out := Bursts{Of: v.Detail, Keys: int64(len(b.keys)), Left: b.left}
		for i, rate := range b.rates {
			var needs []int64
			for n := range maps.Values(b.keys) {
				needs = append(needs, n.bursts[i])
			}
			slices.Sort(needs)
			of := func(hundredths int) int64 { return needs[(len(needs)*hundredths+99)/100-1] }
			out.Rates = append(out.Rates, RateBursts{rate.String(), of(50), of(90), of(99), of(100)})
		}
		all = append(all, out)
	}
	return all
}
