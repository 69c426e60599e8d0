package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/ui"
)

// openDashboard makes what the admin port shows to people. done ends what it streams.
func (s *Server) openDashboard(done <-chan struct{}) *ui.UI {
	s.dashboard = ui.New(ui.Options{
		Version: s.opts.Version, ConfigVersion: s.configVersion, Ready: s.Readiness,
		Limits: func() *rules.Set { return s.engine.Set() }, Tallies: s.tallies.Tallies, Elsewhere: s.leases.elsewhereDecided, Watch: s.watch,
		Leases: http.HandlerFunc(s.leases.serveLeases), Members: s.memberViews, Bans: s.bans, Engine: s.engine, Done: done,
	})
	return s.dashboard
}

// elsewhereDecided is what instances of other processes have admitted and refused, by limit.
func (l *leases) elsewhereDecided() map[string][2]uint64 {
	out := map[string][2]uint64{}
	for _, one := range l.Usage() {
		out[one.Limit] = [2]uint64{uint64(max(0, one.Admitted)), uint64(max(0, one.Refused))}
	}
	return out
}

// memberViews are the members of the cluster, and the servers that read the same configuration.
func (s *Server) memberViews(ctx context.Context) (list []ui.Member, err error) {
	byName := map[string]*ui.Member{}
	member := func(name string) *ui.Member {
		if byName[name] == nil {
			byName[name] = &ui.Member{Name: name}
		}
		return byName[name]
	}
	if s.leases.presence != nil || s.leases.Shards() > 1 {
		alive, self := s.leases.members()
		for _, m := range alive {
			member(m.ID).Address = m.Address
		}
		if self != "" {
			member(self).Self = true
		}
	}
	if r := s.config.remote; r != nil {
		reports, failed := r.store.Members(ctx)
		err = failed
		for name, report := range reports {
			m := member(name)
			m.Version, m.Seen, m.Gone, m.Reason = fmt.Sprintf("version %d", report.Version), report.Time, report.Stale(time.Now()), report.Reason
			if report.Refused != 0 {
				m.Refuses = fmt.Sprintf("version %d", report.Refused)
			}
		}
		m := member(r.node)
		m.Self = true
		m.Version = cmp.Or(m.Version, s.configVersion())
	}
	for _, m := range byName {
		list = append(list, *m)
	}
	slices.SortFunc(list, func(a, b ui.Member) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// checkDashboard returns what is wrong with DashboardURL.
func (o *Options) checkDashboard() []error {
	u, err := url.Parse(o.DashboardURL)
	if o.DashboardURL == "" || err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && u.RawQuery == "" && u.Fragment == "" {
		return nil
	}
	return []error{fmt.Errorf("server: the URL of the dashboard is %q, want where people reach the admin port, such as https://stint.internal.example", o.DashboardURL)}
}

// limitPage is the URL of the page of a limit up to its name; "" = none is linked.
func (o *Options) limitPage() string {
	if o.DashboardURL == "" {
		return ""
	}
	return strings.TrimSuffix(o.DashboardURL, "/") + ui.Prefix + "/limit?name="
}
