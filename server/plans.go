package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/derive"
	"github.com/stint-io/stint/internal/derive/fromfiles"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/filewatch"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/internal/webhook"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/admin"
)

// openCustomersWithin bounds how long a start waits for the customers that were set. Not shorter: a million take some
// seconds. Not longer: a server without its store admits requests all the same.
const openCustomersWithin = 15 * time.Second

// settings are what a configuration says beside its limits, read and not in force yet.
type settings struct {
	target webhook.Target
	plans  *plans.View
	stamp  string // of the file of customers, before it was read
}

// readSettings reads the files that a configuration names.
func (c *config) readSettings(set *rules.Set) (s settings, err error) {
	if s.target, err = readTarget(set); err != nil {
		return s, err
	}
	s.stamp = stampOf(set.Plans().From)
	if s.plans, err = c.customers.Read(fromfiles.Customers(set.Plans())); err != nil {
		return s, fmt.Errorf("server: %w", err)
	}
	return s, nil
}

// watchCustomers loads the configuration again when the file of customers that it names has changed, until ctx ends.
func (c *config) watchCustomers(ctx context.Context) {
	path := func() string { return c.engine.Set().Plans().From }
	c.mu.Lock()
	seen := c.next.stamp
	c.mu.Unlock()
	paths := func() []string {
		return slices.DeleteFunc([]string{path()}, func(path string) bool { return path == "" })
	}
	_ = filewatch.Watch(ctx, paths, func() {
		if now := stampOf(path()); now != seen {
			seen = now
			_ = c.reload() // which logs the error and counts it
		}
	})
}

// stampOf says when a file has changed; "" = there is none.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if path == "" || err != nil {
		return ""
	}
	return fmt.Sprint(path, info.Size(), info.ModTime())
}

// openCustomers reads the customers that were set before this process began. Without the store they have what the files
// say until it answers.
func (s *Server) openCustomers() {
	ctx, end := context.WithTimeout(context.Background(), openCustomersWithin)
	defer end()
	if err := s.budgets.customers.Open(ctx); err != nil {
		s.opts.Logger.Warn("customers that were set while the service ran are not known yet, and have the plans of the files", "err", err)
	}
	s.config.warnAssigned(s.engine.Set(), s.budgets.customers.View())
}

// deriver finds attributes for the limits of a set. The plans are those of the same files, so that a request meets
// plans and limits that belong together.
func (c *config) deriver(*rules.Set) engine.Deriver {
	return derive.Planned{Source: c.identity, Plans: c.next.plans}
}

// budgetsOf returns the names of the budgets of a plan.
func budgetsOf(set *rules.Set, plan string) (names []string) {
	for _, l := range set.Limits() {
		if l.Plan == plan && l.Base.Pool != "" {
			names = append(names, l.Base.Pool)
		}
	}
	return names
}

// planCollectors are the metrics of customers.
func planCollectors(desk *plans.Desk, set func() *rules.Set) []prometheus.Collector {
	gauge := func(name, help string, of func(plans.Stats) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of(desk.View().Stats())) })
	}
	return []prometheus.Collector{
		assignments{set, desk.View},
		gauge("stint_customers_in_files", "Customers whose plan the files say.", func(s plans.Stats) int { return s.Customers }),
		gauge("stint_customers_set", "Customers whose plan was set while the service runs.", func(s plans.Stats) int { return s.Live }),
		gauge("stint_customers_without_plan", "Customers that were set to a plan that is in no file any more, and have what the files say.", func(s plans.Stats) int { return s.Lost }),
	}
}

// warnAssigned logs which limits are handed out more than once.
func (c *config) warnAssigned(set *rules.Set, view *plans.View) {
	for _, a := range assigned(set, view) {
		if a.Over {
			c.log.Warn("configuration", "warning", a.String())
		}
	}
}

