package rules

import (
	"cmp"
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Allocation says how a leased limit is divided among instances with demand. The zero value is
// AllocationMaxMin.
type Allocation uint8

// The ways to divide.
const (
	AllocationMaxMin       Allocation = iota // fair: small demands in full, the rest in equal parts
	AllocationProportional                   // in overload its part by weight, and what others leave of theirs
	AllocationEqual                          // the same for each, whatever its demand
	AllocationStatic                         // the whole limit for each
	AllocationNone                           // its demand for each: no limit
)

var allocationNames = [...]string{
	AllocationMaxMin: "max_min", AllocationProportional: "proportional", AllocationEqual: "equal",
	AllocationStatic: "static", AllocationNone: "none",
}

// String returns the word used in limit files.
func (a Allocation) String() string { return wordOf(allocationNames[:], a) }

// Lease says how a leased limit is divided. The zero value divides it by demand; an instance in
// safe mode has the limit divided by the number of instances.
type Lease struct {
	Allocation Allocation

	// Safe is what one instance may use in safe mode while it cannot reach the coordinator: a
	// rate, or permits of a concurrency limit. Both zero = the limit divided by the number of
	// instances.
	Safe       limit.Rate
	SafePlaces int64

	// Guarantees are what bands get before higher bands get everything, ascending by band.
	// Read-only.
	Guarantees []Guarantee

	// Sites are caps on what single sites get, ascending by name. Read-only.
	Sites []SiteCap
}

// SiteCap is the most that one site gets of a limit: a rate, or permits of a concurrency limit.
type SiteCap struct {
	Name   string // of the site; "*" = each site without a cap of its own
	Rate   limit.Rate
	Places int64
}

// Guarantee is what a priority band gets before higher bands: a rate, or permits of a
// concurrency limit.
type Guarantee struct {
	Band   uint8
	Rate   limit.Rate
	Places int64
}

// smallestLeased is the smallest rate that can be lent, in tokens per second, and fineLeased the
// smallest that loses at most 1 % in the rounding to millionths of a token per second.
const (
	smallestLeased = 1e-6
	fineLeased     = 1e-4
)

// local reads the options of limits for which instances decide by themselves, and reports what
// those cannot do.
func (b *builder) local(s *scope, l *Limit) {
	if s.meaningless(l, "lease", SharingLeased) || !l.Sharing.Local() {
		return
	}
	way, at := sharingWays[l.Sharing], s.sharing()
	algorithm := l.Base.Policy.Algorithm
	if algorithm != limit.TokenBucket && algorithm != limit.Concurrency {
		s.Fault(at, "use algorithm: token_bucket or concurrency, or sharing: exact", "a limit with algorithm %v cannot be shared %s", algorithm, way)
		return
	}
	if l.Ban != nil {
		s.Fault(at, "leave ban out, or use sharing: exact", "a limit shared %s bans nobody: instances decide alone and do not know of each other's refusals", way)
	}
	if l.Shadow || l.EnforcePermyriad < 10000 {
		b.warn(s.file, at, "use sharing: exact to try a limit out", "shadow and enforce are known to the server only: instances that hold a lease enforce the limit for every key")
	}
	if n := s.get("lease"); n != nil && l.Sharing == SharingLeased {
		b.leaseOptions(s, l, n)
	}
	b.leasable(s, at, &l.Base)
	for i := range l.Overrides {
		o := &l.Overrides[i]
		b.leasable(s, at, &o.Variant)
		for _, name := range o.clause.names(nil) {
			if !contains(l.Key, name) {
				s.Fault(at, fmt.Sprintf("add %s to the key, write another limit with a match, or use sharing: exact", name),
					"the override when %s looks at %s, which instances that hold a lease do not tell: they name a limit and its key", o.When, name)
				break
			}
		}
	}
}

// leasable checks that a rate can be lent.
func (b *builder) leasable(s *scope, at *document.Node, v *Variant) {
	if v.Policy.CountRefused {
		s.Fault(at, "leave count_refused out, or use sharing: exact", "count_refused has no meaning where instances decide alone")
	}
	r := v.Policy.Rate
	if v.Policy.Algorithm != limit.TokenBucket || v.Policy.Unlimited || r.Count == 0 {
		return
	}
	switch perSecond := float64(r.Count) / r.Period.Seconds(); {
	case perSecond < smallestLeased:
		s.Fault(at, "use sharing: exact", "the rate %v is too small to be shared by leases, which count millionths of a token per second", r)
	case perSecond < fineLeased:
		b.warn(s.file, at, "use sharing: exact", "the rate %v is rounded down to %d millionths of a token per second when it is lent", r, int64(perSecond*1e6))
	}
}

// busyWord is another word for max_min. The rule that it stood for moved capacity from instances that did not use
// their share, by a threshold of use, and left a part of the limit unused.
const busyWord = "busy"

// busyThresholds reads tolerance and change, which belonged to that rule.
func (b *builder) busyThresholds(s *scope, n *document.Node) {
	allocation := n.Get("allocation")
	for _, key := range []string{"tolerance", "change"} {
		at := n.Get(key)
		switch {
		case at == nil:
		case allocation == nil || allocation.Text != busyWord:
			s.Fault(at, "leave "+key+" out", "%s has no meaning but with allocation: %s", key, busyWord)
		case at.Kind != document.Float:
			s.Wants(at, "a part of a share, such as 0.05", "")
		default:
			b.warn(s.file, at, "leave "+key+" out", "%s changes nothing: allocation: %s divides as max_min does, without a threshold", key, busyWord)
		}
	}
}

func (b *builder) leaseOptions(s *scope, l *Limit, n *document.Node) {
	if !s.section(n, "lease", "a map such as {allocation: max_min, safe: 10/s}", leaseKeys) {
		return
	}
	if choice(s.file, n.Get("allocation"), &l.Lease.Allocation, append(allocationNames[:], busyWord)...); l.Lease.Allocation > AllocationNone {
		l.Lease.Allocation = AllocationMaxMin
	}
	if safe := n.Get("safe"); safe != nil {
		l.Lease.Safe, l.Lease.SafePlaces = s.leaseAmount(l, safe)
	}
	b.busyThresholds(s, n)
	if sites := n.Get("sites"); sites != nil {
		s.siteCaps(l, sites)
	}
	list := n.Get("guarantees")
	if list == nil {
		return
	}
	if list.Kind != document.Map || len(list.Fields) == 0 {
		s.Wants(list, "a map from priority band to amount, such as {1: 100/s}", "")
		return
	}
	if l.Lease.Allocation != AllocationMaxMin {
		s.Fault(list, "use allocation: max_min, or leave guarantees out", "guarantees have no meaning with allocation: %v", l.Lease.Allocation)
	}
	for _, f := range list.Fields {
		band, err := strconv.ParseUint(f.Key.Text, 10, 8)
		if err != nil || strconv.FormatUint(band, 10) != f.Key.Text {
			s.Fault(f.Key, "bands are 0 to 255, higher ones go first", "%q is not a priority band", f.Key.Text)
			continue
		}
		g := Guarantee{Band: uint8(band)}
		g.Rate, g.Places = s.leaseAmount(l, f.Value)
		l.Lease.Guarantees = append(l.Lease.Guarantees, g)
	}
	slices.SortFunc(l.Lease.Guarantees, func(a, b Guarantee) int { return int(a.Band) - int(b.Band) })
	s.oversubscribed(l, list)
}

// siteCaps reads what single sites get at most.
func (s *scope) siteCaps(l *Limit, list *document.Node) {
	if list.Kind != document.Map || len(list.Fields) == 0 {
		s.Wants(list, "a map from the name of a site to what it gets at most, such as {eu-1: 100/s}", "")
		return
	}
	if l.Lease.Allocation == AllocationStatic || l.Lease.Allocation == AllocationNone {
		s.Fault(list, "use allocation: max_min, or leave sites out", "caps of sites have no meaning with allocation: %v, by which no instance takes from another", l.Lease.Allocation)
	}
	for _, f := range list.Fields {
		c := SiteCap{Name: f.Key.Text}
		if c.Name == "" || len(c.Name) > maxSiteName {
			s.Fault(f.Key, "write the name that the server of the site has as --site, or \"*\" for every site", "a site has a name of 1 to %d bytes", maxSiteName)
			continue
		}
		c.Rate, c.Places = s.leaseAmount(l, f.Value)
		l.Lease.Sites = append(l.Lease.Sites, c)
	}
	slices.SortFunc(l.Lease.Sites, func(a, b SiteCap) int { return cmp.Compare(a.Name, b.Name) })
}

// maxSiteName bounds the name of a site, which is that of an instance of its parent.
const maxSiteName = 256

// oversubscribed reports guarantees whose sum is above the limit, or above one of its overrides:
// they could not all be kept.
func (s *scope) oversubscribed(l *Limit, at *document.Node) {
	promised := new(big.Rat)
	for _, g := range l.Lease.Guarantees {
		promised.Add(promised, amount(g.Rate, g.Places))
	}
	check := func(v *Variant, what string) {
		p := &v.Policy
		has := amount(p.Rate, p.MaxInFlight)
		if p.Unlimited || p.Validate() != nil || promised.Cmp(has) <= 0 {
			return
		}
		sum, unit := promised.FloatString(0), "permits"
		if p.Algorithm != limit.Concurrency {
			sum, unit = strconv.FormatFloat(ratFloat(promised), 'g', 6, 64), "tokens per second"
		}
		s.Fault(at, "guarantee less, or raise the limit", "the guarantees are %s %s together, %s has %s", sum, unit, what, strconv.FormatFloat(ratFloat(has), 'g', 6, 64))
	}
	check(&l.Base, "the limit")
	for i := range l.Overrides {
		check(&l.Overrides[i].Variant, "the "+l.Overrides[i].Detail)
	}
}

// amount is a rate in tokens per second, or a number of permits.
func amount(r limit.Rate, places int64) *big.Rat {
	if r.Period <= 0 {
		return new(big.Rat).SetInt64(places)
	}
	perSecond := new(big.Rat).SetFrac64(r.Count, int64(r.Period))
	return perSecond.Mul(perSecond, new(big.Rat).SetInt64(int64(time.Second)))
}

func ratFloat(r *big.Rat) float64 {
	f, _ := r.Float64()
	return f
}

// leaseAmount reads a rate, or permits for a concurrency limit.
func (s *scope) leaseAmount(l *Limit, n *document.Node) (r limit.Rate, places int64) {
	if l.Base.Policy.Algorithm == limit.Concurrency {
		places, _ = s.integer(n, 0, limit.MaxLogCount)
		return r, places
	}
	r, _ = s.rate(n)
	return r, 0
}

// VariantFor returns the policy of l for a request with the attributes: that of the
// first override that holds, or the base. l must be of this Set.
func (s *Set) VariantFor(l *Limit, attrs []limit.Attribute) *Variant {
	sub := subject{attrs: attrs, set: s}
	v := l.variant(&sub)
	sub.release()
	return v
}

// KeyOf returns the key of the bucket that values select, which are those of l.Key in
// order. It is the same as [Matched.Key] of a request with these attributes. It
// reports false when there are more values or fewer.
func (l *Limit) KeyOf(values ...string) (key []byte, ok bool) {
	if len(values) != len(l.Key) {
		return nil, false
	}
	attrs := make([]limit.Attribute, len(values))
	for i, v := range values {
		attrs[i] = limit.Attribute{Name: l.Key[i], Value: v}
	}
	key, missing := l.appendKey(nil, &subject{attrs: attrs})
	return key, !missing
}

// KeyAttributes returns the attributes of a key from [Matched] or KeyOf: an IPv6 address is that
// of its network, and values that are missing or hashed are left out. It reports false when key
// is not a key of this limit. It is not for limits in Envoy's format.
func (l *Limit) KeyAttributes(key []byte) (attrs []limit.Attribute, ok bool) {
	if l.Envoy {
		return nil, false
	}
	for _, name := range l.Key {
		if len(key) == 0 {
			return nil, false
		}
		part, size := keyPart(key)
		address := key[0] == tagIPv4 || key[0] == tagIPv6
		if size == 0 || address && name != ipAttribute {
			return nil, false
		}
		if key[0] != tagMissing && key[0] != tagHashed {
			attrs = append(attrs, limit.Attribute{Name: name, Value: part})
		}
		key = key[size:]
	}
	return attrs, len(key) == 0
}
