package rules

import (
	"bytes"
	"slices"
	"strings"

	"github.com/stint-io/stint/limit"
)

// Matched is a limit that applies to a request.
type Matched struct {
	Limit   *Limit
	Variant *Variant

	// Key is the encoded key of the bucket; empty when all share one. It
	// aliases the scratch given to Match.
	Key []byte

	// Shadow is set when the refusal of this limit must not refuse the request:
	// the limit is a shadow, or this key is outside the share it is enforced
	// for. Which keys are is the same on every host and after a restart.
	Shadow bool

	// Skip says why the limit does not apply although its match holds, as far as it could be
	// evaluated. Only Limit is set then.
	Skip Skip

	// ConditionFailed is set when the condition could not be evaluated, and the limit applies as its OnConditionError
	// says.
	ConditionFailed bool

	// Missing is set when the request lacks an attribute of the key and the
	// limit says to refuse it then. Nothing is to be charged.
	Missing bool

	// Lacks is set when the request lacks an attribute of the key, and the limit applies nevertheless.
	Lacks bool
}

// Skip says why a limit does not apply to a request that its match holds for. The zero value
// says that it does apply.
type Skip uint8

// The reasons to skip a limit.
const (
	SkipNone       Skip = iota // it applies
	SkipMissingKey             // the request lacks an attribute of the key
	SkipCondition              // the expression of the condition failed, as for an attribute that is missing
)

// subject is a request while it is matched.
type subject struct {
	domain     string
	attrs      []limit.Attribute
	set        *Set
	activation *activation
	fault      fault // of the latest clause; noFault = it was evaluated
	why        error // the error of the latest evaluation that failed
}

func (s *subject) get(name string) (string, bool) {
	if name == domainAttribute && s.domain != "" {
		return s.domain, true
	}
	for i := range s.attrs {
		if sameName(name, s.attrs[i].Name) {
			return s.attrs[i].Value, true
		}
	}
	return "", false
}

// shadowed reports that an earlier attribute has the same name as the i-th.
func (s *subject) shadowed(i int) bool {
	name := canonicalName(s.attrs[i].Name)
	for j := range i {
		if sameName(name, s.attrs[j].Name) {
			return true
		}
	}
	return false
}

// Match appends to dst the limits that apply to a request and returns it, in the
// order of the configuration. The domain is empty unless the protocol has one;
// Envoy limits apply only to requests of their domain, whose attributes are the
// entries of one descriptor, in order.
//
// Keys are appended to scratch, which is returned with them; each Matched.Key
// aliases it and is valid as long as it is not reused. Match does not allocate
// when dst and scratch have room, apart from CEL expressions and Envoy keys with
// a star.
func (s *Set) Match(domain string, attrs []limit.Attribute, dst []Matched, scratch []byte) ([]Matched, []byte) {
	first := len(dst)
	dst, scratch = s.MatchAll(domain, attrs, attrs, dst, scratch)
	kept := dst[:first]
	for i := first; i < len(dst); i++ {
		if dst[i].Skip == SkipNone {
			kept = append(kept, dst[i])
		}
	}
	return kept, scratch
}

// MatchAll is [Set.Match], and also appends the limits that are skipped; see [Matched.Skip]. Envoy limits match entries,
// a descriptor as it came, and all others attrs, which may have more.
func (s *Set) MatchAll(domain string, attrs, entries []limit.Attribute, dst []Matched, scratch []byte) ([]Matched, []byte) {
	first := len(dst)
	dst, scratch = s.matchNative(domain, attrs, dst, scratch)
	for i := range attrs {
		if strings.HasPrefix(attrs[i].Name, readingPrefix) {
			dst, scratch = s.matchReading(domain, attrs, attrs[i].Value, dst, first, scratch)
		}
	}
	if root := s.domains[domain]; root != nil {
		dst, scratch = root.match(entries, dst, first, scratch)
	}
	return dst, scratch
}

// readingPrefix begins the names of attributes that are other readings of the attribute path: what a server could make of
// the path that the client sent.
const readingPrefix = "path:"

