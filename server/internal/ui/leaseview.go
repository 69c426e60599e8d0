package ui

import (
	"cmp"
	"fmt"
	"html/template"
	"net/url"
	"slices"

	"github.com/stint-io/stint/server/internal/lending"
)

// bucketView is a bucket for the page.
type bucketView struct {
	lending.Resource
	Chart template.HTML
	More  int // leases that are not shown
	Href  string
}

// leaseLive renders the leases.
func leaseLive(u *UI, r *request) (parts []part) {
	v, samples := u.leases.look(r.Context())
	if v.err != nil {
		return []part{u.part("buckets", "none", "note", "The leases cannot be read: "+v.err.Error())}
	}
	only := r.query.Get("limit")
	list := slices.DeleteFunc(v.Resources, func(b lending.Resource) bool { return only != "" && b.Limit != only })
	slices.SortStableFunc(list, func(a, b lending.Resource) int {
		return cmp.Or(cmp.Compare(b.Lent, a.Lent), cmp.Compare(bucketID(&a), bucketID(&b)))
	})
	if v.Note != "" {
		parts = append(parts, u.part("buckets", "elsewhere", "note", v.Note))
	}
	if len(list) == 0 {
		return append(parts, u.part("buckets", "none", "note", "No limit is lent now. Limits with sharing: leased are, while an instance uses them."))
	}
	for i := range list[:min(len(list), pageRows)] {
		b := bucketView{Resource: list[i], Href: "/ui/limit?" + url.Values{"name": {list[i].Limit}}.Encode()}
		if i < leaseCharts {
			b.Chart = area(bucketID(&b.Resource), b.Capacity, samples)
		}
		slices.SortStableFunc(b.Leases, func(x, y lending.Lease) int { return cmp.Compare(y.Granted, x.Granted) })
		if b.More = max(0, len(b.Leases)-maxKeys); b.More > 0 {
			b.Leases = b.Leases[:maxKeys]
		}
		parts = append(parts, u.part("buckets", idOf("b", bucketID(&b.Resource)), "bucket", b))
	}
	if n := len(list) - pageRows; n > 0 {
		parts = append(parts, u.part("buckets", "more", "note", fmt.Sprintf("%d more buckets are not shown: look at one limit with ?limit=NAME.", n)))
	}
	return parts
}
