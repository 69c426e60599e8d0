// Package leaselimits is what the coordinator has to know of the limits in force: which of them are
// lent, by which terms, and by which key a resource of an instance is one of a limit. It counts what
// instances have decided of each. It knows no instance, no stream and no coordinator.
package leaselimits

import (
	"slices"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/rules"
)

// Index finds limits by name. Make it with [New]; it is immutable, and so safe for concurrent use.
type Index struct {
	set    *rules.Set
	byName map[string]*rules.Limit
	leased int // how many are lent
}

// New returns the index of the limits of set.
func New(set *rules.Set) *Index {
	x := &Index{set: set, byName: map[string]*rules.Limit{}}
	for _, l := range set.Limits() {
		if !l.Envoy {
			x.byName[l.Name] = l
			if l.Sharing.Local() {
				x.leased++
			}
		}
	}
	return x
}

// Limit returns the limit of a name, whether it is lent or not; nil = there is none.
func (x *Index) Limit(name string) *rules.Limit { return x.byName[name] }

// Leasing says whether any limit is lent.
func (x *Index) Leasing() bool { return x.leased > 0 }

// Canonical replaces the values that an instance sent by the bucket's key: the
// values of an address differ by how it is written, and the networks that count as
// one.
func (x *Index) Canonical(r *lease.Report) {
	for i := range r.Demands {
		id := &r.Demands[i].Resource
		if id.Key == Forbidden {
			continue
		}
		l := x.byName[id.Limit]
		if l == nil || !l.Sharing.Local() {
			continue // Resolve says so
		}
		if names := r.Demands[i].Attributes; len(names) > 0 && !slices.Equal(names, l.Key) {
			id.Key = otherAttributes
			continue
		}
		if encoded, ok := leasewire.FromMemberKey(id.Key); ok {
			id.Key = encoded // another server's, and Resolve checks it
			continue
		}
		values, err := leasewire.DecodeKey(id.Key)
		key, ok := l.KeyOf(values...)
		if err != nil || !ok {
			id.Key = noKey
			continue
		}
		id.Key = string(key)
	}
}

// Keys of no limit, by which Resolve answers what an identity may not have.
const (
	// Forbidden is the key of a resource whose limit the identity may not be lent.
	Forbidden = "\xf2"
	// TooManyKeys is that of one above the most keys that the identity may have.
	TooManyKeys = "\xf3"
)

// Keys of no limit: one that does not fit, and one of other attributes.
const (
	noKey           = "\xf0"
	otherAttributes = "\xf1"
)

// Resolve says what a resource asks for.
func (x *Index) Resolve(id lease.ResourceID) (lease.Terms, lease.Status) {
	l := x.byName[id.Limit]
	switch {
	case id.Key == Forbidden:
		return lease.Terms{}, lease.StatusForbidden // whether there is such a limit is none of its business
	case id.Key == TooManyKeys:
		return lease.Terms{}, lease.StatusTooMany
	case l == nil:
		return lease.Terms{}, lease.StatusUnknownLimit
	case !l.Sharing.Local():
		return lease.Terms{}, lease.StatusNotLeased
	}
	if id.Key == otherAttributes {
		return lease.Terms{}, lease.StatusWrongAttributes
	}
	attrs, ok := l.KeyAttributes([]byte(id.Key))
	if !ok {
		return lease.Terms{}, lease.StatusBadKey
	}
	v := x.set.VariantFor(l, attrs)
	switch l.Sharing {
	case rules.SharingSplit:
		part := l.Split.Part(v.Policy)
		return terms(&part, &rules.Lease{Allocation: rules.AllocationEqual}), lease.StatusOK
	case rules.SharingSuppressed:
		t := terms(&v.Policy, &rules.Lease{})
		if !v.Policy.Unlimited {
			t.Suppress = suppress(&l.Suppress)
		}
		return t, lease.StatusOK
	default:
		return terms(&v.Policy, &l.Lease), lease.StatusOK
	}
}

// Shard returns which of n shards a resource is in: by the values of its key, as clients have them, so
// that a client that spells them as the bucket does guesses right. Where they cannot be told it goes by
// the key itself.
func (x *Index) Shard(id lease.ResourceID, n int) int {
	if told, _, ok := x.Translate(id); ok {
		id = told
	}
	return id.Shard(n)
}

// Translate returns a resource as a parent is told it: by the values of its key. A value that the
// key has as a hash alone cannot be told.
func (x *Index) Translate(id lease.ResourceID) (lease.ResourceID, []string, bool) {
	l := x.byName[id.Limit]
	if l == nil {
		return id, nil, false
	}
	attrs, ok := l.KeyAttributes([]byte(id.Key))
	if !ok || len(attrs) != len(l.Key) {
		return id, nil, false
	}
	values := make([]string, len(attrs))
	for i, a := range attrs {
		values[i] = a.Value
	}
	key, err := leasewire.EncodeKey(values...)
	return lease.ResourceID{Limit: id.Limit, Key: key}, l.Key, err == nil
}
