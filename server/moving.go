package server

import (
	"bufio"
	"fmt"
	"net/http"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rls"
)

// What probes and scripts that were made for Envoy's own service ask for.

// envoyHealth is the name under which probes ask the gRPC health service.
const envoyHealth = "ratelimit"

// healthcheck answers as /readyz does, in the form of that service.
func (s *Server) healthcheck(w http.ResponseWriter, _ *http.Request) {
	if ready, _ := s.Readiness(); !ready {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	// A failed write means that the client has gone.
	_, _ = w.Write([]byte("OK"))
}

// rlconfig writes the rules in Envoy's format, a line for each, in the form of that
// service and in the order of the files.
func (s *Server) rlconfig(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := bufio.NewWriter(w)
	for _, l := range s.engine.Set().Limits() {
		if !l.Envoy || l.Whitelist {
			continue
		}
		unit, count := ruleRate(l)
		fmt.Fprintf(out, "%s: unit=%s requests_per_unit=%d, shadow_mode: %t, quota_mode: %t\n", l.Name, unit, count, l.Shadow, l.QuotaMode)
	}
	_ = out.Flush() // see healthcheck
}

// ruleRate returns what a rule says of its rate; an unlimited one says nothing.
func ruleRate(l *rules.Limit) (unit string, count int64) {
	p := l.Base.Policy
	if p.Unlimited {
		return "UNKNOWN", 0
	}
	return rls.UnitName(p.Rate.Period), p.Rate.Count
}
