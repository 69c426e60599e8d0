// Package limittest tests limits files: requests at stated times, and what is expected of each, from a
// file in YAML.
//
// Each test begins with empty counters and has a clock of its own, which only its steps move. Requests are
// decided by the engine and the memory store of the service. It connects to nothing and waits for nothing.
package limittest

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/derive/fromfiles"
	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// Report is what became of the tests of one file.
type Report struct {
	File   string `json:"file"`
	Passed int    `json:"passed"`
	Failed int    `json:"failed"`
	Tests  []Test `json:"tests"`
}

// Test is what became of one test.
type Test struct {
	Name     string    `json:"test"`
	Line     int       `json:"line"`
	OK       bool      `json:"ok"`
	Failures []Failure `json:"failures"`
}

// Failure is an expectation that was not met.
type Failure struct {
	Line    int    `json:"line"`    // of the expectation
	Request string `json:"request"` // which, such as "request 3 of 5, at 10s"
	What    string `json:"what"`    // such as remaining
	Got     string `json:"got"`
	Want    string `json:"want"`
}

// maxFailures bounds the failures of one test: the rest follow from the first ones.
const maxFailures = 10

// Run tests the file of that name. An error is a [rules.Errors] when the file, or the limits that it
// names, have faults.
func Run(ctx context.Context, name string, src []byte) (*Report, error) {
	f, err := parse(name, src)
	if err != nil {
		return nil, err
	}
	paths := make([]string, len(f.config))
	for i, path := range f.config {
		if paths[i] = path; !filepath.IsAbs(path) {
			paths[i] = filepath.Join(filepath.Dir(name), path)
		}
	}
	set, err := rules.Load(paths...)
	if err != nil {
		return nil, err
	}
	if err := f.check(set); err != nil {
		return nil, err
	}
	report := &Report{File: name, Tests: []Test{}}
	for i := range f.tests {
		t, err := f.tests[i].run(ctx, set, f.start)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, f.tests[i].line, err)
		}
		if t.OK {
			report.Passed++
		} else {
			report.Failed++
		}
		report.Tests = append(report.Tests, *t)
	}
	return report, nil
}

// run plays one test.
func (t *test) run(ctx context.Context, set *rules.Set, start time.Time) (*Test, error) {
	out := &Test{Name: t.name, Line: t.line, Failures: []Failure{}}
	now := limit.At(start)
	source, err := fromfiles.Open(ctx, set, func() time.Time { return time.Unix(0, int64(now)) })
	if err != nil {
		return nil, err
	}
	st := memory.New(memory.Options{Now: func() limit.Time { return now }})
	e, err := engine.New(st, set, engine.Options{Derive: func(*rules.Set) engine.Deriver { return source }})
	if err != nil {
		return nil, err
	}
	read := newReader(e.Attributes())
	for i := range t.steps {
		s := &t.steps[i]
		now = max(now, limit.At(start)+limit.Time(s.at))
		if s.relative {
			now += limit.Time(s.after)
		}
		attrs := read.attributes(s)
		admitted := 0
		for n := range s.repeat {
			var q engine.Query
			// As POST /v1/take: a cost of 0 asks whether 1 would be admitted, and takes nothing.
			q.Peek = s.cost == 0
			q.Descriptors = []engine.Descriptor{{Attributes: attrs, Cost: max(1, s.cost)}}
			if err := e.Decide(ctx, &q); err != nil {
				return nil, err
			}
			d := &q.Decision
			if d.Allowed {
				admitted++
			}
			where := fmt.Sprintf("request %d of %d, at %v", n+1, s.repeat, time.Duration(now-limit.At(start)))
			out.expect(s, d, where)
			if d.Permit != 0 && !s.hold {
				if err := e.Finish(ctx, limit.Request{Attributes: attrs}, d.Permit); err != nil {
					return nil, err
				}
			}
		}
		if s.expect.admitted != nil {
			out.compare(s.expect.admitted.line, fmt.Sprintf("%d requests, at %v", s.repeat, time.Duration(now-limit.At(start))), "admitted", fmt.Sprint(admitted), s.expect.admitted.text)
		}
	}
	out.OK = len(out.Failures) == 0
	return out, st.Close()
}

