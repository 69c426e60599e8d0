package server

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/derive"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/internal/webhook"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/admin"
)

// settings are what a configuration says beside its limits, read and not in force yet.
type settings struct {
	target webhook.Target
	plans  *plans.View
}

// readSettings reads the files that a configuration names.
func (c *config) readSettings(set *rules.Set) (s settings, err error) {
	if s.target, err = readTarget(set); err != nil {
		return s, err
	}
	if s.plans, err = c.customers.Read(filesOf(set.Plans())); err != nil {
		return s, fmt.Errorf("server: %w", err)
	}
	return s, nil
}

// filesOf is what the files say of customers.
func filesOf(p *rules.Plans) plans.Files {
	f := plans.Files{Plans: p.Names, Default: p.Default, By: p.By, From: p.From, List: make(map[string]string, len(p.List))}
	for _, c := range p.List {
		f.List[c.Name] = c.Plan
	}
	return f
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
func planCollectors(desk *plans.Desk) []prometheus.Collector {
	gauge := func(name, help string, of func(plans.Stats) int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 { return float64(of(desk.View().Stats())) })
	}
	return []prometheus.Collector{
		gauge("stint_customers_in_files", "Customers whose plan the files say.", func(s plans.Stats) int { return s.Customers }),
		gauge("stint_customers_set", "Customers whose plan was set while the service runs.", func(s plans.Stats) int { return s.Live }),
		gauge("stint_customers_without_plan", "Customers that were set to a plan that is in no file any more, and have what the files say.", func(s plans.Stats) int { return s.Lost }),
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