// matchReading adds to dst[first:] what applies to a request whose path is another one. A limit applies once for each
// variant and key that it has by some reading, and is skipped if it is by all readings by which it is meant.
func (s *Set) matchReading(domain string, attrs []limit.Attribute, path string, dst []Matched, first int, scratch []byte) ([]Matched, []byte) {
	attrs = slices.Clone(attrs)
	at := slices.IndexFunc(attrs, func(a limit.Attribute) bool { return a.Name == "path" })
	if at < 0 {
		at, attrs = len(attrs), append(attrs, limit.Attribute{Name: "path"})
	}
	attrs[at].Value = path
	found, scratch := s.matchNative(domain, attrs, nil, scratch)
	for _, m := range found {
		from, _ := slices.BinarySearchFunc(dst[first:], m.Limit.order, func(m Matched, order int) int { return m.Limit.order - order })
		to := first + from
		for from = to; to < len(dst) && dst[to].Limit == m.Limit; to++ {
			if o := &dst[to]; o.Variant == m.Variant && bytes.Equal(o.Key, m.Key) {
				break
			}
		}
		switch {
		case to < len(dst) && dst[to].Limit == m.Limit: // it is there
		case from == to:
			dst = slices.Insert(dst, to, m)
		case m.Skip != SkipNone:
		case dst[from].Skip != SkipNone:
			dst[from] = m
		default:
			dst = slices.Insert(dst, to, m)
		}
	}
	return dst, scratch
}

// matchNative appends the limits in stint's format that apply, and those that are skipped.
func (s *Set) matchNative(domain string, attrs []limit.Attribute, dst []Matched, scratch []byte) ([]Matched, []byte) {
	sub := subject{domain: domain, attrs: attrs, set: s}
	first := len(dst)
	var lists [16][]int32
	for _, list := range s.index.candidates(&sub, lists[:0]) {
		for _, number := range list {
			sub.fault = noFault
			switch l := s.native[number]; {
			case l.clause.holds(&sub):
				dst = insert(dst, first, Matched{Limit: l})
			case l.matchesDespite(sub.fault):
				dst = insert(dst, first, Matched{Limit: l, ConditionFailed: true})
			case sub.fault != noFault:
				dst = insert(dst, first, Matched{Limit: l, Skip: SkipCondition})
			}
		}
	}
	for i := first; i < len(dst); i++ {
		l := dst[i].Limit
		if dst[i].Skip != SkipNone {
			continue
		}
		m := Matched{Limit: l, Variant: l.variant(&sub), Shadow: l.Shadow, ConditionFailed: dst[i].ConditionFailed}
		at, missing := len(scratch), false
		if scratch, missing = l.appendKey(scratch, &sub); missing && l.Missing == MissingSkip {
			scratch = scratch[:at]
			dst[i].Skip = SkipMissingKey
			continue
		}
		m.Key, m.Lacks = scratch[at:len(scratch):len(scratch)], missing
		m.Missing = missing && l.Missing == MissingReject && !m.Variant.Policy.Unlimited // an exempt request needs no key
		if l.EnforcePermyriad < 10000 && permyriad(l.salt, m.Key) >= l.EnforcePermyriad {
			m.Shadow = true
		}
		dst[i] = m
	}
	sub.release()
	return dst, scratch
}

// insert keeps dst[first:] ascending, without duplicates: a limit that is filed under several
// prefixes is found once for each that fits.
func insert(dst []Matched, first int, m Matched) []Matched {
	at := len(dst)
	for at > first && dst[at-1].Limit.order >= m.Limit.order {
		if dst[at-1].Limit == m.Limit {
			return dst
		}
		at--
	}
	dst = append(dst, Matched{})
	copy(dst[at+1:], dst[at:])
	dst[at] = m
	return dst
}

// variant returns the policy of the first override that holds, or the base. An override whose condition costs too much to
// evaluate holds if it admits no more at once than the base: a client must not choose the larger of both.
func (l *Limit) variant(s *subject) *Variant {
	if l.overrides == nil {
		return &l.Base
	}
	best := len(l.Overrides)
	var lists [8][]int32
	for _, list := range l.overrides.candidates(s, lists[:0]) {
		for _, number := range list {
			if int(number) >= best {
				break
			}
			o := &l.Overrides[number]
			if s.fault = noFault; o.clause.holds(s) || s.fault == failedEvaluation && o.Policy.Quota() <= l.Base.Policy.Quota() {
				best = int(number)
				break
			}
		}
	}
	if best == len(l.Overrides) {
		return &l.Base
	}
	return &l.Overrides[best].Variant
}
