package rules

import (
	"slices"
	"strconv"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Estimates is the section estimates of limits files: how the cost of a reservation is estimated that does not say it. The
// zero value estimates nothing.
type Estimates struct {
	// By are the attributes by which costs are learned, at least one; by the first alone is learned what those that are new
	// by the others begin with.
	By []string
	// Declared is the attribute that has the most that a request can cost.
	Declared string
	// Quantile of the recent costs is estimated, above 0 and below 1.
	Quantile float64
	// Start is the estimate of what nothing is known of; 0 = the declared most.
	Start int64
}

var estimatesKeys = []string{"by", "declared", "quantile", "start"}

const (
	defaultDeclared = "max_tokens"
	defaultQuantile = 0.9
	maxEstimatesBy  = 4 // not more: each combination is learned by itself
)

// Estimates returns the section estimates of the files. Read-only.
func (s *Set) Estimates() Estimates { return s.estimates }

// estimates reads the section.
func (b *builder) estimates(d *file, n *document.Node) {
	if !d.section(n, "estimates", "a map such as {by: [model, tenant]}", estimatesKeys) {
		return
	}
	if b.estimatesAt != nil {
		d.Fault(n, "write it in one file only", "another estimates is in line %d of another place", b.estimatesAt.Line)
		return
	}
	b.estimatesAt = n
	e := Estimates{Declared: defaultDeclared, Quantile: defaultQuantile}
	by := n.Get("by")
	if by == nil {
		d.Fault(n, "add by: [model, tenant]", "estimates does not say by which attributes costs are learned")
		return
	}
	for _, item := range by.Each() {
		name, ok := d.attribute(item)
		switch {
		case !ok:
			return
		case name == PlanAttribute || b.set.identity.finds(name):
			d.Fault(item, "name an attribute that the caller gives", "%s is found from others: estimates know what the request itself says", name)
			return
		case slices.Contains(e.By, name):
			d.Fault(item, "", "%s stands here twice", name)
			return
		}
		e.By = append(e.By, name)
	}
	if len(e.By) == 0 || len(e.By) > maxEstimatesBy {
		d.Wants(by, "1 to "+strconv.Itoa(maxEstimatesBy)+" attributes", "write the model first: [model, tenant]")
		return
	}
	if at := n.Get("declared"); at == nil && slices.Contains(e.By, e.Declared) {
		d.Fault(by, "name the attribute that has the most in declared, or leave it out of by", "%s has the most that a request can cost", e.Declared)
		return
	} else if at != nil {
		name, ok := d.attribute(at)
		switch {
		case !ok:
			return
		case slices.Contains(e.By, name):
			d.Fault(at, "name the attribute that has the most that a request can cost", "%s is in by", name)
			return
		}
		e.Declared = name
	}
	if at := n.Get("quantile"); at != nil {
		q, err := strconv.ParseFloat(at.Text, 64)
		if at.Kind != document.Float || err != nil || !(q >= 0.01 && q <= 0.999) {
			d.Wants(at, "a number from 0.01 to 0.999", "0.9 is what nine requests of ten cost at most")
			return
		}
		e.Quantile = q
	}
	if at := n.Get("start"); at != nil {
		var ok bool
		if e.Start, ok = d.integer(at, 1, limit.MaxCount); !ok {
			return
		}
	}
	b.set.estimates = e
}
