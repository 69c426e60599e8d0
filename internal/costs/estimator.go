package costs

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/quantile"
)

// dearest is the largest cost that is told from larger ones: no request is expected to use more CPU.
const dearest = 36 * time.Minute

// Options set up an [Estimator]. The zero value has the defaults.
type Options struct {
	// Quantile of the recent costs that is predicted, above 0 and below 1; 0 is 0.9. Not
	// lower: a route whose tail is dear would start too many at once, and the surcharge comes
	// only when they have run. Not higher: the refund comes late as well, and a queue that is
	// bounded by cost would refuse for a cost that hardly occurs.
	Quantile float64

	// HalfLife is the number of further samples after which a sample counts half; 0 is 128,
	// at least 8. At a quantile of 0.9 a rise is followed after about 20 samples and a fall
	// after about 430: the cautious side is the quick one. Not smaller: a p90 of fewer
	// samples is noise.
	HalfLife int

	// Default is predicted for a signature of which no request has finished yet; 0 is 5 ms.
	Default time.Duration

	// Min and Max bound every prediction; 0 is 1 us and one minute.
	Min, Max time.Duration

	// StaleAfter is the time without a sample after which a signature's statistics are
	// stale: its dearest sample is predicted then, as in Kubernetes' work estimator. 0 is
	// ten minutes.
	StaleAfter time.Duration

	// MaxSignatures bounds the signatures that have statistics of their own; 0 is 1,024,
	// which is 3.6 MB at most. All others share one entry.
	MaxSignatures int
}

// withDefaults returns o with its zero fields filled in.
func (o Options) withDefaults() (Options, error) {
	fill := func(d *time.Duration, usual time.Duration) {
		if *d == 0 {
			*d = usual
		}
	}
	fill(&o.Default, 5*time.Millisecond)
	fill(&o.Min, time.Microsecond)
	fill(&o.Max, time.Minute)
	fill(&o.StaleAfter, 10*time.Minute)
	if o.Quantile == 0 {
		o.Quantile = 0.9
	}
	if o.HalfLife == 0 {
		o.HalfLife = 128
	}
	if o.MaxSignatures == 0 {
		o.MaxSignatures = 1024
	}
	switch {
	case !(o.Quantile > 0 && o.Quantile < 1):
		return o, fmt.Errorf("costs: a quantile of %v: it is above 0 and below 1, such as 0.9", o.Quantile)
	case o.HalfLife < 8:
		return o, fmt.Errorf("costs: a half-life of %d samples: it is at least 8", o.HalfLife)
	case o.Min < 0 || o.Max < o.Min:
		return o, fmt.Errorf("costs: predictions between %v and %v: the bounds are at least 0 and in order", o.Min, o.Max)
	case o.Default < 0 || o.StaleAfter < 0 || o.MaxSignatures < 0:
		return o, fmt.Errorf("costs: default %v, stale after %v, %d signatures: none is negative", o.Default, o.StaleAfter, o.MaxSignatures)
	}
	return o, nil
}

// Estimator predicts the cost of requests from those of the same signature that finished. It is
// safe for concurrent use. Build it with [New].
type Estimator struct {
	options Options
	growth  float64 // weight of a sample in terms of the one before it
	begin   time.Time

	entries  sync.Map // signature -> *entry
	overflow *entry

	mu    sync.Mutex // guards what follows, and additions to entries
	count int
	swept time.Duration // when entries were last swept

	stats counters
}

// entry has the statistics of one signature.
type entry struct {
	predicted atomic.Int64 // what Predict says, 0 = nothing is known
	last      atomic.Int64 // when the last sample came

	// asked is when the first prediction was made since a request of it started or finished; 0 = none.
	// Where that is long ago, its price may have shut it out.
	asked atomic.Int64
	asks  atomic.Int64 // predictions since then

	mu        sync.Mutex
	histogram quantile.Histogram // of microseconds
	fade      float64            // halvings of the price at which the next sample's request started
}

// leastHalving is the time in which the price of a signature that is shut out halves, or four times the
// price if that is longer: so long a request waits at most by default before it is refused, and in
// shorter times a request that was shut out by chance would come in cheaply.
const leastHalving = time.Second

// halvings is how often a price has halved because requests ask and none starts, at most once for each.
func (s *entry) halvings(now, price time.Duration) float64 {
	asked := s.asked.Load()
	half := float64(max(leastHalving, 4*price))
	if asked == 0 || float64(int64(now)-asked) < half {
		return 0
	}
	return min(float64(int64(now)-asked)/half, float64(s.asks.Load()))
}

// New returns an estimator without statistics.
func New(o Options) (*Estimator, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Estimator{
		options: o, growth: quantile.Growth(o.HalfLife), begin: time.Now(), overflow: &entry{},
	}, nil
}

// Predict returns what a request of this signature is expected to cost.
func (e *Estimator) Predict(signature string) time.Duration {
	return e.PredictAt(time.Since(e.begin), signature)
}