// expect compares a decision with what a step expects.
func (t *Test) expect(s *step, d *limit.Decision, where string) {
	named, r := s.expect.limit, tightest(d)
	for i := range d.Results {
		if named != nil && d.Results[i].Limit == named.text {
			r = &d.Results[i]
		}
	}
	check := func(w *wanted, what, got string) {
		if w != nil {
			t.compare(w.line, where, what, got, w.text)
		}
	}
	check(s.expect.allowed, "allowed", fmt.Sprint(d.Allowed))
	status := d.Status
	if d.Allowed {
		status = http.StatusOK
	}
	check(s.expect.status, "status", fmt.Sprint(status))
	if named != nil {
		check(named, "limit", nameOf(r, d))
	}
	if s.expect.matches != nil {
		var names []string
		for i := range d.Results {
			names = append(names, d.Results[i].Limit)
		}
		check(s.expect.matches, "matches", strings.Join(names, ", "))
	}
	if r == nil {
		for what, w := range map[string]*wanted{"remaining": s.expect.remaining, "reason": s.expect.reason, "reset_after": s.expect.resetAfter, "soft": s.expect.soft} {
			check(w, what, "no limit met")
		}
	} else {
		check(s.expect.remaining, "remaining", fmt.Sprint(r.Remaining))
		check(s.expect.reason, "reason", reasonOf(r))
		check(s.expect.resetAfter, "reset_after", durationText(r.ResetAfter))
		check(s.expect.soft, "soft", fmt.Sprint(r.Soft))
	}
	retry := d.RetryAfter()
	if named != nil && r != nil {
		retry = r.RetryAfter
	}
	check(s.expect.retryAfter, "retry_after", durationText(retry))
}

// nameOf says which limit the expectation of a name met: of a refusal the one that refused.
func nameOf(r *limit.Result, d *limit.Decision) string {
	if r == nil {
		return "no limit met"
	}
	if !d.Allowed && (r.Allowed || r.Shadow) {
		var names []string
		for i := range d.Results {
			if x := &d.Results[i]; !x.Allowed && !x.Shadow {
				names = append(names, x.Limit)
			}
		}
		return strings.Join(names, ", ")
	}
	return r.Limit
}

// tightest is the result that is expected of when no limit is named: the first that refuses, or the one
// with the least remaining.
func tightest(d *limit.Decision) *limit.Result {
	var best *limit.Result
	for i := range d.Results {
		r := &d.Results[i]
		switch {
		case !d.Allowed && !r.Allowed && !r.Shadow:
			return r
		case best == nil || r.Remaining < best.Remaining:
			best = r
		}
	}
	return best
}

func reasonOf(r *limit.Result) string {
	if r.Allowed {
		return "none"
	}
	return r.Reason.String()
}

func durationText(d time.Duration) string {
	if d == limit.Never {
		return "never"
	}
	return d.Round(time.Millisecond).String()
}

func (t *Test) compare(line int, where, what, got, want string) {
	if got != want && len(t.Failures) < maxFailures {
		t.Failures = append(t.Failures, Failure{line, where, what, got, want})
	}
}

// check finds limits that expectations name and the files do not have.
func (f *file) check(set *rules.Set) error {
	var names []string
	for _, l := range set.Limits() {
		names = append(names, l.Name)
	}
	for i := range f.tests {
		for k := range f.tests[i].steps {
			if n := f.tests[i].steps[k].limitNode; n != nil {
				f.known(n, names)
			}
		}
	}
	return f.err()
}

// known reports a limit that does not exist.
func (f *file) known(n *document.Node, names []string) {
	for _, name := range names {
		if name == n.Text {
			return
		}
	}
	hint := document.Meant(n.Text, names)
	if hint == "" {
		hint = "limits: " + strings.Join(names, ", ")
	}
	f.Fault(n, hint, "there is no limit %q", n.Text)
}
