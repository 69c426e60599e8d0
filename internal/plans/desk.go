package plans

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/audit"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// The tables: customers by name; the names of those that have changed, by number; and the latest number.
const (
	customersTable = "customers"
	changesTable   = "customerchanges"
	headTable      = "customerhead"
	headKey        = "n"
)

const (
	// seenEvery is how often changes of other servers are looked for. Not longer: they are seen within two seconds.
	seenEvery = time.Second
	// keepChanges is how long a change is listed. Not shorter: a server that was stopped for longer reads all
	// customers again.
	keepChanges = time.Hour
	// page is how many records are read at once.
	page = 1000
	// maxCounts is how many budgets of a customer may have other counts.
	maxCounts = 32
	// forgotten is how many changes are taken off a list that is full at once: not each change has to do it.
	forgotten = 50
	// swaps is how often a change is tried again because another came first.
	swaps = 20
)

// The errors that a caller can do something about.
var (
	ErrBad      = errors.New("bad request")
	ErrUnknown  = errors.New("no such customer")
	ErrConflict = errors.New("the customer was changed by others at the same time: try again")
)

// Customer is one that was set while it runs.
type Customer struct {
	Name string `json:"customer"`
	Assignment
	// Who made the latest change, and At when.
	Who string    `json:"who"`
	At  time.Time `json:"at"`
}

// Desk changes which plan a customer has, in records that servers share. It is safe for concurrent use.
type Desk struct {
	dir      *Directory
	view     atomic.Pointer[View]
	records  store.Records
	audit    *audit.Log
	log      *slog.Logger
	follower follower
	budgets  func(plan string) []string // the names of the budgets of a plan whose counts can be other ones
}

// NewDesk returns a desk for the directory. budgets returns the names of the budgets of a plan.
func NewDesk(dir *Directory, records store.Records, log *audit.Log, logger *slog.Logger, budgets func(plan string) []string) *Desk {
	d := &Desk{dir: dir, records: records, audit: log, log: cmp.Or(logger, slog.Default()), budgets: budgets}
	d.follower.desk = d
	d.view.Store(&View{dir: dir})
	return d
}

// Use says which plans there are from now on.
func (d *Desk) Use(v *View) { d.view.Store(v) }

// View returns which plans there are.
func (d *Desk) View() *View { return d.view.Load() }

// check returns an error for an assignment that cannot be.
func (d *Desk) check(name string, a *Assignment) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("plans: %w: "+format, append([]any{ErrBad}, args...)...)
	}
	if err := CheckName(name); err != nil {
		return bad("%w", err)
	}
	now := d.dir.now()
	exists := d.View().exists
	for _, plan := range []string{a.Plan, a.Then} {
		if !exists[plan] && (plan != "" || a.Plan == "") {
			return bad("there is no plan %.100q: stint plan ls has those that there are", plan)
		}
	}
	if !a.Until.IsZero() && !a.Until.After(now) {
		return bad("until is %s, which is over", a.Until.Format(time.RFC3339))
	}
	if a.Then != "" && a.Until.IsZero() {
		return bad("then says what follows the plan, and without until nothing does")
	}
	if len(a.Counts) > maxCounts {
		return bad("%d other counts, want at most %d", len(a.Counts), maxCounts)
	}
	budgets := d.budgets(a.Plan)
	for budget, c := range a.Counts {
		switch {
		case !slices.Contains(budgets, budget):
			return bad("plan %s has no budget %.100q whose count can be another one: it has %s", a.Plan, budget, cmp.Or(strings.Join(budgets, ", "), "none"))
		case c.N < 0 || c.N > limit.MaxCount || c.Percent < 0 || c.Percent > 1_000_000 || (c.N > 0) == (c.Percent > 0):
			return bad("the count of %s is neither a number from 1 to %d nor a percentage from 1%% to 1000000%%", budget, int64(limit.MaxCount))
		case !c.Until.IsZero() && !c.Until.After(now):
			return bad("the count of %s ends at %s, which is over", budget, c.Until.Format(time.RFC3339))
		}
	}
	return nil
}

// Changed is a customer after a change.
type Changed struct {
	Customer
	// Before is the plan that it had, and BeforeFrom where that was from: set, files, or default, which is what a
	// customer has that nobody knows.
	Before     string `json:"before"`
	BeforeFrom string `json:"before_from"`
}

// Set gives a customer a plan, in place of what was set before. who is for the audit.
func (d *Desk) Set(ctx context.Context, name string, a Assignment, who string) (c Changed, err error) {
	if err := d.check(name, &a); err != nil {
		return c, err
	}
	c.Before, c.BeforeFrom = d.View().named(name)
	c.Customer, err = d.change(ctx, name, &a, who)
	return c, err
}

