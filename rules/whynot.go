package rules

import (
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// WhyNot returns a text for people why l, a limit in stint's format of this Set, does not apply
// to a request: every part of its match that does not hold, the expression, or the attributes of
// its key that are missing. It is empty when the limit applies. The text has values of the
// request: show it only to the sender of the request.
func (s *Set) WhyNot(l *Limit, domain string, attrs []limit.Attribute) string {
	sub := subject{domain: domain, attrs: attrs, set: s}
	defer sub.release()
	var faults []string
	for i := range l.clause.conditions {
		if text := sub.whyNot(&l.clause.conditions[i]); text != "" {
			faults = append(faults, text)
		}
	}
	if len(faults) == 0 && l.clause.expression != nil {
		if text := sub.whyNotExpression(l.clause.expression); text != "" && !l.matchesDespite(sub.fault) {
			faults = append(faults, text)
		}
	}
	if len(faults) == 0 && l.Missing == MissingSkip {
		for _, name := range l.Key {
			if value, ok := sub.get(name); ok && value == "" {
				faults = append(faults, name+" is empty, and is part of the key (missing: skip)")
			} else if !ok {
				faults = append(faults, sub.missing(name)+", which is part of the key (missing: skip)")
			}
		}
	}
	return strings.Join(faults, "; ")
}

// whyNot says why a condition does not hold, or nothing.
func (s *subject) whyNot(c *condition) string {
	value, ok := s.get(c.name)
	if ok && c.matches(value) {
		return ""
	}
	wants := make([]string, len(c.patterns))
	for i := range c.patterns {
		wants[i] = quoteIfOdd(c.patterns[i].text)
	}
	want := "match wants " + strings.Join(wants, " or ")
	if !ok {
		return s.missing(c.name) + ", and " + want
	}
	return c.name + " is " + quoteIfOdd(shorten(value)) + ", and " + want
}

// missing says that the request has no such attribute, and suggests a similar one that it has.
func (s *subject) missing(name string) string {
	text := "the request has no " + quoteIfOdd(name)
	names := make([]string, len(s.attrs))
	for i := range s.attrs {
		names[i] = s.attrs[i].Name
	}
	if near, ok := document.Suggest(name, names); ok {
		text += " (it has " + strconv.Quote(near) + ")"
	}
	return text
}

// whyNotExpression says why an expression does not hold, or nothing.
func (s *subject) whyNotExpression(e *expression) string {
	if s.evaluate(e) {
		return ""
	}
	if s.fault == noFault {
		return "when does not hold"
	}
	if s.fault == failedEvaluation {
		return "when could not be evaluated: " + s.why.Error()
	}
	for _, name := range e.attributes {
		if _, ok := s.get(name); !ok && !strings.Contains(name, "*") {
			return "when could not be evaluated: " + s.missing(name)
		}
	}
	return "when could not be evaluated"
}

// shorten cuts a value for people.
func shorten(value string) string {
	const most = 100
	if len(value) <= most {
		return value
	}
	return strings.ToValidUTF8(value[:most], "") + "..."
}
