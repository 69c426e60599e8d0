package rules

import (
	"fmt"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Share says how the limit of one bucket is divided among tenants: those that want more than others leave
// have equal parts by weight, and what a tenant does not want is lent to the others.
type Share struct {
	// By are the attributes that name the tenant. A request without one of them counts as a tenant of its
	// own, one for all such requests.
	By []string
	// Weights are those of single tenants, 1 to 1,000,000, by the tenant as [Limit.AppendTenant] writes it;
	// others have 1. Read-only.
	Weights map[string]int64
	// Guarantees are what single tenants have as soon as they want it, by name. Together they are at most
	// the limit. Read-only.
	Guarantees []TenantGuarantee
}

// TenantGuarantee is what one tenant has as soon as it wants it.
type TenantGuarantee struct {
	// Tenant is as AppendTenant writes it, Name as the file does.
	Tenant, Name string
	Rate         limit.Rate
}

var shareKeys = []string{"by", "weights", "guarantee"}

const (
	maxWeight = 1_000_000
	// maxNamed bounds the tenants that a limit names, and maxGuaranteed those with a guarantee, which every
	// decision looks at.
	maxNamed      = 10_000
	maxGuaranteed = 64
	// maxSharedBurst bounds the burst, of which a float64 has to keep millionths.
	maxSharedBurst = 1 << 32
	// burstOfGuaranteed is how many tokens of burst each guarantee asks for: one of a half is kept for each.
	burstOfGuaranteed = 4
)

// AppendTenant appends the tenant of a request with these attributes to dst: an injective encoding of the
// values of Share.By, which is not nil.
func (l *Limit) AppendTenant(dst []byte, attrs []limit.Attribute) []byte {
	s := subject{attrs: attrs}
	dst, _ = l.appendParts(dst, l.Share.By, &s)
	return dst
}

// tenants reads share.
func (b *builder) tenants(s *scope, l *Limit) {
	n := s.limit.Get("share")
	if n == nil || l.Base.Policy.Algorithm != limit.TokenBucket {
		return // another algorithm is reported where it is read
	}
	if !s.section(n, "share", "a map such as {by: tenant}", shareKeys) {
		return
	}
	share := &Share{}
	if !b.shareBy(s, l, n, share) {
		return
	}
	l.Share = share
	s.unshared(l, n)
	one := func(key string, most int, f func(name, tenant string, f document.Field)) {
		list := n.Get(key)
		if list == nil {
			return
		}
		switch {
		case list.Kind == document.Map && len(list.Fields) == 0:
			s.Fault(list, "leave it out", "%s is empty", key)
		case list.Kind != document.Map:
			s.Wants(list, "a map of tenants, such as {acme: "+map[string]string{"weights": "2", "guarantee": "100/s"}[key]+"}", "")
		case len(share.By) != 1:
			s.Fault(list, "make by one attribute", "%s names tenants by one attribute, and by has %d", key, len(share.By))
		case len(list.Fields) > most:
			s.Fault(list, "", "%s has %d tenants, want at most %d", key, len(list.Fields), most)
		default:
			for _, field := range list.Fields {
				name := field.Key.Text
				f(name, string(l.AppendTenant(nil, []limit.Attribute{{Name: share.By[0], Value: name}})), field)
			}
		}
	}
	one("weights", maxNamed, func(name, tenant string, f document.Field) {
		w, ok := s.integer(f.Value, 1, maxWeight)
		if share.Weights == nil {
			share.Weights = map[string]int64{}
		}
		if _, twice := share.Weights[tenant]; twice {
			s.Fault(f.Key, "leave one out", "%q is the same tenant as another of the map", name)
		} else if ok {
			share.Weights[tenant] = w
		}
	})
	one("guarantee", maxGuaranteed, func(name, tenant string, f document.Field) {
		r, ok := s.rate(f.Value)
		switch {
		case ok && r.Count == 0:
			s.Fault(f.Value, "leave the tenant out", "a guarantee of nothing")
		case ok && slices.ContainsFunc(share.Guarantees, func(g TenantGuarantee) bool { return g.Tenant == tenant }):
			s.Fault(f.Key, "leave one out", "%q is the same tenant as another of the map", name)
		case ok:
			share.Guarantees = append(share.Guarantees, TenantGuarantee{tenant, name, r})
		}
	})
	slices.SortFunc(share.Guarantees, func(a, b TenantGuarantee) int { return strings.Compare(a.Name, b.Name) })
	s.guaranteed(l, n.Get("guarantee"))
}

// shareBy reads the attributes that name the tenant.
func (b *builder) shareBy(s *scope, l *Limit, n *document.Node, share *Share) bool {
	by := n.Get("by")
	if by == nil {
		s.Fault(n, "add by: tenant", "share does not say which attribute names the tenant")
		return false
	}
	items := by.Each()
	if len(items) == 0 || len(items) > maxParts {
		s.Fault(by, "", "by has %d attributes, want 1 to %d", len(items), maxParts)
		return false
	}
	for _, item := range items {
		name, ok := s.attribute(item)
		switch {
		case !ok:
			return false
		case contains(l.Key, name):
			s.Fault(item, "leave it out of the key: tenants share a bucket", "%s is in the key, so that each tenant has a limit of its own", name)
			return false
		case contains(share.By, name):
			s.Fault(item, "", "attribute %q is twice in by", name)
			return false
		}
		b.doubtName(s.file, item, name)
		share.By = append(share.By, name)
	}
	return true
}

// unshared reports what a limit cannot have together with share.
func (s *scope) unshared(l *Limit, n *document.Node) {
	p := &l.Base.Policy
	switch {
	case l.Sharing != SharingExact:
		s.Fault(s.sharing(), "use sharing: exact, with store: redis://... for several servers", "share divides a limit at the store, and with sharing: %v instances decide alone", l.Sharing)
	case p.Unlimited:
		s.Fault(n, "leave it out", "an unlimited limit has nothing to share")
	case s.limit.Get("overrides") != nil:
		s.Fault(s.limit.Get("overrides"), "use weights and guarantee, or write another limit with a match", "an override would have a bucket of its own, which nobody shares")
	case p.CountRefused:
		s.Fault(n, "leave count_refused and charge: after out", "a tenant's refused requests would be counted against all tenants")
	case l.Ban != nil:
		s.Fault(n, "write the ban in a limit whose key is ["+strings.Join(l.Share.By, ", ")+"]", "a ban would be for all tenants of the bucket")
	case l.OnExceed.MaxWait > 0:
		s.Fault(n, "leave queue out: a refusal says when to come again", "a queue has one order for all tenants: those that have room would wait for those that have none")
	case p.Burst > maxSharedBurst:
		s.Fault(n, "add a burst", "a burst of %d is above 2^32, the most that can be shared", p.Burst)
	}
}

// guaranteed reports guarantees that could not all be kept.
func (s *scope) guaranteed(l *Limit, at *document.Node) {
	p, promised := &l.Base.Policy, new(big.Rat)
	if at == nil || p.Unlimited || p.Validate() != nil || p.Rate.Period == 0 {
		return
	}
	for _, g := range l.Share.Guarantees {
		promised.Add(promised, amount(g.Rate, 0))
	}
	if has := amount(p.Rate, 0); promised.Cmp(has) > 0 {
		number := func(r *big.Rat) string { return strconv.FormatFloat(ratFloat(r), 'g', 6, 64) }
		s.Fault(at, "guarantee less, or raise the limit", "the guarantees are %s tokens per second together, the limit has %s", number(promised), number(has))
	}
	if least := int64(burstOfGuaranteed * len(l.Share.Guarantees)); p.Burst < least {
		s.Fault(at, fmt.Sprintf("add burst: %d, or guarantee fewer", least), "%d guarantees want a burst of %d at least, and it is %d", len(l.Share.Guarantees), least, p.Burst)
	}
}
