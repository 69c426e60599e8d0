package ui

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/internal/lasthour"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// page is one of the dashboard.
type page struct {
	name, title string // of its template, and for people
	// fixed returns what does not change while somebody looks.
	fixed func(u *UI, r *request) any
	// live renders what does.
	live func(u *UI, r *request) []part
}

// request is who asks, and what for.
type request struct {
	*http.Request
	query url.Values
	said  string // what to say on top
}

// part is an element of a page that may change.
type part struct {
	into, id string
	html     template.HTML
}

var (
	limitsPage  = &page{"limits", "Limits", limitsFixed, limitsLive}
	limitPage   = &page{"limit", "Limit", limitFixed, limitLive}
	leasesPage  = &page{"leases", "Leases", nil, leaseLive}
	membersPage = &page{"members", "Members", nil, membersLive}
	bansPage    = &page{"bans", "Bans", nil, bansLive}
	explainPage = &page{"explain", "Explain", explainFixed, nothingLive}

	// pages are all by their paths.
	pages = map[string]*page{
		Prefix: limitsPage, "/ui/limit": limitPage, "/ui/leases": leasesPage, "/ui/members": membersPage, "/ui/bans": bansPage, "/ui/explain": explainPage,
	}
)

var functions = template.FuncMap{
	"rate": func(v float64) string {
		if v > 0 && v < 0.1 {
			return "<0.1"
		}
		return strconv.FormatFloat(v, 'f', map[bool]int{true: 0, false: 1}[v >= 100], 64)
	},
	"full":    func(v *float64) bool { return *v >= 95 },
	"link":    func(name string) string { return "/ui/limit?" + url.Values{"name": {name}}.Encode() },
	"percent": func(v *float64) string { return strconv.FormatFloat(*v, 'f', 0, 64) },
	"span":    func(seconds float64) string { return (time.Duration(seconds) * time.Second).String() },
	"whole":   func(v float64) string { return strconv.FormatFloat(v, 'f', 0, 64) },
}

// idOf is an ID for an element about something of any name. Clients choose keys, so no two have one that they could find.
func idOf(kind, name string) string {
	sum := sha256.Sum256([]byte(name))
	return kind + hex.EncodeToString(sum[:16])
}

// part renders an element.
func (u *UI) part(into, id, name string, data any) part {
	var b bytes.Buffer
	if err := u.pages.ExecuteTemplate(&b, name, struct {
		ID   string
		Data any
	}{id, data}); err != nil {
		panic(err) // a template of this package is wrong
	}
	return part{into, id, template.HTML(b.String())} //nolint:gosec // html/template has escaped it
}

// status is what each page shows on top.
func (u *UI) status() []part {
	ready, text := u.o.Ready()
	state, class := "ready", "good"
	switch {
	case !ready:
		state, class = "not ready", "bad"
	case text != "":
		state, class = "degraded", "warn"
	}
	return []part{u.part("status", "state", "state", map[string]any{
		"State": state, "Class": class, "Text": text, "Config": u.o.ConfigVersion(), "Limits": len(u.o.Limits().Limits()),
	})}
}

