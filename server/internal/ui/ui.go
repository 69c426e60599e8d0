// Package ui is the dashboard on the admin port: what limits admit and refuse, which keys they meet most, who holds
// leases, members, bans, and what a request or another rate would get. Pages are rendered on the server, and changes
// are sent as they happen; without JavaScript a page shows what was at the time.
//
// It asks nobody who he is: package admin does, before. It decides nothing, and changes nothing but bans.
package ui

import (
	"context"
	"embed"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/forwarded/identify"
)

// Prefix is where the dashboard is.
const Prefix = "/ui"

// UI is the dashboard. Make it with [New]. It is safe for concurrent use.
type UI struct {
	o       Options
	figures figures
	leases  leases
	pages   *template.Template
	mux     *http.ServeMux
	plan    *identify.Live
	viewers chan struct{} // has a place for each stream
	playing chan struct{} // holds who plays the hour again
}

//go:embed assets
var assets embed.FS

// New returns the dashboard, which counts nothing before it runs.
func New(o Options) *UI {
	u := &UI{o: o, mux: http.NewServeMux(), plan: identify.NewLive(o.Engine.Attributes), viewers: make(chan struct{}, 32), playing: make(chan struct{}, 1)}
	u.figures.o, u.figures.mu.of = &u.o, map[string]*history{}
	u.leases.o = &u.o
	u.pages = template.Must(template.New("").Funcs(functions).ParseFS(assets, "assets/*.html"))
	u.mux.HandleFunc("GET /ui/{$}", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, Prefix, http.StatusMovedPermanently) })
	for path, p := range pages {
		u.mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) { u.show(w, r, p, http.StatusOK, "") })
	}
	u.mux.HandleFunc("POST /ui/explain", func(w http.ResponseWriter, r *http.Request) { u.show(w, r, explainPage, http.StatusOK, "") })
	u.mux.HandleFunc("POST /ui/bans/lift", u.lift)
	u.mux.HandleFunc("GET /ui/events", u.events)
	u.mux.HandleFunc("GET /ui/static/{name}", static)
	u.mux.HandleFunc("GET /v1/top", u.serveTop)
	return u
}

// Run counts until ctx ends.
func (u *UI) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { u.o.Watch.Run(ctx) })
	running.Go(func() { u.leases.run(ctx) })
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for u.figures.count(time.Now()); ; {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			u.figures.count(now)
		}
	}
}

// Secure sets what browsers are to do with pages: load nothing from elsewhere, run no script of a page, show them in no
// frame, keep no copy.
func Secure(h http.Header) {
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// ServeHTTP implements [http.Handler].
func (u *UI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	Secure(w.Header())
	if embedded(r) {
		http.Error(w, "a page of another site may link here, and no more", http.StatusForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	u.mux.ServeHTTP(w, r)
}

// embedded says that a page of another site asks, and not by a link. It cannot read the answer, but it could hold all
// streams, or have hours played again.
func embedded(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return (site == "cross-site" || site == "same-site") && r.Header.Get("Sec-Fetch-Dest") != "document"
}

// static answers with a style, a script or a picture. They have no secret.
func static(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	kind := map[string]string{"style.css": "text/css; charset=utf-8", "live.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml"}[name]
	text, err := assets.ReadFile("assets/" + name)
	if err != nil || kind == "" {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", kind)
	// A failed write means that the client has gone.
	_, _ = w.Write(text)
}

// Login writes the page that asks for the token. failed says that the one before was wrong.
func Login(w http.ResponseWriter, status int, next string, failed string) {
	Secure(w.Header())
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	// A failed write means that the client has gone.
	_ = loginPage.ExecuteTemplate(w, "login", map[string]string{"Next": next, "Failed": failed})
}

var loginPage = template.Must(template.New("").Funcs(functions).ParseFS(assets, "assets/*.html"))

// Static serves what the page that asks for the token needs.
func Static(w http.ResponseWriter, r *http.Request) {
	Secure(w.Header())
	r.SetPathValue("name", strings.TrimPrefix(r.URL.Path, Prefix+"/static/"))
	static(w, r)
}

// lift ends a ban.
func (u *UI) lift(w http.ResponseWriter, r *http.Request) {
	name, id := r.PostFormValue("limit"), r.PostFormValue("id")
	if name == "" || id == "" {
		u.show(w, r, bansPage, http.StatusBadRequest, "say which ban, by its limit and its id")
		return
	}
	n, err := u.o.Bans.LiftID(r.Context(), name, id)
	switch {
	case errors.Is(err, engine.ErrBadRequest):
		u.show(w, r, bansPage, http.StatusBadRequest, err.Error())
	case err != nil:
		u.show(w, r, bansPage, http.StatusServiceUnavailable, err.Error())
	default:
		said := "The ban is lifted."
		if n == 0 {
			said = "The ban had ended before."
		}
		http.Redirect(w, r, "/ui/bans?"+url.Values{"said": {said}}.Encode(), http.StatusSeeOther)
	}
}
