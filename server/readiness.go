package server

import (
	"context"
	"fmt"
	"time"
)

// storeLook is how often the health service looks at the store and at the leases. Not more often:
// those who ask look every few seconds. Not less: a load balancer should not wait for
// this.
const storeLook = 100 * time.Millisecond

// readiness says whether requests should be sent here, and why not, or what is amiss.
func (s *Server) readiness() (ready bool, text string) {
	if !s.serving.Load() {
		return false, "starting or draining"
	}
	ready, text = s.storeReady()
	if other := s.leases.Elsewhere(); other != "" && ready {
		return false, fmt.Sprintf("%s lends the limits that are shared by leases, so this service lends nothing: exactly one may", other)
	}
	if s.leases.Asking() && ready {
		return false, "asking Redis whether another service lends the limits that are shared by leases"
	}
	if d := s.leases.recovering(); d > 0 && ready {
		return false, fmt.Sprintf("recovering: it is not known yet which leases of a former coordinator are in use, for %v: limits shared by leases lend nothing new", d.Round(100*time.Millisecond))
	}
	return ready, text
}

// tellHealth makes the gRPC health service say what readiness says.
func (s *Server) tellHealth() {
	// Whoever comes last must have looked last.
	s.health.Lock()
	defer s.health.Unlock()
	ready, _ := s.readiness()
	if ready == s.health.serving {
		return
	}
	s.health.serving = ready
	if ready {
		s.health.Resume()
	} else {
		s.health.Shutdown()
	}
}

// watchReadiness keeps the gRPC health service up to date until ctx ends.
func (s *Server) watchReadiness(ctx context.Context) {
	look := time.NewTicker(storeLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			s.tellHealth()
		}
	}
}