// PredictAt is Predict at a time since the estimator was built.
func (e *Estimator) PredictAt(now time.Duration, signature string) time.Duration {
	s := e.find(signature)
	known := time.Duration(s.predicted.Load())
	switch {
	case known == 0:
		e.stats.unknown.Add(1)
		return e.bound(e.options.Default)
	case now-time.Duration(s.last.Load()) > e.options.StaleAfter:
		e.stats.stale.Add(1)
		s.mu.Lock()
		known = max(known, e.bound(time.Duration(s.histogram.Max())*time.Microsecond))
		s.mu.Unlock()
	}
	if s == e.overflow {
		return known
	}
	if s.asked.Load() == 0 {
		s.asked.CompareAndSwap(0, max(1, int64(now)))
		return known
	}
	s.asks.Add(1)
	if n := s.halvings(now, known); n > 0 {
		return e.bound(time.Duration(float64(known) * math.Exp2(-n)))
	}
	return known
}

// Started learns that a request of this signature runs: it is not shut out by its price.
func (e *Estimator) Started(signature string) { e.StartedAt(time.Since(e.begin), signature) }

// StartedAt is Started at a time since the estimator was built.
func (e *Estimator) StartedAt(now time.Duration, signature string) {
	s := e.find(signature)
	if n := s.halvings(now, time.Duration(s.predicted.Load())); n > 0 {
		s.mu.Lock()
		s.fade = max(s.fade, n)
		s.mu.Unlock()
	}
	s.started()
}

func (s *entry) started() {
	s.asked.Store(0)
	s.asks.Store(0)
}

// Observe learns that a request of this signature cost actual, for which predicted was
// predicted. Predicted only enters the statistics of the error: it is 0 where nobody predicted.
func (e *Estimator) Observe(signature string, predicted, actual time.Duration) {
	e.ObserveAt(time.Since(e.begin), signature, predicted, actual)
}

// ObserveAt is Observe at a time since the estimator was built.
func (e *Estimator) ObserveAt(now time.Duration, signature string, predicted, actual time.Duration) {
	actual = max(actual, 0)
	e.stats.observe(max(predicted, 0), actual)
	s := e.own(now, signature)
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := max(s.fade, s.halvings(now, time.Duration(s.predicted.Load()))); n > 0 {
		s.histogram.Fade(math.Exp2(n)) // what was known shut it out
		s.fade = 0
	}
	s.started()
	s.histogram.Add(int64(min(actual, dearest)/time.Microsecond), 1, e.growth, e.options.Quantile)
	s.predicted.Store(int64(max(1, e.bound(time.Duration(s.histogram.Value())*time.Microsecond))))
	s.last.Store(int64(now))
}

// Exceeded learns while a request runs that it has cost soFar already. It matters for signatures
// without statistics: their dear requests would all be taken for the default until the first of
// them has finished. Twice that is predicted: of one that still runs, half is done on average.
func (e *Estimator) Exceeded(signature string, soFar time.Duration) {
	now := time.Since(e.begin)
	s := e.own(now, signature)
	s.mu.Lock()
	defer s.mu.Unlock()
	likely := e.bound(2 * soFar)
	if s.histogram.Empty() && int64(likely) > s.predicted.Load() && soFar > e.options.Default {
		s.predicted.Store(int64(likely))
		s.last.Store(int64(now))
	}
}

func (e *Estimator) bound(d time.Duration) time.Duration {
	return min(max(d, e.options.Min), e.options.Max)
}

// find returns the entry of a signature, or the one that those without share. As long as there
// is room every signature gets an entry with its first sample, so that nothing is known of one
// without.
func (e *Estimator) find(signature string) *entry {
	if s, ok := e.entries.Load(signature); ok {
		return s.(*entry)
	}
	return e.overflow
}

// own returns the entry of a signature, which is added if there is room for it.
func (e *Estimator) own(now time.Duration, signature string) *entry {
	if s, ok := e.entries.Load(signature); ok {
		return s.(*entry)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if s, ok := e.entries.Load(signature); ok {
		return s.(*entry)
	}
	if e.count >= e.options.MaxSignatures {
		e.sweep(now)
	}
	if e.count >= e.options.MaxSignatures {
		e.stats.overflow.Add(1)
		return e.overflow
	}
	s := &entry{}
	e.entries.Store(signature, s)
	e.count++
	return s
}

// sweep removes stale entries, to make room. It goes through all of them, so not more often than
// ten times in StaleAfter, however many new signatures come.
func (e *Estimator) sweep(now time.Duration) {
	if e.swept != 0 && now-e.swept < e.options.StaleAfter/10 {
		return
	}
	e.swept = now
	e.entries.Range(func(key, value any) bool {
		if now-time.Duration(value.(*entry).last.Load()) > e.options.StaleAfter {
			e.entries.Delete(key)
			e.count--
		}
		return true
	})
}
