package proxy

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// refusals are the reasons of a refusal at the door, as in metrics.
var refusals = [...]string{"framing", "host", "target", "connection", "upgrade", "method", "fields", "body", "resets", "duplicate"}

// counts are what the proxy has done.
type counts struct {
	own, upstream [5]atomic.Uint64 // answers by the first digit of their status
	cut           atomic.Uint64    // requests without an answer
	refused       [len(refusals)]atomic.Uint64
}

func (c *counts) refuse(r *refusal) {
	for i, reason := range refusals {
		if r.reason == reason {
			c.refused[i].Add(1)
		}
	}
}

func (c *counts) answered(a *reply) {
	class := a.status/100 - 1
	switch {
	case class < 0 || class >= len(c.own):
		c.cut.Add(1)
	case a.forwarded:
		c.upstream[class].Add(1)
	default:
		c.own[class].Add(1)
	}
}

var (
	descRequests      = prometheus.NewDesc("stint_proxy_requests_total", "Requests by the class of their status and by who answered: upstream, or the proxy itself; none when the client went before an answer began.", []string{"status", "by"}, nil)
	descRefused       = prometheus.NewDesc("stint_proxy_refused_requests_total", "Requests refused at the door, before any limit, by what is wrong with them.", []string{"reason"}, nil)
	descUp            = prometheus.NewDesc("stint_proxy_upstream_up", "1 if the upstream is healthy, 0 if it was taken out.", []string{"upstream"}, nil)
	descInFlight      = prometheus.NewDesc("stint_proxy_upstream_requests_in_flight", "Requests and WebSockets that the upstream has in progress.", []string{"upstream"}, nil)
	descFailures      = prometheus.NewDesc("stint_proxy_upstream_failures_total", "Failures of the upstream: refused a connection, timeout, broken before an answer, or cut within one.", []string{"upstream", "reason"}, nil)
	descNone          = prometheus.NewDesc("stint_proxy_unhealthy_requests_total", "Requests answered 503 because no upstream was healthy.", nil, nil)
	descConnections   = prometheus.NewDesc("stint_proxy_refused_connections_total", "Connections that were closed because their source had too many.", nil, nil)
	descTunnels       = prometheus.NewDesc("stint_proxy_websockets", "WebSockets in progress.", nil, nil)
	descService       = prometheus.NewDesc("stint_proxy_service_calls_total", "Requests that the service was to decide: answered; refused, as it does not take the question; failed; or skipped because it was out.", []string{"outcome"}, nil)
	descCoordinatorUp = prometheus.NewDesc("stint_proxy_coordinator_up", "1 if a coordinator of leased limits answers, 0 if none does; absent without such limits.", nil, nil)
	descServiceUp     = prometheus.NewDesc("stint_proxy_service_up", "1 if the service answers, 0 if it is out or was not reached yet.", nil, nil)
)

var (
	descWaiting     = prometheus.NewDesc("stint_proxy_throttle_waiting", "Requests that wait until the server has room.", nil, nil)
	descWaitingCost = prometheus.NewDesc("stint_proxy_throttle_waiting_cost_seconds", "Predicted CPU time of the requests that wait.", nil, nil)
	descRunning     = prometheus.NewDesc("stint_proxy_throttle_running", "Requests that the throttle has started.", nil, nil)
	descLimit       = prometheus.NewDesc("stint_proxy_throttle_limit", "Requests that may run now; 0 = not bounded.", nil, nil)
	descThrottled   = prometheus.NewDesc("stint_proxy_throttle_requests_total", "Requests by class and by what became of them: admitted, refused, evicted for a more important one, expired, or left by their clients.", []string{"class", "outcome"}, nil)
	descError       = prometheus.NewDesc("stint_proxy_throttle_prediction_error", "Absolute error of predicted costs, as a share of the actual ones.", nil, nil)
)

// collector turns counts into metrics.
type collector struct{ p *Proxy }

// Describe implements [prometheus.Collector].
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descRequests, descRefused, descUp, descInFlight, descFailures, descNone, descConnections, descTunnels, descService, descServiceUp, descCoordinatorUp, descWaiting, descWaitingCost, descRunning, descLimit, descThrottled, descError} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	p := c.p
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for i, status := range [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"} {
		count(descRequests, p.counts.upstream[i].Load(), status, "upstream")
		count(descRequests, p.counts.own[i].Load(), status, "proxy")
	}
	count(descRequests, p.counts.cut.Load(), "none", "proxy")
	for i, reason := range refusals {
		count(descRefused, p.counts.refused[i].Load(), reason)
	}
	for _, u := range p.pool.all {
		up := 1.0
		if u.out.Load() {
			up = 0
		}
		gauge(descUp, up, u.name)
		gauge(descInFlight, float64(u.inFlight.Load()), u.name)
		count(descFailures, u.refused.Load(), u.name, "refused")
		count(descFailures, u.slow.Load(), u.name, "timeout")
		count(descFailures, u.broken.Load(), u.name, "broken")
		count(descFailures, u.cut.Load(), u.name, "cut")
	}
	count(descNone, p.forward.unhealthy.Load())
	count(descConnections, p.connections.Refused())
	gauge(descTunnels, float64(p.pool.tunnels.count()))
	if s, ok := p.throttled.standing(); ok {
		gauge(descWaiting, float64(s.Waiting))
		gauge(descWaitingCost, s.WaitingCost.Seconds())
		gauge(descRunning, float64(s.Running))
		gauge(descLimit, float64(s.Limit))
		gauge(descError, overrun(&s))
		for class, n := range s.Classes {
			count(descThrottled, n.Admitted, class.String(), "admitted")
			count(descThrottled, n.Refused, class.String(), "refused")
			count(descThrottled, n.Evicted, class.String(), "evicted")
			count(descThrottled, n.Expired, class.String(), "expired")
			count(descThrottled, n.Left, class.String(), "left")
		}
	}
	if leases, met, problem := p.decider.Coordinator(); leases && p.service == nil {
		up := 0.0
		if met && problem == nil {
			up = 1
		}
		gauge(descCoordinatorUp, up)
	}
	if s := p.service; s != nil {
		n := s.Figures()
		count(descService, n.Answered, "answered")
		count(descService, n.Refused, "refused")
		count(descService, n.Failed, "failed")
		count(descService, n.Skipped, "skipped")
		up := 1.0
		if met, problem := s.Standing(); !met || problem != nil {
			up = 0
		}
		gauge(descServiceUp, up)
	}
}
