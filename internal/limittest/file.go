package limittest

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// bounds of a file with tests.
var bounds = document.Bounds{
	// Not larger: a file of this size is read well within a second. Not smaller: thousands of steps fit.
	Bytes: 1 << 20, Smaller: "divide it into several files",
	Depth: 16, Keys: 1000, Anchors: 1000, Aliased: 10_000,
}

// maxRepeat bounds the requests of a step, so that a slip does not run for hours.
const maxRepeat = 1_000_000

// longest bounds the time of a test: ten years.
const longest = 10 * 365 * 24 * time.Hour

// file is a file with tests.
type file struct {
	*document.Document
	config []string
	start  time.Time
	tests  []test
}

type test struct {
	name  string
	line  int
	steps []step
}

// step are requests at one time, and what is expected of each.
type step struct {
	at, after time.Duration
	relative  bool // the step comes after the one before, not at a time
	request   *document.Node
	cost      int64
	repeat    int
	hold      bool // permits in flight are kept until the end of the test

	expect    expectation
	limitNode *document.Node
}

// wanted is a value that is expected, and where the file says so.
type wanted struct {
	line int
	text string
}

type expectation struct {
	allowed, status, limit, reason, remaining, retryAfter, resetAfter, soft, matches *wanted
	admitted                                                                         *wanted
}

var (
	fileKeys   = []string{"config", "start", "tests"}
	testKeys   = []string{"name", "steps"}
	stepKeys   = []string{"at", "after", "request", "cost", "repeat", "hold", "expect"}
	expectKeys = []string{"allowed", "status", "limit", "reason", "remaining", "retry_after", "reset_after", "soft", "matches", "admitted"}
)

// parse reads a file.
func parse(name string, src []byte) (*file, error) {
	f := &file{
		Document: document.Read(name, src, bounds, new(document.Faults)),
		start:    time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
	}
	if f.Root == nil {
		if f.Faults.Count() == 0 {
			f.Fault(nil, "begin with config: stint.yaml", "the file is empty")
		}
		return nil, f.err()
	}
	if f.Root.Get("limits") != nil || f.Root.Get("domain") != nil {
		f.Fault(f.Root, "put tests into a file of their own that begins with config: and the path of this one", "this is a limits file, not a file with tests")
		return nil, f.err()
	}
	if !f.mapOf(f.Root, "a file with tests", fileKeys) {
		return nil, f.err()
	}
	for _, n := range f.Root.Get("config").Each() {
		if n.Kind != document.Text || n.Text == "" {
			f.Wants(n, "the path of a limits file", "config: stint.yaml")
			continue
		}
		f.config = append(f.config, n.Text)
	}
	if f.Root.Get("config") == nil {
		f.Fault(f.Root, "config: stint.yaml", "the file names no limits file")
	}
	if n := f.Root.Get("start"); n != nil {
		at, err := time.Parse(time.RFC3339, n.Text)
		if err != nil || at.Year() < 1971 || at.Year() > 2200 {
			f.Wants(n, "a time from 1971 to 2200 such as 2026-01-01T00:00:00Z", "")
		}
		f.start = at
	}
	tests := f.Root.Get("tests")
	if tests == nil || tests.Kind != document.List || len(tests.Items) == 0 {
		f.Fault(cmp.Or(tests, f.Root), "tests: [{name: ..., steps: [...]}]", "the file has no list of tests")
		return nil, f.err()
	}
	for _, n := range tests.Items {
		f.test(n)
	}
	return f, f.err()
}

// err returns all faults as a rules.Errors, or nil.
func (f *file) err() error {
	var list rules.Errors
	for _, fault := range f.Faults.Sorted() {
		list = append(list, rules.Error(fault))
	}
	if list == nil {
		return nil
	}
	return list
}

// mapOf reports whether n is a map, and its keys that are not known.
func (f *file) mapOf(n *document.Node, what string, keys []string) bool {
	if n.Kind != document.Map {
		hint := ""
		if n.Kind == document.Int && slices.Contains(keys, "status") {
			hint = fmt.Sprintf("write {allowed: false, status: %s}", n.Text)
		} else if n.Kind == document.Bool && slices.Contains(keys, "allowed") {
			hint = fmt.Sprintf("write {allowed: %s}", n.Text)
		}
		f.Wants(n, "a map with "+strings.Join(keys, ", "), hint)
		return false
	}
	for i := range n.Fields {
		if key := n.Fields[i].Key; !slices.Contains(keys, key.Text) {
			f.Fault(key, cmp.Or(document.Meant(key.Text, keys), "known keys: "+strings.Join(keys, ", ")), "unknown key %q in %s", key.Text, what)
		}
	}
	return true
}

func (f *file) test(n *document.Node) {
	if !f.mapOf(n, "a test", testKeys) {
		return
	}
	t := test{line: n.Line}
	if name := n.Get("name"); name != nil && name.Text != "" {
		t.name = name.Text
	} else {
		f.Fault(n, "name: five logins a minute", "the test has no name")
	}
	steps := n.Get("steps")
	if steps == nil || steps.Kind != document.List || len(steps.Items) == 0 {
		f.Fault(cmp.Or(steps, n), "steps: [{request: {ip: 192.0.2.7}, expect: {allowed: true}}]", "the test has no steps")
		return
	}
	latest := time.Duration(0)
	for _, item := range steps.Items {
		if s, ok := f.step(item); ok {
			if !s.relative && s.at < latest {
				f.Fault(item.Get("at"), "steps are in the order of their times", "at is %v, and an earlier step is at %v", s.at, latest)
			}
			if s.relative {
				latest += s.after
			} else {
				latest = max(latest, s.at)
			}
			if latest > longest {
				f.Fault(item, "", "the test goes on for more than ten years")
			}
			t.steps = append(t.steps, s)
		}
	}
	f.tests = append(f.tests, t)
}

