package server

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/estimate"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// openEstimates returns what learns costs, and learns nothing yet.
func openEstimates(records store.Records, st *storage, o *Options) (*estimate.Estimator, error) {
	options := estimate.Options{Records: records, Logger: o.Logger}
	if st.shared != nil {
		options.Instances = func() int { return st.shared.Stats().Instances }
	}
	e, err := estimate.New(options)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return e, nil
}

// learn makes the section estimates of set hold.
func (c *config) learn(set *rules.Set) {
	e := set.Estimates()
	if err := c.estimate(estimate.Config{By: e.By, Declared: e.Declared, Quantile: e.Quantile, Start: e.Start}); err != nil {
		c.log.Error("costs are estimated as before", "error", err) // the files were checked: it cannot be
	}
}

// estimateMetrics are the metrics of estimates.
type estimateMetrics struct{ *estimate.Estimator }

var (
	descEstimates = prometheus.NewDesc("stint_estimates_total", "Costs that were estimated and reserved, by what they were learned from: own, model, or start.", []string{"from"}, nil)
	descWhole     = prometheus.NewDesc("stint_estimates_whole_total", "Those of them for which all that the request declared was reserved, because a budget was near its end.", nil, nil)
	descSettled   = prometheus.NewDesc("stint_estimates_settled_total", "Estimates whose actual cost is known: low were below it.", []string{"result"}, nil)
	descError     = prometheus.NewDesc("stint_estimates_error_cost_total", "The sum of what estimates were below (under) and above (over) the actual cost.", []string{"direction"}, nil)
	descActual    = prometheus.NewDesc("stint_estimates_actual_cost_total", "The sum of the actual costs of what was estimated.", nil, nil)
	descShared    = prometheus.NewDesc("stint_estimates_shared_total", "Costs that were learned by the model alone, because too many have estimates of their own.", nil, nil)
	descLearned   = prometheus.NewDesc("stint_estimates_learned", "How many have an estimate of their own, and how many models have one.", []string{"of"}, nil)
	descOwing     = prometheus.NewDesc("stint_estimates_open", "Open reservations of this process that are likely to cost more than is reserved.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (estimateMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descEstimates, descWhole, descSettled, descError, descActual, descShared, descLearned, descOwing} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (m estimateMetrics) Collect(ch chan<- prometheus.Metric) {
	s := m.Stats()
	count := func(d *prometheus.Desc, n float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, n, labels...)
	}
	gauge := func(d *prometheus.Desc, n int, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(n), labels...)
	}
	for _, from := range []estimate.From{estimate.Own, estimate.Model, estimate.Start} {
		count(descEstimates, float64(s.Estimates[from]), string(from))
	}
	count(descWhole, float64(s.Whole))
	count(descSettled, float64(s.Low), "low")
	count(descSettled, float64(s.Settled-s.Low), "enough")
	count(descError, s.Under, "under")
	count(descError, s.Over, "over")
	count(descActual, s.Consumed)
	count(descShared, float64(s.Shared))
	gauge(descLearned, s.Keys, "own")
	gauge(descLearned, s.Models, "model")
	gauge(descOwing, s.Open)
}
