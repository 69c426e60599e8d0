package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/audit"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/estimate"
	"github.com/stint-io/stint/internal/keyadmin"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// budgets are what is remembered beside the counters.
type budgets struct {
	records store.Records
	held    store.Records // those of reservations
	changes *audit.Log
	grants  *keyadmin.Grants
	events  *events
	usage   *usage.Observer
	keys    *keyadmin.Keys

	customers *plans.Desk
	engine    *engine.Engine

	reservations *reserve.Book
	estimates    *estimate.Estimator

	others *others // of a cluster whose members have counters of their own; nil = there are none
}

// openBudgets makes what is granted by hand, and what observes the engine. Records are where the counters are, as far as
// those keep any.
func openBudgets(l *leases, st *storage, o *Options) (b budgets, err error) {
	if shared, ok := st.shared.(store.Records); ok {
		b.records = shared
	} else if st.file != nil {
		b.records = st.file.Records()
	} else {
		b.records = records.New(nil, 0)
	}
	if b.held = b.records; st.shared == nil && st.file == nil {
		b.held = records.New(nil, 0) // strangers make them: they must not take the room of plans, grants and usage
	}
	b.changes = audit.New(b.records, nil, 0)
	granted := b.records
	if l.register != nil && st.shared == nil {
		b.others = openOthers(l, o)
		granted = b.others.shared
	}
	b.grants = keyadmin.NewGrants(granted, nil, o.Logger)
	folder := ""
	if o.StateDir != "" {
		folder = filepath.Join(o.StateDir, "usage")
	}
	meter, err := usage.New(usage.Options{Records: b.records, Folder: folder, Logger: o.Logger})
	if err != nil && folder != "" {
		// A server without a disk admits requests all the same.
		o.Logger.Error("usage is counted in memory alone: a kill of the process loses up to a second of it", "err", err)
		meter, err = usage.New(usage.Options{Records: b.records, Logger: o.Logger})
	}
	if err != nil {
		return b, fmt.Errorf("server: %w", err)
	}
	if b.estimates, err = openEstimates(b.records, st, o); err != nil {
		return b, err
	}
	b.events = openEvents(b.records, o.Logger)
	b.usage = usage.NewObserver(meter)
	if b.others != nil {
		b.others.usage, b.usage.Others = b.usage, b.others.counting
	}
	return b, nil
}

// follow makes what changes keys of e, and counts the usage of its limits.
func (b *budgets) follow(e *engine.Engine, dir *plans.Directory, o *Options) {
	customers := b.records
	if b.others != nil {
		customers = b.others.shared
	}
	b.customers = plans.NewDesk(dir, customers, b.changes, o.Logger, func(plan string) []string { return budgetsOf(e.Set(), plan) })
	b.engine = e
	b.reservations = reserve.New(e, b.held, o.Logger, nil)
	b.reservations.Learn(b.estimates)
	k := keyadmin.Options{
		Engine: e, Records: b.records, Audit: b.changes, Grants: b.grants, Reserved: b.reservations, Logger: o.Logger,
	}
	b.others.follow(&k)
	b.keys = keyadmin.New(k)
	if b.others != nil {
		b.others.keys = b.keys
	}
	b.watch(e.Set())
}

// watch finds the crossings of the limits of the sets, and counts the usage of those that ask for it.
func (b *budgets) watch(sets ...*rules.Set) {
	b.events.watch(sets...)
	var list []usage.Limit
	for _, set := range sets {
		for _, l := range set.Limits() {
			if l.CountsUsage() {
				list = append(list, counted(l))
			}
		}
	}
	b.usage.Watch(list)
}

// counted is what usage must know of a limit.
func counted(l *rules.Limit) (u usage.Limit) {
	name := l.Name
	if l.Base.Pool != "" {
		name = l.Base.Pool // what a customer has used, whatever the plan was
	}
	u = usage.Limit{Name: name, Key: l.Key, Subject: func(key []byte) []limit.Attribute {
		attrs, _, _ := l.ShowKey(key)
		return attrs
	}}
	for _, v := range append([]*rules.Variant{&l.Base}, variants(l)...) {
		if !v.Policy.Unlimited {
			u.IDs = append(u.IDs, v.ID)
		}
	}
	if zone, err := limit.LoadZone(l.Base.Policy.Zone); err == nil {
		u.Zone = zone
	}
	return u
}

func variants(l *rules.Limit) (list []*rules.Variant) {
	for i := range l.Overrides {
		list = append(list, &l.Overrides[i].Variant)
	}
	return list
}

// run reports usage until reporting ends, which is after the last request, and follows grants until ctx ends.
func (b *budgets) run(ctx, reporting context.Context) {
	var all sync.WaitGroup
	all.Go(func() { b.usage.Meter().Run(reporting) })
	all.Go(func() { b.grants.Run(ctx) })
	all.Go(func() { b.customers.Run(ctx) })
	all.Go(func() { b.events.run(reporting, b.engine) })
	all.Go(func() { b.reservations.Run(ctx) })
	all.Go(func() { b.estimates.Run(reporting) })
	all.Wait()
	b.others.close()
}

// collectors are the metrics of usage.
func (b *budgets) collectors() []prometheus.Collector {
	stats := b.usage.Meter().Stats
	count := func(name, help string, of func(usage.Stats) uint64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(of(stats())) })
	}
	own := append(append(b.events.collectors(), planCollectors(b.customers, b.engine.Set)...), estimateMetrics{b.estimates})
	return append(own,
		count("stint_usage_reports_total", "Batches of usage that were taken.", func(s usage.Stats) uint64 { return s.Reports }),
		count("stint_usage_report_failures_total", "Batches of usage that were not taken; they are reported again.", func(s usage.Stats) uint64 { return s.Failures }),
		count("stint_usage_other_keys_total", "Requests that were counted under the key *, because the hour had too many keys.", func(s usage.Stats) uint64 { return s.Overflows }),
		count("stint_usage_recovered_total", "Tables that processes which had ended left in the folder.", func(s usage.Stats) uint64 { return s.Recovered }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "stint_usage_incomplete_total", Help: "Answers about usage that lacked what another member has counted, as it did not answer.",
		}, func() float64 { return float64(b.usage.Incomplete()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "stint_usage_keys", Help: "Keys whose usage is counted in this process now; an hour that is not reported yet counts as well.",
		}, func() float64 { return float64(stats().Keys) }))
}

func (b *budgets) close() error {
	if b.usage == nil {
		return nil
	}
	if err := b.usage.Meter().Close(); err != nil {
		return errors.Join(errors.New("server: usage"), err)
	}
	return nil
}