func (f *file) step(n *document.Node) (step, bool) {
	s := step{cost: 1, repeat: 1, relative: true}
	if !f.mapOf(n, "a step", stepKeys) {
		return s, false
	}
	if at := n.Get("at"); at != nil {
		s.at, s.relative = f.duration(at), false
		if n.Get("after") != nil {
			f.Fault(at, "at counts from the start of the test, after from the step before", "the step has both at and after")
		}
	}
	if after := n.Get("after"); after != nil {
		s.after = f.duration(after)
	}
	s.cost = f.number(n.Get("cost"), 1, 0, limit.MaxCount)
	s.repeat = int(f.number(n.Get("repeat"), 1, 1, maxRepeat))
	s.hold = f.flag(n.Get("hold"))
	s.request = n.Get("request")
	if s.request == nil || s.request.Kind != document.Map {
		f.Fault(cmp.Or(s.request, n), "request: {method: POST, path: /login, ip: 192.0.2.7}", "the step has no request, which is a map of attributes")
		return s, false
	}
	for i := range s.request.Fields {
		key, value := s.request.Fields[i].Key, s.request.Fields[i].Value
		if isMap := value.Kind == document.Map; isMap != (key.Text == "headers") || value.Kind == document.List || value.Kind == document.Null {
			f.Wants(value, "the value of the attribute "+key.Text+" (headers is a map of header fields)", "")
		}
	}
	f.expect(&s, n.Get("expect"))
	return s, true
}

// expect reads what is expected.
func (f *file) expect(s *step, n *document.Node) {
	if n == nil {
		return
	}
	if !f.mapOf(n, "expect", expectKeys) {
		return
	}
	want := func(key string, text func(*document.Node) string) *wanted {
		v := n.Get(key)
		if v == nil {
			return nil
		}
		return &wanted{v.Line, text(v)}
	}
	flag := func(v *document.Node) string { return strconv.FormatBool(f.flag(v)) }
	count := func(v *document.Node) string { return strconv.FormatInt(f.number(v, 0, 0, limit.MaxCount), 10) }
	after := func(v *document.Node) string {
		if v.Text == "never" {
			return v.Text
		}
		return durationText(f.duration(v))
	}
	plain := func(v *document.Node) string {
		if v.Kind == document.Map || v.Kind == document.List || v.Kind == document.Null {
			f.Wants(v, "a name", "")
		}
		return v.Text
	}
	e := &s.expect
	e.allowed, e.soft = want("allowed", flag), want("soft", flag)
	e.status, e.remaining, e.admitted = want("status", count), want("remaining", count), want("admitted", count)
	e.retryAfter, e.resetAfter = want("retry_after", after), want("reset_after", after)
	e.limit, e.reason = want("limit", plain), want("reason", plain)
	s.limitNode = n.Get("limit")
	e.matches = want("matches", func(v *document.Node) string {
		var names []string
		for _, item := range v.Each() {
			if item.Kind != document.Null {
				names = append(names, plain(item))
			}
		}
		return strings.Join(names, ", ")
	})
}

func (f *file) duration(n *document.Node) time.Duration {
	d, err := time.ParseDuration(n.Text)
	if n.Kind == document.Int && n.Text == "0" {
		return 0
	}
	if err != nil || d < 0 || d > longest {
		f.Wants(n, "a duration such as 10s, 1m30s or 250ms", "")
		return 0
	}
	return d
}

func (f *file) number(n *document.Node, otherwise, least, most int64) int64 {
	if n == nil {
		return otherwise
	}
	v, err := strconv.ParseInt(n.Text, 10, 64)
	if n.Kind != document.Int || err != nil || v < least || v > most {
		f.Wants(n, "a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10), "")
		return otherwise
	}
	return v
}

func (f *file) flag(n *document.Node) bool {
	if n == nil {
		return false
	}
	if n.Kind != document.Bool {
		f.Wants(n, "true or false", "")
	}
	return n.Text == "true"
}

// reader makes attributes of requests, as the service does.
type reader struct{ plan *identify.Plan }

func newReader(names []string) reader { return reader{identify.NewPlan(names)} }

func (r reader) attributes(s *step) []limit.Attribute {
	var attrs []limit.Attribute
	headers := http.Header{}
	query := ""
	for i := range s.request.Fields {
		name, value := s.request.Fields[i].Key.Text, s.request.Fields[i].Value
		switch name {
		case "headers":
			for k := range value.Fields {
				headers.Add(value.Fields[k].Key.Text, value.Fields[k].Value.Text)
			}
		case "path":
			query = forwarded.Query(value.Text)
			attrs = identify.AppendPath(attrs, value.Text)
		case "host":
			attrs = append(attrs, limit.Attribute{Name: name, Value: forwarded.Host(value.Text)})
		default:
			attrs = append(attrs, limit.Attribute{Name: name, Value: value.Text})
		}
	}
	return r.plan.Append(attrs, headers, query)
}
