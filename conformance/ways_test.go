package conformance_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// A way is one way to ask: a transport as its peers use it, a client, or a command.
type way struct {
	name string
	// lacks are elements that the way cannot carry, each with what is missing in it.
	lacks map[feature]string
	// notShared are sharings in which the way does not exist, with the reason.
	notShared map[string]string
	// only are the scenarios that it can be asked, nil = all; otherwise is the reason for the others.
	only      []string
	otherwise string
	// strict: what two servers could read differently is refused.
	strict bool
	// open makes the way ready to be asked at a site.
	open func(t *testing.T, s *site) asker
}

// An asker asks the queries of the scenario that in names.
type asker interface {
	in(scenario string)
	ask(t *testing.T, q query) reply
}

// A settler can end what it was given: a permit or a reservation.
type settler interface {
	settle(t *testing.T, do action, q query, r reply)
}

// A runner answers all steps at once, as commands that read files do.
type runner interface {
	run(t *testing.T, sc scenario, steps []step) []reply
}

// A reloader loads the site's configuration again.
type reloader interface {
	reload(t *testing.T)
}

// reply is an answer in the terms of a want.
type reply struct {
	want
	retry  float64 // seconds; below 0 = none
	permit string
	id     string // of a reservation
	err    error  // there is no decision
}

func (r reply) String() string {
	w := r.want
	return fmt.Sprintf("allowed=%v status=%d limit=%q reason=%q remaining=%d retry=%g body=%.60q location=%q tag=%q warning=%q err=%v",
		w.allowed, w.status, w.limit, w.reason, w.remaining, r.retry, w.body, w.location, w.tag, w.warning, r.err)
}

// compare returns what is different from what is expected, for a way that lacks some elements.
func (r reply) compare(w want, lacks map[feature]string) []string {
	var faults []string
	has := func(f feature) bool { _, lacking := lacks[f]; return !lacking }
	bad := func(what string, got, want any) {
		faults = append(faults, fmt.Sprintf("%s is %v, want %v", what, got, want))
	}
	if w.invalid {
		if r.err == nil {
			return []string{"the request is decided, want it refused as malformed: " + r.String()}
		}
		return nil
	}
	if r.err != nil {
		return []string{"no decision: " + r.err.Error()}
	}
	if r.allowed != w.allowed {
		bad("allowed", r.allowed, w.allowed)
		return append(faults, r.String())
	}
	if has(status) && !w.allowed && r.status != w.status {
		bad("status", r.status, w.status)
	}
	if has(name) && !w.allowed && w.body == "" && w.location == "" && r.limit != w.limit {
		bad("limit", r.limit, w.limit)
	}
	if has(reason) && !w.allowed && w.body == "" && w.location == "" && r.reason != w.reason {
		bad("reason", r.reason, w.reason)
	}
	if has(remaining) && w.allowed && w.remaining >= 0 && r.remaining != w.remaining {
		bad("remaining", r.remaining, w.remaining)
	}
	switch {
	case !has(retry) || w.allowed:
	case w.noRetry && r.retry >= 0:
		bad("retry", r.retry, "none")
	case w.retryAtMost > 0 && (r.retry <= 0 || r.retry > w.retryAtMost):
		bad("retry", r.retry, fmt.Sprintf("above 0 and at most %g s", w.retryAtMost))
	}
	if has(body) && w.body != "" && (r.body != w.body || !strings.HasPrefix(r.contentType, w.contentType)) {
		bad("body", fmt.Sprintf("%q (%s)", r.body, r.contentType), fmt.Sprintf("%q (%s)", w.body, w.contentType))
	}
	if has(fieldsOut) && w.field[0] != "" && r.field[1] != w.field[1] {
		bad(w.field[0], r.field[1], w.field[1])
	}
	if has(location) && r.location != w.location {
		bad("location", r.location, w.location)
	}
	if has(tagged) && w.allowed && r.tag[1] != w.tag[1] {
		bad("tag", r.tag, w.tag)
	}
	if has(warning) && r.warning != w.warning {
		bad("warning", r.warning, w.warning)
	}
	return faults
}

// attributes are the query as name and value pairs, in order: what a caller says that gives
// attributes and no HTTP request.
func (q query) attributes(way string, sc string) [][2]string {
	list := [][2]string{{"method", q.verb()}, {"path", q.target(sc)}}
	if q.ip != "" {
		list = append(list, [2]string{"ip", q.ip})
	} else {
		list = append(list, [2]string{"ip", "127.0.0.1"})
	}
	for _, f := range q.header(way, sc) {
		list = append(list, [2]string{"header:" + strings.ToLower(f[0]), f[1]})
	}
	return list
}

// header are the header fields of the query, in order.
func (q query) header(way, sc string) [][2]string {
	var list [][2]string
	if key, ok := q.fullKey(way, sc); ok {
		list = append(list, [2]string{"X-Api-Key", key})
	}
	if q.second != "" {
		list = append(list, [2]string{"X-Api-Key", way + "/" + q.second})
	}
	if q.alike != "" {
		list = append(list, [2]string{"x_api_key", way + "/" + q.alike})
	}
	for name, value := range q.fields {
		list = append(list, [2]string{http.CanonicalHeaderKey(name), value})
	}
	return list
}

// fullKey is the value of x-api-key. Each way has keys of its own, since all spend the same limits.
func (q query) fullKey(way, sc string) (string, bool) {
	switch {
	case q.noKey:
		return "", false
	case q.rawKey != "":
		return q.rawKey, true
	}
	return strings.ReplaceAll(way, " ", "-") + "/" + q.key, true
}

func (q query) verb() string {
	if q.method != "" {
		return q.method
	}
	return http.MethodGet
}

func (q query) target(sc string) string {
	if q.path != "" {
		return q.path
	}
	return "/" + sc
}

// tokens is the cost as a caller says it: 0 takes nothing.
func (q query) tokens() int64 {
	switch {
	case q.peek:
		return 0
	case q.cost == 0:
		return 1
	}
	return q.cost
}

// with returns the union of sets of lacking elements.
func with(sets ...map[feature]string) map[feature]string {
	all := map[feature]string{}
	for _, set := range sets {
		for f, why := range set {
			all[f] = why
		}
	}
	return all
}

// without returns the union but for one element.
func without(f feature, sets ...map[feature]string) map[feature]string {
	all := with(sets...)
	delete(all, f)
	return all
}

// each gives several elements one reason.
func each(why string, features ...feature) map[feature]string {
	set := map[feature]string{}
	for _, f := range features {
		set[f] = why
	}
	return set
}
