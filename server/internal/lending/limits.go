package lending

import (
	"slices"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/rules"
)

// limitIndex finds limits by name. Make it with newLimitIndex. It is immutable, and so safe for concurrent use.
type limitIndex struct {
	set    *rules.Set
	byName map[string]*rules.Limit
	leased int // how many are lent
}

// newLimitIndex returns the index of the limits of set.
func newLimitIndex(set *rules.Set) *limitIndex {
	x := &limitIndex{set: set, byName: map[string]*rules.Limit{}}
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

// limit returns the limit of a name, whether it is lent or not; nil = there is none.
func (x *limitIndex) limit(name string) *rules.Limit { return x.byName[name] }

// leasing says whether any limit is lent.
func (x *limitIndex) leasing() bool { return x.leased > 0 }

// canonical replaces the values that an instance sent by the bucket's key: the
// values of an address differ by how it is written, and the networks that count as
// one.
func (x *limitIndex) canonical(r *lease.Report) {
	for i := range r.Demands {
		id := &r.Demands[i].Resource
		if id.Key == forbiddenKey {
			continue
		}
		l := x.byName[id.Limit]
		if l == nil || !l.Sharing.Local() {
			continue // resolve says so
		}
		if names := r.Demands[i].Attributes; len(names) > 0 && !slices.Equal(names, l.Key) {
			id.Key = otherAttributes
			continue
		}
		if encoded, ok := leasewire.FromMemberKey(id.Key); ok {
			id.Key = encoded // another server's, and resolve checks it
			continue
		}
		values, err := leasewire.DecodeKey(id.Key)
		key, ok := l.KeyOf(values...)
		if err != nil || !ok {
			id.Key = badKey
			continue
		}
		id.Key = string(key)
	}
}

// Keys of no limit, by which resolve answers what an identity may not have.
const (
	// forbiddenKey is the key of a resource whose limit the identity may not be lent.
	forbiddenKey = "\xf2"
	// tooManyKeys is that of one above the most keys that the identity may have.
	tooManyKeys = "\xf3"
)

// Keys of no limit: one that does not fit, and one of other attributes.
const (
	badKey          = "\xf0"
	otherAttributes = "\xf1"
)

// resolve says what a resource asks for.
func (x *limitIndex) resolve(id lease.ResourceID) (lease.Terms, lease.Status) {
	l := x.byName[id.Limit]
	switch {
	case id.Key == forbiddenKey:
		return lease.Terms{}, lease.StatusForbidden // whether there is such a limit is none of its business
	case id.Key == tooManyKeys:
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
		return termsOf(&part, &rules.Lease{Allocation: rules.AllocationEqual}), lease.StatusOK
	case rules.SharingSuppressed:
		t := termsOf(&v.Policy, &rules.Lease{})
		if !v.Policy.Unlimited {
			t.Suppress = suppressOf(&l.Suppress)
		}
		return t, lease.StatusOK
	default:
		return termsOf(&v.Policy, &l.Lease), lease.StatusOK
	}
}

// shard returns which of n shards a resource is in: by the values of its key, as clients have them, so
// that a client that spells them as the bucket does guesses right. Where they cannot be told it goes by
// the key itself.
func (x *limitIndex) shard(id lease.ResourceID, n int) int {
	if told, _, ok := x.translate(id); ok {
		id = told
	}
	return id.Shard(n)
}

// translate returns a resource as a parent is told it: by the values of its key. A value that the
// key has as a hash alone cannot be told.
func (x *limitIndex) translate(id lease.ResourceID) (lease.ResourceID, []string, bool) {
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
