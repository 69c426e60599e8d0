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

// Readiness says what /readyz says: whether requests should be sent here, and why not, or what is amiss.
func (s *Server) Readiness() (ready bool, text string) {
	if !s.serving.Load() {
		return false, "starting or draining"
	}
	ready, text = s.storeReady()
	if s.host != nil && s.host.Ready != nil && ready {
		var more string
		ready, more = s.host.Ready()
		text = also(text, more)
	}
	if s.leases.Asking() && ready {
		return false, "no member of the cluster coordinates the limits that are shared by leases yet"
	}
	if s.leases.implied && s.leases.Leasing() && ready {
		if leader, here, known := s.leases.Leader(0); known && !here && leader.Address == "" {
			return false, errNoAddress(leader).Error()
		}
	}
	if problem := s.leases.ParentProblem(); problem != nil && !s.leases.Supplied() && ready {
		return false, fmt.Sprintf("site %s has no capacity of limits shared by leases: %v", s.opts.Parent.Site, problem)
	}
	if d := s.leases.recovering(); d > 0 && ready {
		text = also(text, fmt.Sprintf("recovering: it is not known yet which leases of a former coordinator are in use, for %v: limits shared by leases lend nothing new", d.Round(100*time.Millisecond)))
		// A member of a cluster has leases to decide by, and its instances have to reach it to claim
		// theirs.
		ready = s.leases.register != nil
	}
	if st, member := s.leases.Standing(); member && !st.Known && ready && s.leases.Leasing() {
		text = also(text, "no member of the cluster coordinates the limits that are shared by leases: leases run on until they end, and then on_store_failure decides")
	}
	if why := s.config.missing(); why != "" && ready {
		return false, why
	}
	if _, amiss := s.config.status(); amiss != "" && ready {
		text = also(text, amiss)
	}
	return ready, text
}

// also is a text with another behind it.
func also(text, more string) string {
	if text == "" || more == "" {
		return text + more
	}
	return text + "; " + more
}

// configVersion says which version of the configuration is in force; "" = it is in files.
func (s *Server) configVersion() string {
	version, _ := s.config.status()
	return version
}

// reportHealth makes the gRPC health service say what Readiness says. It reports whether the server has become ready,
// degraded or neither since the last report, and what Readiness says.
func (s *Server) reportHealth() (changed, ready bool, text string) {
	// The last report must come from the last check.
	s.health.Lock()
	defer s.health.Unlock()
	ready, text = s.Readiness()
	changed = ready && s.health.degraded != (text != "")
	s.health.degraded = ready && text != ""
	if ready == s.health.serving {
		return changed, ready, text
	}
	s.health.serving = ready
	if ready {
		s.health.Resume()
	} else {
		s.health.Shutdown()
	}
	return true, ready, text
}

// watchReadiness keeps the gRPC health service up to date until ctx ends, and logs what changes.
func (s *Server) watchReadiness(ctx context.Context) {
	look := time.NewTicker(storeLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			switch changed, ready, text := s.reportHealth(); {
			case !changed:
			case ready && text == "":
				s.opts.Logger.Info("ready")
			case ready:
				s.opts.Logger.Info("ready, but degraded", "because", text)
			default:
				s.opts.Logger.Warn("not ready", "because", text)
			}
		}
	}
}
