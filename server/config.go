package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/derive"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/estimate"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/internal/webhook"
	"github.com/stint-io/stint/internal/xds"
	"github.com/stint-io/stint/rules"
)

// DemoLimits is what a server without configuration enforces.
const DemoLimits = `limits:
  - name: demo-per-ip
    key: [ip]
    rate: 5/minute
  - name: demo-login
    match: {path: /login}
    key: [ip]
    rate: 2/minute
    algorithm: sliding_window_log
`

// config owns what a server knows about its configuration.
type config struct {
	log        *slog.Logger
	paths      []string
	remote     *remote // nil = the configuration is in files, or is discovered
	xds        *xds.Client
	isLoaded   atomic.Bool // of xds: a configuration has come
	startEmpty bool        // of xds: the service is ready before it has
	rules      rules.Options
	empty      bool   // a configuration without limits is taken
	store      string // what the files must name; "" = what they say does not matter
	inUse      string // the store in use, for people
	hosted     bool   // without files there is no limit, as something else decides
	engine     *engine.Engine
	leases     *leases
	identity   *derive.Source
	counted    func(...*rules.Set) // says of which limits usage is counted
	aim        func(webhook.Target)
	estimate   func(estimate.Config) error
	reassign   func() // has quotas follow the limits in force

	customers *plans.Directory
	next      settings          // of the set that is being put in force; mu is held
	use       func(*plans.View) // says which plans there are

	loading sync.Mutex // held while files are read and applied
	mu      struct {
		sync.Mutex // held while a configuration replaces another
		ok         bool
		loaded     time.Time
		attempts   uint64
		next       chan struct{} // closed when another configuration is in force; nil = nobody waits
		errors     uint64
	}
}

// open opens where the configuration is kept, if that is not in files.
func (c *config) open(o *Options) error {
	url, err := o.remoteConfig()
	if err != nil || url == "" {
		return err
	}
	if xds.IsURL(url) {
		return c.openDiscovery(url, o.Logger)
	}
	c.remote, err = openRemote(url, o)
	return err
}

// errEmpty refuses a configuration without limits.
var errEmpty = errors.New("server: the configuration has no limits, so that nothing would be limited: add limits:, or take it with --allow-empty")

// load reads the configuration, without making it the one in force.
func (c *config) load() (*rules.Set, error) {
	if c.remote != nil {
		return c.remote.first(c)
	}
	if c.xds != nil || len(c.paths) == 0 && c.hosted {
		return c.noLimits()
	}
	if len(c.paths) == 0 {
		return c.rules.Parse("demo", []byte(DemoLimits))
	}
	set, err := c.rules.Load(c.paths...)
	if err == nil {
		err = c.full(set)
	}
	if err != nil {
		return nil, err
	}
	return set, nil
}

// full returns an error for a set without limits, unless that is allowed.
func (c *config) full(set *rules.Set) error {
	switch {
	case len(set.Limits()) > 0, c.empty, c.hosted && set.Throttle() != nil:
		return nil
	case c.hosted:
		return errors.New("server: the configuration has neither limits nor a throttle, so that nothing would be held back: add a section limits")
	}
	return errEmpty
}

// check says whether this server can do what the set asks for. Counters do not
// move from one store to another, so the store stays for as long as the process.
func (c *config) check(set *rules.Set) error {
	if c.store != "" && set.Store() != c.store {
		// Not the text of either: the change may be one of passwords.
		return fmt.Errorf("server: store: has changed, and the store in use is still %s: restart to use the other, or take the change back", c.inUse)
	}
	return nil
}

// apply makes set the configuration in force, unless err says that there is none
// or the engine cannot take it; the one before stays then, with every counter. attrs
// are logged.
func (c *config) apply(set *rules.Set, err error, attrs ...any) error {
	if err = c.put(set, err, attrs...); err != nil {
		logFaults(c.log.With(attrs...), err)
	}
	return err
}

// put is apply for those who log the error themselves.
func (c *config) put(set *rules.Set, err error, attrs ...any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.attempts++
	if err == nil {
		err = errors.Join(c.check(set), c.full(set))
	}
	var old *rules.Set
	if err == nil {
		c.next, err = c.readSettings(set)
	}
	if err == nil {
		err = c.identify(set)
	}
	if err == nil {
		old = c.engine.Set()
		c.counted(old, set) // before a request meets a new limit, and as long as one may meet an old one
		err = c.engine.Swap(set)
		c.counted(c.engine.Set())
	}
	if err != nil {
		c.mu.ok = false
		c.mu.errors++
		return err
	}
	c.isLoaded.Store(true)
	c.leases.reload(set)
	c.reassign()
	c.aim(c.next.target)
	c.use(c.next.plans)
	c.learn(set)
	c.succeededLocked()
	c.logWarnings(set)
	c.warnAssigned(set, c.next.plans)
	added, removed, changed := diff(old, set)
	c.log.With(attrs...).Info("configuration loaded", "limits", len(set.Limits()),
		"added", names(added), "removed", names(removed), "changed", names(changed))
	return nil
}

