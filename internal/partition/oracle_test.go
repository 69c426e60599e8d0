package partition

import (
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// splitOracle is a split limit as its documentation says it, token by token: a list of
// every token of the limit, which is searched each time.
type splitOracle struct {
	window limit.Time
	spread limit.Time
	eras   []oracleEra
	used   limit.Time // due of the latest that was used, plus 1
}

type oracleEra struct {
	terms Terms
	begin limit.Time
	quota int64
	due   []limit.Time // of own tokens from begin on, ascending
}

var splitHistories = flag.Uint64("split-histories", 100, "random histories of a split limit to play against the list of tokens")

const oracleSpan = 40 * ms

func (o *splitOracle) era(terms Terms, begin limit.Time, quota int64) oracleEra {
	e := oracleEra{terms: terms, begin: begin, quota: quota}
	if terms.Total.Count == 0 {
		return e
	}
	g := int64(stride(uint64(terms.Part.Of)))
	for c := int64(0); ; c++ {
		due := limit.Time((c*int64(terms.Total.Period) + terms.Total.Count - 1) / terms.Total.Count)
		if due > oracleSpan {
			return e
		}
		unit := c * g % terms.Part.Of
		if due >= begin && unit >= terms.Part.First && unit < terms.Part.First+terms.Part.Weight {
			e.due = append(e.due, due)
		}
	}
}

func (o *splitOracle) open(due limit.Time) limit.Time {
	if o.window == 0 {
		return due
	}
	start := due / o.window * o.window
	return start + (due-start)*o.spread/SpreadWhole
}

func (e *oracleEra) lapse(window, due limit.Time) limit.Time {
	t := limit.Time(math.MaxInt64)
	if window > 0 {
		t = due/window*window + window
	}
	if e.terms.Burst > 0 {
		t = min(t, due+limit.Time(e.terms.Burst*int64(e.terms.Total.Period)/e.terms.Total.Count))
	}
	return t
}

// usable returns the own tokens of an era that are not used and good at now.
func (o *splitOracle) usable(i int, now limit.Time) []limit.Time {
	e, end := &o.eras[i], limit.Time(math.MaxInt64)
	if i+1 < len(o.eras) {
		end = o.eras[i+1].begin
	}
	// Who is due first lapses first.
	first := sort.Search(len(e.due), func(k int) bool { return e.due[k] >= o.used && now < e.lapse(o.window, e.due[k]) })
	last := sort.Search(len(e.due), func(k int) bool { return e.due[k] >= end })
	return e.due[first:max(first, last)]
}

func (o *splitOracle) allow(now limit.Time, cost int) bool {
	for i := range o.eras {
		left := o.usable(i, now)
		if int64(cost) > o.eras[i].quota || len(left) < cost {
			continue
		}
		last := left[cost-1]
		if o.open(last) > now {
			return false
		}
		o.used = last + 1
		return true
	}
	return false
}

func (o *splitOracle) remaining(now limit.Time) (n int64) {
	for i := range o.eras {
		for _, due := range o.usable(i, now) {
			if o.open(due) <= now {
				n++
			}
		}
	}
	return n
}

// earliest tries every moment at which a token opens.
func (o *splitOracle) earliest(now limit.Time, ahead, cost int) limit.Time {
	c := *o
	moments := []limit.Time{now}
	for _, e := range c.eras {
		for _, due := range e.due {
			moments = append(moments, max(now, c.open(due)))
		}
	}
	slices.Sort(moments)
	for _, at := range slices.Compact(moments) {
		for ahead > 0 && c.allow(at, 1) {
			ahead--
		}
		if ahead == 0 && c.allow(at, cost) {
			return at
		}
	}
	return math.MaxInt64
}

// line serves requests with these costs in order, each as soon as possible.
func (o *splitOracle) line(now limit.Time, costs []int) (times []limit.Time) {
	c := *o
	for _, cost := range costs {
		at := c.earliest(now, 0, cost)
		if at == math.MaxInt64 {
			return times // no request overtakes one that cannot be served
		}
		c.allow(at, cost)
		times, now = append(times, at), at
	}
	return times
}

func behind(s *Limiter, now limit.Time, costs []int) (times []limit.Time) {
	line := s.Front(now)
	for _, cost := range costs {
		var at limit.Time
		if at, line = s.Behind(line, int64(cost)); at == math.MaxInt64 || at > oracleSpan {
			break // or beyond what the oracle has listed
		}
		times = append(times, at)
	}
	return times
}

// says reports whether a refusal is right: what remains to a request that is first, when to try
// again, or that the cost is above all quotas, and when all used tokens have expired.
func (o *splitOracle) says(v limit.Verdict, now limit.Time, ahead int, cost int64, earliest limit.Time, quota int64) bool {
	remaining := int64(0)
	if ahead == 0 {
		remaining = o.remaining(now)
	}
	retry, reason := limit.Never, limit.ReasonRate
	if cost > quota && quota > 0 {
		reason = limit.ReasonCost
	} else if earliest != math.MaxInt64 {
		retry = time.Duration(earliest - now)
	}
	reset := v.ResetAfter >= 0
	if len(o.eras) == 1 && o.eras[0].begin == 0 && len(o.eras[0].due) > 0 {
		want := limit.Time(0)
		if o.used > 0 {
			want = max(0, o.eras[0].lapse(o.window, o.used-1)-now)
		}
		reset = v.ResetAfter == time.Duration(want)
	}
	return reset && !v.Allowed && v.Remaining == remaining && v.RetryAfter == retry && v.Reason == reason
}

// change puts e at the end. What has lapsed by now is forgotten, in whole eras: it does
// not come back with a time that goes back.
func (o *splitOracle) change(now limit.Time, e oracleEra) {
	last := &o.eras[len(o.eras)-1]
	for len(o.eras) > 1 && last.begin >= e.begin {
		o.eras = o.eras[:len(o.eras)-1]
		last = &o.eras[len(o.eras)-1]
	}
	o.eras = append(o.eras, e)
	for i := 0; i < len(o.eras)-1 && len(o.usable(i, now)) == 0; i++ {
		o.eras[i].due = nil
	}
}

// TestSplitAgainstOracle plays random histories of takes, peeks, changes of terms at once
// and ahead, and times that go back, in every mode, against the list of tokens.
func TestSplitAgainstOracle(t *testing.T) {
	admitted, refused, changed := 0, 0, 0
	for seed := range *splitHistories {
		rng := rand.New(rand.NewPCG(seed, 9))
		var opt Options
		o := splitOracle{spread: SpreadWhole}
		if seed%2 == 1 {
			opt = Options{Window: time.Duration(1+rng.IntN(3)) * time.Millisecond, Pacing: Pacing(rng.IntN(2))}
			o.window = limit.Time(opt.Window)
			o.spread = limit.Time(opt.Pacing) * SpreadWhole
		}
		terms := randomTerms(rng, opt)
		s := newSplit(t, opt, terms)
		o.eras = []oracleEra{o.era(terms, 0, s.eras[0].quota)}
		now := limit.Time(0)
		for step := 0; now < oracleSpan/2; step++ {
			now += limit.Time(rng.Int64N(int64(ms) / 3))
			at := now
			if rng.IntN(8) == 0 {
				at -= min(at, limit.Time(rng.Int64N(int64(2*ms))))
			}
			cost := 1 + rng.IntN(3)
			// Costs of 1 ahead take all that is good; those above 1 can leave some behind.
			ahead := rng.IntN(6)
			if want, got := o.earliest(at, ahead, cost), s.Earliest(at, int64(ahead), int64(cost)); want != got {
				if want == math.MaxInt64 && got > oracleSpan/2 {
					continue // beyond what the oracle has listed
				}
				exact := opt.Window == 0 && len(o.eras) == 1 || cost == 1
				if exact || got > want && want != math.MaxInt64 {
					t.Fatalf("seed %d step %d: Earliest(%d, %d, %d) is %d, want %d", seed, step, at, ahead, cost, got, want)
				}
			}
			var costs []int
			for range rng.IntN(6) {
				costs = append(costs, 1+rng.IntN(3))
			}
			if want, got := o.line(at, costs), behind(s, at, costs); !slices.Equal(want, got) {
				t.Fatalf("seed %d step %d: a line of %v at %d has %v, want %v", seed, step, costs, at, got, want)
			}
			if want, got := o.remaining(at), s.Remaining(at); want != got {
				t.Fatalf("seed %d step %d: Remaining(%d) is %d, want %d", seed, step, at, got, want)
			}
			if v, earliest := s.Verdict(at, false, int64(ahead), int64(cost)), s.Earliest(at, int64(ahead), int64(cost)); !o.says(v, at, ahead, int64(cost), earliest, s.Quota()) {
				t.Fatalf("seed %d step %d: at %d the verdict on %d behind %d is %+v; %d remain, and it comes at %d", seed, step, at, cost, ahead, v, o.remaining(at), earliest)
			}
			want, opens := o.allow(at, cost), s.Opens()
			got := s.Allow(at, int64(cost))
			if want != got || got && at < opens {
				t.Fatalf("seed %d step %d: Allow(%d, %d) is %v, want %v; opens at %d", seed, step, at, cost, got, want, opens)
			}
			if got {
				admitted++
			} else {
				refused++
			}
			if rng.IntN(40) != 0 || len(o.eras) > maxEras/2 {
				continue
			}
			terms = randomTerms(rng, opt)
			from := limit.Time(0)
			if rng.IntN(2) == 0 {
				from = now + limit.Time(rng.Int64N(int64(4*ms))) - 2*ms
			}
			if err := s.Change(now, terms, from); err != nil {
				t.Fatal(err)
			}
			if from <= 0 {
				from = now
			}
			from = max(from, o.used)
			o.change(now, o.era(terms, from, s.eras[len(s.eras)-1].quota))
			changed++
		}
	}
	if admitted < int(10**splitHistories) || refused < int(10**splitHistories) || changed < int(*splitHistories/2) {
		t.Errorf("%d admitted, %d refused, %d changes: the histories are too tame", admitted, refused, changed)
	}
}

func randomTerms(rng *rand.Rand, o Options) Terms {
	terms := Terms{Total: limit.Rate{Count: rng.Int64N(30), Period: time.Duration(1 + rng.Int64N(int64(2*ms)))}}
	terms.Total.Period = max(terms.Total.Period, 300*time.Microsecond)
	terms.Part.Of = 1 + rng.Int64N(8)
	terms.Part.Weight = rng.Int64N(terms.Part.Of + 1)
	terms.Part.First = rng.Int64N(terms.Part.Of - terms.Part.Weight + 1)
	if terms.Burst = rng.Int64N(20); o.Window == 0 {
		terms.Burst++
	}
	return terms
}

// FuzzSplit: whatever is asked and changed, with any numbers, nothing panics, each
// admission uses a token that is due after all that were used before, and the moment that
// Earliest says is the first at which Allow admits.
func FuzzSplit(f *testing.F) {
	f.Add(int64(10), int64(1e9), int64(1), int64(2), int64(5), int64(3), []byte{0, 1, 2, 3, 200, 90})
	f.Add(int64(1)<<62, int64(1)<<62, int64(0), int64(65536), int64(65536), int64(1)<<62, []byte{9, 9, 9, 250, 251, 7})
	f.Add(int64(1), int64(math.MaxInt64), int64(0), int64(1), int64(1), int64(1), []byte{255, 254, 253, 0, 0, 0})
	f.Fuzz(func(t *testing.T, count, period, first, weight, of, burst int64, steps []byte) {
		terms := Terms{Total: limit.Rate{Count: count, Period: time.Duration(period)}, Part: Part{first, weight, of}, Burst: burst}
		for _, o := range []Options{{}, {Window: time.Second}, {Window: time.Millisecond, Pacing: PaceEven}, {Window: time.Second, Pacing: PacePID}} {
			s, err := New(o, terms)
			if err != nil {
				continue
			}
			play(t, s, terms, steps)
		}
	})
}

func play(t *testing.T, s *Limiter, terms Terms, steps []byte) {
	now := limit.Time(0)
	for i, b := range steps {
		grow := limit.Time(1) << (b % 63)
		if now = now.Add(time.Duration(grow)); b&128 != 0 {
			now -= grow / 2
		}
		cost := int64(1) << (i % 63)
		switch at := s.Earliest(now, int64(b), 1); {
		case at < present(now):
			t.Fatalf("Earliest(%d) is %d", now, at)
		case at < math.MaxInt64 && s.pace == nil:
			if now = present(now); s.Earliest(now, 0, 1) > now && s.Allow(now, 1) {
				t.Fatalf("admitted at %d, before %d", now, at)
			}
			if at = s.Earliest(now, 0, 1); !s.Allow(at, 1) {
				t.Fatalf("refused at %d, which Earliest says", at)
			}
		}
		before := s.used
		if s.Allow(now, cost) && s.used <= before {
			t.Fatalf("a token was used twice at %d", now)
		}
		if v := s.Verdict(now, false, int64(b), cost); v.RetryAfter < 0 || v.ResetAfter < 0 || v.Remaining < 0 {
			t.Fatalf("verdict %+v", v)
		}
		if r := s.Result(); r.Quota < 0 || r.Window < 0 {
			t.Fatalf("result %+v", r)
		}
		if b%5 == 0 {
			next := terms
			next.Total.Count = terms.Total.Count >> (b % 60)
			_ = s.Change(now, next, now-limit.Time(b)+limit.Time(i)) // may be one too many
		}
	}
}
