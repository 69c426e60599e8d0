package derive

import (
	"slices"

	"github.com/stint-io/stint/limit"
)

// Plan is the attribute that has a request's plan.
const Plan = "plan"

// Plans knows which plan the customer of a request has.
type Plans interface {
	// By returns the attributes that name customers; nil = there are no plans.
	By() []string
	// Plan returns the plan of a request; "" = there are no plans. known says that it is a customer's own, and not the
	// one of everyone else.
	Plan(attrs []limit.Attribute) (plan string, known bool)
	// Exists reports whether there is a plan of that name.
	Exists(plan string) bool
	// Count returns what a request has in place of nominal, the count that its plan says, of the budget of that name.
	Count(attrs []limit.Attribute, budget string, nominal int64) int64
}

// Planned is a source that finds plans as well.
type Planned struct {
	*Source
	Plans
}

// Derives reports whether a name is one of those that may be derived.
func (p Planned) Derives(name string) bool { return name == Plan || p.Source.Derives(name) }

// Needs returns the attributes from which derived ones among names are found, beside those.
func (p Planned) Needs(names []string) []string {
	more := p.Source.Needs(names)
	if slices.Contains(names, Plan) {
		more = append(more, p.By()...)
	}
	return more
}

// Derive is [Source.Derive], and adds the plan at last: the customer may be derived as well. A customer's own plan
// counts, whatever the caller says; the plan of everyone else where the caller says none, or one that does not exist: it
// would have no limits.
func (p Planned) Derive(names []string, attrs []limit.Attribute) []limit.Attribute {
	out := p.Source.Derive(names, attrs)
	if !slices.Contains(names, Plan) {
		return out
	}
	plan, known := p.Plan(out)
	if plan == "" {
		return out
	}
	said, there := value(out, Plan)
	if there && (said == plan || !known && p.Exists(said)) {
		return out
	}
	if len(out) == len(attrs) {
		out = append(make([]limit.Attribute, 0, len(attrs)+1), attrs...)
	}
	if !there {
		return append(out, limit.Attribute{Name: Plan, Value: plan})
	}
	for i := range out {
		if out[i].Name == Plan {
			out[i].Value = plan
		}
	}
	return out
}
