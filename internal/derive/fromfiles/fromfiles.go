// Package fromfiles makes the source of attributes that the files of a configuration describe, plans included: for
// tests and replays of limits, which have no service.
//
// It knows no tokens, and none of the customers that were set while a service ran.
package fromfiles

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/stint-io/stint/internal/derive"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/rules"
)

// Open reads the files that a configuration names: databases of addresses, and customers. now is the clock by which
// plans end; it is called while requests are decided. The source is safe for concurrent use if now is.
func Open(ctx context.Context, set *rules.Set, now func() time.Time) (derive.Planned, error) {
	source, id := derive.New(slog.New(slog.DiscardHandler)), set.Identity()
	if err := source.Configure(ctx, derive.Config{Country: id.Country, ASN: id.ASN, UserIP: id.UserIP}); err != nil {
		return derive.Planned{}, fmt.Errorf("identity: %w", err)
	}
	view, err := plans.NewDirectory(now).Read(Customers(set.Plans()))
	if err != nil {
		return derive.Planned{}, err
	}
	return derive.Planned{Source: source, Plans: view}, nil
}

// Customers is what the limits file says of customers.
func Customers(p *rules.Plans) plans.Files {
	f := plans.Files{Plans: p.Names, Default: p.Default, By: p.By, From: p.From, List: make(map[string]string, len(p.List))}
	for _, c := range p.List {
		f.List[c.Name] = c.Plan
	}
	return f
}
