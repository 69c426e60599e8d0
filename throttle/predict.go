package throttle

import (
	"sync"
	"time"
)

// means is the Predictor that is used when Options names none: the mean of a route's recent
// requests. Routes beyond maxMeans share one mean.
type means struct {
	mu     sync.RWMutex
	routes map[string]time.Duration
	others time.Duration
}

const (
	maxMeans      = 1024
	firstCost     = time.Millisecond // of a route that has not been seen
	recentWeight  = 8                // one request moves the mean by 1/8, as TCP has it for round trips
	maxRouteBytes = 1024
)

func newMeans() *means { return &means{routes: map[string]time.Duration{}, others: firstCost} }

// Predict implements Predictor.
func (m *means) Predict(route string) time.Duration {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if mean, ok := m.routes[route]; ok {
		return mean
	}
	return m.others
}

// Observe implements Predictor.
func (m *means) Observe(route string, _, actual time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	mean, ok := m.routes[route]
	switch {
	case ok:
		m.routes[route] = mean + (actual-mean)/recentWeight
	case len(m.routes) < maxMeans && len(route) <= maxRouteBytes:
		m.routes[route] = actual
	default:
		m.others += (actual - m.others) / recentWeight
	}
}
