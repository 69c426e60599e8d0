package rules

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stint-io/stint/internal/document"
)

// Set is a compiled configuration. It is immutable and safe for concurrent use.
// The zero value holds no limits, but is made by [Load], [Parse] and [Watch].
type Set struct {
	limits     []*Limit
	native     []*Limit // those in stint's format, by their number in index
	variants   []*Variant
	store      string
	warnings   []Error
	attributes []string
	index      *index
	domains    map[string]*descriptors
	content    fingerprint
	options    Options
	throttle   *Throttle
	identity   Identity
	events     Events
	estimates  Estimates
	plans      Plans
	divisions  []Division

	activations      sync.Pool // of *activation
	expressionErrors atomic.Int64
}

// Limits returns the limits in the order of the configuration. Read-only.
func (s *Set) Limits() []*Limit { return s.limits }

// Variants returns the policies of all limits; each one's Index is its place.
// Read-only.
func (s *Set) Variants() []*Variant { return s.variants }

// Store names the store that the files ask for; "memory" by default. Whether it is available is
// not checked here.
func (s *Set) Store() string { return s.store }

// Warnings returns the doubtful parts of the configuration that are no faults. Read-only.
func (s *Set) Warnings() []Error { return s.warnings }

// Unprovided warns of attributes that no gateway and no middleware of this module provides, each
// at the first limit that reads it. Limits for which instances decide by themselves are left
// out: instances send the values of the key. Whether other callers provide an attribute is not
// known from the files.
func (s *Set) Unprovided() []Error {
	var out []Error
	seen := make(map[string]bool)
	for _, l := range s.native {
		if l.Sharing.Local() {
			continue
		}
		names := slices.Clone(l.Key)
		if l.Share != nil {
			names = append(names, l.Share.By...)
		}
		names = l.clause.names(names)
		for i := range l.Overrides {
			names = l.Overrides[i].clause.names(names)
		}
		for _, name := range names {
			if seen[name] || provided(name) || s.identity.finds(name) || name == PlanAttribute && len(s.plans.Names) > 0 {
				continue
			}
			seen[name] = true
			did := ""
			if near, ok := nearAttribute(name); ok {
				did = fmt.Sprintf("did you mean %s? ", near)
			}
			if strings.ContainsAny(name, "{}") {
				did = "write the names alone, in a list such as [ip, path]; otherwise "
			}
			if hint := identityHint(name); hint != "" {
				did = hint + ", or "
			}
			if names := strings.FieldsFunc(name, func(r rune) bool { return r == ',' || r == ' ' }); len(names) > 1 {
				did = "for several attributes write [" + strings.Join(names, ", ") + "]; otherwise "
			}
			out = append(out, Error{
				File: l.File, Line: l.Line,
				Message: fmt.Sprintf("limit %q goes by %q, which no gateway and no middleware provides", l.Name, name),
				Hint:    did + "the caller has to provide it: in the attributes of /v1/take, as an entry of Envoy's descriptor, with attr." + name + "= in the path of a decision endpoint, or with WithAttributes; header:NAME is provided",
			})
		}
	}
	return out
}

// Attributes returns, sorted, the names of all attributes that some limit in
// stint's format reads, so that others need not be gathered. The entry "*" means
// that an expression may read any, "header:*" any header. Names of headers are in
// lower case. Read-only.
func (s *Set) Attributes() []string { return s.attributes }

// HasDomain reports whether there is an Envoy file for the domain.
func (s *Set) HasDomain(domain string) bool { return s.domains[domain] != nil }

// Options returns the Options that the Set was made with.
func (s *Set) Options() Options { return s.options }

// ExpressionErrors counts the evaluations of CEL expressions that failed, and so
// did not hold, since the Set was made.
func (s *Set) ExpressionErrors() int64 { return s.expressionErrors.Load() }

// maxLimits bounds the limits of a Set, Envoy's and overrides included. Not larger: a reload
// builds a second Set beside the first. Not smaller: users have tens of thousands.
const maxLimits = 100_000

// builder makes a Set out of documents.
type builder struct {
	set         *Set
	faults      *document.Faults
	expressions expressions
	names       map[string]*Limit
	storeAt     string
	identityAt  *document.Node
	eventsAt    *document.Node
	plansAt     *document.Node
	estimatesAt *document.Node
	inHorizons  bool              // the limit that is read is one of several with one key
	inPlan      string            // the plan of the limit that is read; "" = none
	pools       map[string]*Limit // by Variant.Pool, the first of each
	withins     []withinAt
	attributes  map[string]bool
	variants    int
	full        bool
	warned      map[document.Fault]bool // without excerpts
}

func newBuilder(found *document.Faults) *builder {
	s := &Set{store: "memory", domains: make(map[string]*descriptors)}
	s.activations.New = func() any { return new(activation) }
	return &builder{
		set: s, faults: found,
		names: make(map[string]*Limit), pools: make(map[string]*Limit), attributes: make(map[string]bool),
	}
}

// add adds a limit to the Set. It returns false when there are too many, and records that fault
// once.
func (b *builder) add(d *file, n *document.Node, l *Limit) bool {
	b.variants += 1 + len(l.Overrides)
	if b.variants > maxLimits {
		if !b.full {
			d.Fault(n, "", "more than %d limits and overrides", maxLimits)
		}
		b.full = true
		return false
	}
	l.File, l.Line = d.Name, n.Line
	l.order = len(b.set.limits)
	l.salt = hashName(l.Name)
	b.set.limits = append(b.set.limits, l)
	return true
}

func (b *builder) warn(d *file, n *document.Node, hint, format string, args ...any) {
	if len(b.set.warnings) >= document.MaxFaults {
		return
	}
	f := d.At(n.Line, n.Column, hint, format, args...)
	if b.warned[f] {
		return
	}
	if b.warned == nil {
		b.warned = map[document.Fault]bool{}
	}
	b.warned[f] = true
	f.Excerpt = d.Excerpt(f)
	b.set.warnings = append(b.set.warnings, Error(f))
}

// finish builds what Match works on.
func (b *builder) finish() (*Set, error) {
	b.divisions()
	if err := errorsOf(b.faults); err != nil {
		return nil, err
	}
	s := b.set
	for _, l := range s.limits {
		s.take(&l.Base)
		for i := range l.Overrides {
			s.take(&l.Overrides[i].Variant)
		}
		if l.Envoy {
			continue
		}
		s.native = append(s.native, l)
		b.reads(&l.clause)
		for _, name := range l.Key {
			b.attributes[name] = true
		}
		if l.Share != nil {
			for _, name := range l.Share.By {
				b.attributes[name] = true
			}
		}
		for _, name := range l.readsBesides() {
			b.attributes[name] = true
		}
		if len(l.Overrides) > 0 {
			l.overrides = newIndex(len(l.Overrides), func(i int) *clause { return &l.Overrides[i].clause })
			for i := range l.Overrides {
				b.reads(&l.Overrides[i].clause)
			}
		}
	}
	if t := s.throttle; t != nil {
		t.set = s
		for _, name := range t.names() {
			b.attributes[name] = true
		}
	}
	s.index = newIndex(len(s.native), func(i int) *clause { return &s.native[i].clause })
	delete(b.attributes, domainAttribute)
	for name := range b.attributes {
		s.attributes = append(s.attributes, name)
	}
	slices.Sort(s.attributes)
	return s, nil
}

func (s *Set) take(v *Variant) {
	v.Index = len(s.variants)
	s.variants = append(s.variants, v)
}

func (b *builder) reads(c *clause) {
	for _, name := range c.names(nil) {
		b.attributes[name] = true
	}
}
