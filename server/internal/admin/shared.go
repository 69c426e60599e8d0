package admin

import "github.com/prometheus/client_golang/prometheus"

// sharedDescs describe the metrics of a store outside of this process. They are
// sent only where there is one.
type sharedDescs struct {
	up, calls, failures, timeouts, local, batch, breakers, instances, roundTrip, notReturned *prometheus.Desc
}

func (d *sharedDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{
		d.up, d.calls, d.failures, d.timeouts, d.local, d.batch, d.breakers, d.instances, d.roundTrip, d.notReturned,
	} {
		ch <- one
	}
}

func (d *sharedDescs) collect(to metrics, s *SharedStore, notReturned uint64) {
	to.truth(d.up, s.Up)
	to.count(d.calls, s.Calls)
	to.count(d.failures, s.Failures)
	to.count(d.timeouts, s.Timeouts)
	to.count(d.local, s.LocalRefusals)
	to.gauge(d.breakers, float64(s.BreakersOpen))
	to.gauge(d.instances, float64(s.Instances))
	to.gauge(d.roundTrip, s.RoundTrip)
	to.count(d.notReturned, notReturned)
	to <- batchSizes(d.batch, s)
}

// batchSizes is a histogram of the sizes. Its buckets are those that the store
// counts by: powers of two.
func batchSizes(d *prometheus.Desc, s *SharedStore) prometheus.Metric {
	last := len(s.BatchSizes) - 1
	buckets := make(map[float64]uint64, last)
	total := uint64(0)
	for i, n := range s.BatchSizes {
		total += n
		if i < last {
			buckets[float64(int(1)<<i)] = total
		}
	}
	return prometheus.MustNewConstHistogram(d, total, float64(s.Called), buckets)
}