// show writes a page.
func (u *UI) show(w http.ResponseWriter, r *http.Request, p *page, status int, said string) {
	ask := &request{Request: r, query: r.URL.Query(), said: said}
	if len(r.URL.RawQuery) > maxForm {
		ask.query = url.Values{}
	}
	data := struct {
		Title, Page, Version, Said, Of string
		Bad, Session                   bool
		Fixed                          any
		Live                           map[string][]template.HTML
	}{
		Title: p.title, Page: p.name, Version: u.o.Version, Said: cmp.Or(said, ask.query.Get("said")), Bad: status >= 400,
		Of: r.URL.RequestURI(), Live: map[string][]template.HTML{},
	}
	if len(data.Said) > 300 || r.Method != http.MethodGet {
		data.Of = ""
	}
	if _, err := r.Cookie(Cookie); err == nil {
		data.Session = true
	}
	if p.fixed != nil {
		data.Fixed = p.fixed(u, ask)
	}
	if m, ok := data.Fixed.(missing); ok {
		status, data.Said, data.Bad = http.StatusNotFound, string(m), true
	}
	for _, one := range append(u.status(), p.live(u, ask)...) {
		data.Live[one.into] = append(data.Live[one.into], one.html)
	}
	var b bytes.Buffer
	if err := u.pages.ExecuteTemplate(&b, p.name+"-page", data); err != nil {
		panic(err) // a template of this package is wrong
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	// A failed write means that the client has gone.
	_, _ = w.Write(b.Bytes())
}

// Cookie is the name of the cookie that says who is signed in.
const Cookie = "stint_ui"

// missing says that what a page is of is not there.
type missing string

// limitQuery reads which rows are wanted.
func limitQuery(v url.Values) query {
	n, _ := strconv.Atoi(v.Get("page")) // 0 when it is no number
	return query{find: v.Get("find"), sort: v.Get("sort"), page: max(n-1, 0), most: pageRows, keys: 1}
}

// topQuery is limitQuery for GET /v1/top, which says what is wrong.
func topQuery(v url.Values) (q query, err error) {
	q = query{find: v.Get("find"), sort: cmp.Or(v.Get("sort"), "refused"), most: pageRows, keys: 3}
	if sorts[q.sort] == nil {
		return q, fmt.Errorf("sort is %.100q, want refused, allowed or name", q.sort)
	}
	for name := range v {
		if !slices.Contains([]string{"find", "sort", "limits", "keys"}, name) {
			return q, fmt.Errorf("unknown parameter %.100q, want find, sort, limits, keys", name)
		}
	}
	for _, one := range []struct {
		name string
		to   *int
		most int
	}{{"limits", &q.most, 1000}, {"keys", &q.keys, maxKeys}} {
		if text := v.Get(one.name); text != "" {
			if *one.to, err = strconv.Atoi(text); err != nil || *one.to < 1 || *one.to > one.most {
				return q, fmt.Errorf("%s is %.100q, want 1 to %d", one.name, text, one.most)
			}
		}
	}
	return q, nil
}

func limitsFixed(_ *UI, r *request) any {
	q := limitQuery(r.query)
	if sorts[q.sort] == nil {
		q.sort = "refused"
	}
	return map[string]any{"Find": q.find, "Sort": q.sort}
}

func limitsLive(u *UI, r *request) (parts []part) {
	q := limitQuery(r.query)
	t := u.figures.rows(r.Context(), q)
	for i := range t.rows {
		parts = append(parts, u.part("rows", idOf("r", t.rows[i].Limit), "row", &t.rows[i]))
	}
	if len(t.rows) == 0 {
		parts = append(parts, u.part("rows", "none", "norow", "No limit matches."))
	}
	at := func(n int) string {
		v := url.Values{}
		for _, name := range []string{"find", "sort"} {
			if r.query.Get(name) != "" {
				v.Set(name, r.query.Get(name))
			}
		}
		v.Set("page", strconv.Itoa(n))
		return "/ui?" + v.Encode()
	}
	page := min(q.page, t.pages-1) + 1
	foot := map[string]any{"Total": t.total, "Page": page, "Pages": t.pages, "Error": max(t.top.AdmittedError, t.top.RefusedError), "One": t.top.One}
	if page > 1 {
		foot["Before"] = at(page - 1)
	}
	if page < t.pages {
		foot["After"] = at(page + 1)
	}
	return append(parts, u.part("foot", "pager", "pager", foot))
}

// limitOf returns the limit that a page is of, or nil.
func (u *UI) limitOf(r *request) *rules.Limit {
	for _, l := range u.o.Limits().Limits() {
		if l.Name == r.query.Get("name") {
			return l
		}
	}
	return nil
}

// limitFixed has what a limit is, and the answer to "what if".
func limitFixed(u *UI, r *request) any {
	l := u.limitOf(r)
	if l == nil {
		return missing(fmt.Sprintf("There is no limit %.100q. It may have been renamed: look among all limits.", r.query.Get("name")))
	}
	d := map[string]any{
		"Name": l.Name, "Rate": policyText(&l.Base.Policy), "Key": strings.Join(l.Key, ", "), "Purpose": l.Purpose, "File": l.File, "Line": l.Line,
		"Shadow": l.Shadow, "Overrides": len(l.Overrides), "Exceed": l.ExceedText(), "Want": r.query.Get("rate"), "WantBurst": r.query.Get("burst"),
		"CanPlay": l.Base.Policy.Algorithm != limit.Concurrency && !l.Base.Policy.Unlimited,
	}
	if text := r.query.Get("rate"); text != "" {
		a, then, err := u.whatIf(r.Context(), l, text, r.query.Get("burst"))
		if err != nil {
			d["Wrong"] = err.Error()
		} else {
			d["Answer"], d["Then"], d["Took"] = a, policyText(&then), a.To.Sub(a.From).Round(time.Second).String()
		}
	}
	return d
}

// whatIf plays the latest hour with another rate.
func (u *UI) whatIf(ctx context.Context, l *rules.Limit, rate, burst string) (a lasthour.Answer, then limit.Policy, err error) {
	then = l.Base.Policy
	if then.Rate, err = limit.ParseRate(rate); err != nil {
		return a, then, err
	}
	written, err := limit.DefaultBurst(rate)
	if err != nil {
		return a, then, err
	}
	switch {
	case then.Algorithm == limit.TokenBucket:
		then.Burst = written
	case then.Algorithm != limit.LeakyBucket:
		then.Rate = then.Rate.WithCount(written)
	}
	if burst != "" {
		if then.Burst, err = strconv.ParseInt(burst, 10, 64); err != nil {
			return a, then, fmt.Errorf("burst is %.100q, want a whole number", burst)
		}
	}
	if err = then.Validate(); err != nil {
		return a, then, err
	}
	select {
	case u.playing <- struct{}{}:
		defer func() { <-u.playing }()
	case <-ctx.Done():
		return a, then, ctx.Err()
	}
	a, err = u.o.Watch.WhatIf(ctx, l.Name, l.Base.Policy, then, 0)
	return a, then, err
}

func limitLive(u *UI, r *request) []part {
	l := u.limitOf(r)
	if l == nil {
		return nil
	}
	t := u.figures.rows(r.Context(), query{find: l.Name, sort: "name", most: len(u.o.Limits().Limits()) + 1, keys: maxKeys})
	i := slices.IndexFunc(t.rows, func(row Row) bool { return row.Limit == l.Name })
	if i < 0 {
		return nil
	}
	row := &t.rows[i]
	parts := []part{u.part("numbers", "now", "now", row)}
	allowed, refused := u.figures.series(l.Name)
	parts = append(parts, part{"chart", "curve", template.HTML(`<div id="curve">`) + chart(allowed, refused) + `</div>`})
	for _, one := range []struct {
		into  string
		keys  []KeyRate
		error float64
	}{{"top", row.Top, t.top.AdmittedError}, {"most", row.Most, t.top.RefusedError}} {
		for _, k := range one.keys {
			parts = append(parts, u.part(one.into, idOf(one.into, k.Key), "keyrow", k))
		}
		if len(one.keys) == 0 {
			parts = append(parts, u.part(one.into, one.into+"none", "nokey", nil))
		}
		parts = append(parts, u.part(one.into+"-error", one.into+"-note", "error", map[string]any{"Error": one.error, "One": t.top.One}))
	}
	return parts
}

func membersLive(u *UI, r *request) (parts []part) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	list, err := u.o.Members(ctx)
	if err != nil {
		parts = append(parts, u.part("notes", "fault", "note", "What members enforce cannot be read: "+err.Error()))
	}
	for _, m := range list {
		parts = append(parts, u.part("members", idOf("m", m.Name), "member", m))
	}
	if len(list) == 0 {
		parts = append(parts, u.part("notes", "alone", "note", "This server has no others: it runs without --cluster, and its limits are in files."))
	}
	return parts
}