// assigned says of limits without a key how much of them the plans of customers hand out.
func assigned(set *rules.Set, view *plans.View) (list []admin.Assigned) {
	for _, d := range set.Divisions() {
		if len(d.Parent.Key) > 0 {
			continue
		}
		a := admin.Assigned{Limit: d.Parent.Name, Count: d.Parent.Base.Nominal}
		budgets := make(map[string]map[string]int64)
		for _, l := range d.Children {
			if !set.Plans().Customers(l) {
				continue
			}
			name := strings.TrimPrefix(l.Name, l.Plan+".")
			if budgets[name] == nil {
				budgets[name] = make(map[string]int64)
			}
			budgets[name][l.Plan] = l.Base.Nominal
		}
		for _, name := range slices.Sorted(maps.Keys(budgets)) {
			sum, customers := view.Assigned(name, budgets[name])
			a.Assigned += min(sum, math.MaxInt64-a.Assigned)
			a.Customers = max(a.Customers, customers)
			a.Budgets = append(a.Budgets, name)
		}
		if a.Over = a.Assigned > a.Count; len(a.Budgets) > 0 {
			list = append(list, a)
		}
	}
	return list
}

// CheckCustomers reads the files of customers that a configuration names, as a server does at its start, and returns
// what is doubtful about them. A file that is not there is no error: it need only be where the service runs.
func CheckCustomers(set *rules.Set) (warnings []string, err error) {
	files := fromfiles.Customers(set.Plans())
	if _, err := os.Stat(files.From); files.From != "" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)) {
		warnings = append(warnings, fmt.Sprintf("the file %s is not read: it has to be where the service runs", files.From))
		files.From = ""
	}
	view, err := plans.NewDirectory(nil).Read(files)
	if err != nil {
		return nil, err
	}
	for _, a := range assigned(set, view) {
		if a.Over {
			warnings = append(warnings, a.String())
		}
	}
	return warnings, nil
}

// assignments are the metrics of what plans hand out.
type assignments struct {
	set  func() *rules.Set
	view func() *plans.View
}

var (
	assignedDesc   = prometheus.NewDesc("stint_assigned_count", "How much of a limit the plans of customers hand out.", []string{"limit"}, nil)
	assignableDesc = prometheus.NewDesc("stint_assignable_count", "How much a limit has that plans of customers hand out.", []string{"limit"}, nil)
)

// Describe implements [prometheus.Collector].
func (assignments) Describe(to chan<- *prometheus.Desc) { to <- assignedDesc; to <- assignableDesc }

// Collect implements [prometheus.Collector].
func (a assignments) Collect(to chan<- prometheus.Metric) {
	for _, one := range assigned(a.set(), a.view()) {
		to <- prometheus.MustNewConstMetric(assignedDesc, prometheus.GaugeValue, float64(one.Assigned), one.Limit)
		to <- prometheus.MustNewConstMetric(assignableDesc, prometheus.GaugeValue, float64(one.Count), one.Limit)
	}
}

// planNames returns the plans of a set, and the limits of each.
func planNames(set *rules.Set) (list []admin.Plan) {
	for _, name := range set.Plans().Names {
		p := admin.Plan{Name: name, Default: name == set.Plans().Default}
		for _, l := range set.Limits() {
			if l.Plan == name {
				p.Limits = append(p.Limits, admin.PlanLimit{Name: l.Name, Policy: policyText(l), Budget: l.Base.Pool})
			}
		}
		list = append(list, p)
	}
	return list
}

// policyText is the policy of a limit of a plan for people.
func policyText(l *rules.Limit) string {
	p := l.Base.Policy
	switch {
	case p.Unlimited:
		return "unlimited"
	case p.Algorithm == limit.Concurrency:
		return fmt.Sprintf("%s %d", p.Algorithm, p.MaxInFlight)
	default:
		p.Rate.Count = l.Base.Nominal
		return fmt.Sprintf("%s %s", p.Algorithm, p.Rate)
	}
}