// identify opens what the section identity of set names. After an error what was open stays.
func (c *config) identify(set *rules.Set) error {
	id := set.Identity()
	err := c.identity.Configure(context.Background(), derive.Config{
		Country: id.Country, ASN: id.ASN, Keys: id.JWKS, Issuer: id.Issuer, Audience: id.Audience, Token: id.Token, UserIP: id.UserIP,
	})
	if err != nil {
		return fmt.Errorf("server: identity: %w", err)
	}
	return nil
}

// reload loads the configuration again and makes it the one in force.
func (c *config) reload() error {
	switch {
	case c.remote != nil:
		return c.remote.check(context.Background(), c, true)
	case c.xds != nil:
		return nil // what is new comes by itself
	}
	// A version that was read earlier must not be applied later.
	c.loading.Lock()
	defer c.loading.Unlock()
	set, err := c.load()
	return c.apply(set, err)
}

// watch follows the configuration until ctx ends. set is the one in force.
func (c *config) watch(ctx context.Context, set *rules.Set) {
	var customers sync.WaitGroup
	defer customers.Wait()
	customers.Go(func() { c.watchCustomers(ctx) })
	switch {
	case c.remote != nil:
		c.remote.run(ctx, c)
	case c.xds != nil:
		c.xds.Run(ctx)
	case len(c.paths) > 0:
		err := set.Watch(ctx, c.paths, func(*rules.Set, error) {
			_ = c.reload() // which logs the error and counts it
		})
		if err != nil && ctx.Err() == nil {
			c.log.Error("the configuration is not watched any more, reload with SIGHUP", "error", err)
		}
	}
}

// nextChange returns a channel that is closed when another configuration is in force.
func (c *config) nextChange() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.next == nil {
		c.mu.next = make(chan struct{})
	}
	return c.mu.next
}

func (c *config) succeededLocked() {
	c.mu.ok = true
	c.mu.loaded = time.Now()
	if c.mu.next != nil {
		close(c.mu.next)
		c.mu.next = nil
	}
}

func logFaults(log *slog.Logger, err error) {
	var list rules.Errors
	if !errors.As(err, &list) {
		log.Error("configuration refused, the one before stays in force", "error", err)
		return
	}
	for i := range list {
		e := list[i]
		e.Excerpt = ""
		log.Error("configuration refused, the one before stays in force", "error", e.Error())
	}
}

func (c *config) logWarnings(set *rules.Set) {
	for _, w := range append(slices.Clone(set.Warnings()), set.Uncarried()...) {
		w.Excerpt = ""
		c.log.Warn("configuration", "warning", w.Error())
	}
}

// diff compares two configurations by the names and policies of their limits.
func diff(old, set *rules.Set) (added, removed, changed []string) {
	was := make(map[string]*rules.Limit, len(old.Limits()))
	for _, l := range old.Limits() {
		was[l.Name] = l
	}
	for _, l := range set.Limits() {
		o := was[l.Name]
		delete(was, l.Name)
		switch {
		case o == nil:
			added = append(added, l.Name)
		case !same(o, l):
			changed = append(changed, l.Name)
		}
	}
	for name := range was {
		removed = append(removed, name)
	}
	slices.Sort(removed)
	return added, removed, changed
}

func same(a, b *rules.Limit) bool {
	variant := func(a, b *rules.Variant) bool {
		return a.ID == b.ID && a.Policy == b.Policy && a.BanPolicy == b.BanPolicy
	}
	return a.Condition == b.Condition && slices.Equal(a.Key, b.Key) && a.Missing == b.Missing &&
		a.OnStoreFailure == b.OnStoreFailure && a.SoftPercent == b.SoftPercent && a.HardPercent == b.HardPercent && a.ChargeAfter == b.ChargeAfter && slices.Equal(a.Events, b.Events) && a.Shadow == b.Shadow && a.EnforcePermyriad == b.EnforcePermyriad &&
		a.Sharing == b.Sharing && reflect.DeepEqual(a.Share, b.Share) && a.Split == b.Split && a.Suppress == b.Suppress && a.Lease.Allocation == b.Lease.Allocation && a.Lease.Safe == b.Lease.Safe &&
		a.Lease.SafePlaces == b.Lease.SafePlaces && slices.Equal(a.Lease.Guarantees, b.Lease.Guarantees) &&
		a.Status == b.Status && reflect.DeepEqual(a.OnExceed, b.OnExceed) && a.Purpose == b.Purpose && a.QuotaMode == b.QuotaMode && slices.Equal(a.Replaces, b.Replaces) &&
		variant(&a.Base, &b.Base) &&
		slices.EqualFunc(a.Overrides, b.Overrides, func(a, b rules.Override) bool { return variant(&a.Variant, &b.Variant) })
}

// names writes a list for people: a log line must not grow with the file.
func names(list []string) string {
	const most = 10
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], " "), len(list)-most)
	}
	return strings.Join(list, " ")
}