func bansLive(u *UI, r *request) (parts []part) {
	list, next, err := u.o.Bans.Page(r.Context(), r.query.Get("limit"), "", maxBans)
	if err != nil {
		return []part{u.part("notes", "fault", "note", err.Error())}
	}
	for _, b := range list {
		var key []string
		for _, a := range b.Key {
			value := strings.ToValidUTF8(a.Value, "\uFFFD")
			if a.Name != "ip" { // as in the other pages
				value = strconv.Quote(value)
			}
			key = append(key, a.Name+"="+value)
		}
		switch {
		case len(b.Key) == 0 && b.Key != nil:
			key = []string{"all requests"}
		case b.Key == nil:
			key = []string{"(not known: only its hash is kept)"}
		}
		parts = append(parts, u.part("bans", idOf("x", b.Limit+"\x00"+b.ID), "ban", map[string]any{
			"Limit": b.Limit, "Override": b.Override, "ID": b.ID, "Key": strings.Join(key, " "), "Left": max(b.Left, 0).Round(time.Second).String(),
		}))
	}
	if len(list) == 0 {
		parts = append(parts, u.part("notes", "none", "note", "Nobody is banned."))
	}
	if next != "" {
		parts = append(parts, u.part("notes", "more", "note", fmt.Sprintf("These are the first %d: 'stint ban ls' has all.", len(list))))
	}
	return parts
}