// Remove takes away what was set: the customer has what the files say. who is for the audit.
func (d *Desk) Remove(ctx context.Context, name, who string) error {
	if err := CheckName(name); err != nil {
		return fmt.Errorf("plans: %w: %w", ErrBad, err)
	}
	_, err := d.change(ctx, name, nil, who)
	return err
}

func (d *Desk) change(ctx context.Context, name string, a *Assignment, who string) (Customer, error) {
	for range swaps {
		old, err := d.records.Get(ctx, customersTable, name)
		if err != nil {
			return Customer{}, fmt.Errorf("plans: %w", err)
		}
		if a == nil && old == nil {
			return Customer{}, fmt.Errorf("plans: %w: %.100q was not set, and has what the files say", ErrUnknown, name)
		}
		var next Customer
		var value []byte
		if a != nil {
			next = Customer{name, *a, who, d.dir.now().UTC().Truncate(time.Second)}
			if value, err = json.Marshal(next); err != nil {
				return Customer{}, fmt.Errorf("plans: %w", err)
			}
		}
		swapped, _, err := d.records.Swap(ctx, customersTable, name, old, value, 0)
		if errors.Is(err, store.ErrFull) {
			return Customer{}, fmt.Errorf("plans: %w: take back some that were set, or write those that stay in the file of customers (customers.from), which has room for a million", err)
		}
		if err != nil {
			return Customer{}, fmt.Errorf("plans: %w", err)
		}
		if !swapped {
			continue
		}
		d.see(name, a)
		return next, d.note(context.WithoutCancel(ctx), name, old, value, who)
	}
	return Customer{}, fmt.Errorf("plans: %w", ErrConflict)
}

// note tells other servers and the audit of a change that was made.
func (d *Desk) note(ctx context.Context, name string, old, value []byte, who string) error {
	err := d.tell(ctx, name)
	action := "customer.set"
	if value == nil {
		action = "customer.remove"
	}
	if _, failed := d.audit.Note(ctx, audit.Entry{Who: who, Action: action, What: "customer " + name, Before: string(old), After: string(value)}); failed != nil {
		d.log.Error("a customer was changed and the list of changes lacks it", "who", who, "action", action, "err", failed)
	}
	if err != nil {
		return fmt.Errorf("plans: it was changed, and other servers may see it only when they start again: do it once more: %w", err)
	}
	return nil
}

// see puts what is known of a customer in the directory.
func (d *Desk) see(name string, a *Assignment) {
	d.dir.mu.Lock()
	defer d.dir.mu.Unlock()
	d.dir.put(&d.dir.live, name, a)
}

// Found is what a customer has now.
type Found struct {
	Customer string `json:"customer"`
	// Plan is the plan now. From says where it is from: set, files, or default.
	Plan string `json:"plan"`
	From string `json:"from"`
	// Set is what was set while it runs; nil = nothing was.
	Set *Customer `json:"set,omitempty"`
}

// Find returns what a customer has now.
func (d *Desk) Find(ctx context.Context, name string) (f Found, err error) {
	if err := CheckName(name); err != nil {
		return f, fmt.Errorf("plans: %w: %w", ErrBad, err)
	}
	c, err := d.get(ctx, name)
	if err != nil && !errors.Is(err, ErrUnknown) {
		return f, err
	}
	if err == nil {
		f.Set = &c
	}
	f.Customer = name
	f.Plan, f.From = d.View().named(name)
	return f, nil
}

// get returns a customer that was set.
func (d *Desk) get(ctx context.Context, name string) (Customer, error) {
	var c Customer
	raw, err := d.records.Get(ctx, customersTable, name)
	switch {
	case err != nil:
		return c, fmt.Errorf("plans: %w", err)
	case raw == nil:
		return c, fmt.Errorf("plans: %w: %.100q was not set, and has what the files say", ErrUnknown, name)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		return c, fmt.Errorf("plans: the record of customer %.100q cannot be read: %w", name, err)
	}
	return c, nil
}

// List returns customers that were set, by name, at most most of them that come behind after. next is where to go on;
// "" = there are no more.
func (d *Desk) List(ctx context.Context, after string, most int) (list []Customer, next string, err error) {
	found, err := d.records.Range(ctx, customersTable, "", after, most+1)
	if err != nil {
		return nil, "", fmt.Errorf("plans: %w", err)
	}
	if len(found) > most {
		found, next = found[:most], found[most-1].Key
	}
	for _, r := range found {
		var c Customer
		if err := json.Unmarshal(r.Value, &c); err != nil {
			return nil, "", fmt.Errorf("plans: the record of customer %.100q cannot be read: %w", r.Key, err)
		}
		list = append(list, c)
	}
	return list, next, nil
}