func nothingLive(*UI, *request) []part { return nil }

// explainFixed has the answer about a curl command.
func explainFixed(u *UI, r *request) any {
	d := map[string]any{"IP": "192.0.2.7"}
	if r.Method != http.MethodPost {
		return d
	}
	text, ip := r.PostFormValue("curl"), strings.TrimSpace(r.PostFormValue("ip"))
	d["Curl"], d["IP"] = strings.ToValidUTF8(text, "\uFFFD"), ip
	attrs, err := u.attributes(text, ip)
	if err == nil {
		var x explain.Explanation
		if x, err = explain.Request(r.Context(), u.o.Engine, limit.Request{Attributes: attrs}); err == nil {
			d["Attributes"], d["Answer"] = attrs, explained(&x)
		}
	}
	if err != nil {
		d["Wrong"] = err.Error()
	}
	return d
}

// attributes are those that a gateway would tell of the request.
func (u *UI) attributes(text, ip string) (attrs []limit.Attribute, err error) {
	a, err := parseCurl(text)
	if err != nil {
		return nil, err
	}
	if ip != "" {
		addr, err := netip.ParseAddr(ip)
		if err != nil {
			return nil, fmt.Errorf("%.100q is no IP address", ip)
		}
		attrs = append(attrs, limit.Attribute{Name: "ip", Value: addr.String()})
	}
	attrs = identify.AppendPath(append(attrs, limit.Attribute{Name: "method", Value: a.method}), cmp.Or(a.url.RequestURI(), "/"))
	attrs = append(attrs,
		limit.Attribute{Name: "host", Value: forwarded.Host(cmp.Or(a.header.Get("Host"), a.url.Host))},
		limit.Attribute{Name: "proto", Value: a.url.Scheme},
	)
	attrs = u.plan.Plan().Append(attrs, a.header, a.url.RawQuery)
	if len(attrs) > 256 {
		return nil, errors.New("the request has too many attributes")
	}
	return attrs, nil
}

// answerView is an explanation for the page.
type answerView struct {
	Allowed  bool
	Status   int
	Limits   []explainedView
	Other    []string
	Unlisted int
}

type explainedView struct {
	Name, Policy, Key, Why, Used, Exceed string
	Allowed                              bool
}

func explained(x *explain.Explanation) (v answerView) {
	v = answerView{Allowed: x.Decision.Allowed, Status: x.Decision.Status, Unlisted: max(0, x.UnmatchedCount-len(x.Unmatched))}
	for i := range x.Limits {
		l, r := &x.Limits[i], &x.Decision.Results[i]
		var key []string
		for _, a := range l.Key {
			key = append(key, a.Name+"="+strconv.Quote(a.Value))
		}
		one := explainedView{
			Name: r.Limit, Policy: policyText(&l.Policy), Key: cmp.Or(strings.Join(key, " "), "all requests together"), Allowed: r.Allowed, Exceed: l.OnExceed,
			Used: fmt.Sprintf("%d of %d used", l.Used, r.Quota), Why: "it fits",
		}
		switch {
		case r.Allowed && r.Shadow:
			one.Why = "it fits; the limit only watches"
		case !r.Allowed && r.Shadow:
			one.Why = "over the limit, which only watches: " + r.Reason.String()
		case !r.Allowed:
			one.Why = "refused: " + r.Reason.String()
		}
		v.Limits = append(v.Limits, one)
	}
	for _, h := range x.Unlimited {
		if h.Limit != "" {
			v.Other = append(v.Other, "admitted without "+h.Limit+": "+h.Why.String())
		}
	}
	for i, name := range x.Unmatched {
		v.Other = append(v.Other, name+": "+cmp.Or(x.WhyNot[i], "does not match"))
	}
	return v
}
