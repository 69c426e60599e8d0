package admin

import (
	"crypto/rand"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/ui"
)

const (
	// sessionFor is how long somebody stays signed in.
	sessionFor = 12 * time.Hour
	// mostSessions bounds how many people are: of more the first has to sign in again.
	mostSessions = 64
	// burstOfGuesses is how many wrong tokens one source may give at once, and mostGuessers how many sources are told
	// apart: those beyond have one burst together.
	burstOfGuesses, mostGuessers = 20, 1024
	// loginPath is where the token is given.
	loginPath = ui.Prefix + "/login"
)

// permission says whether a request may go on; 0 = yes, or the status and the text of the refusal.
type permission func(*http.Request) (status int, text string)

// sessions let a browser show the dashboard: it cannot send the token with each request, so it sends the token once and
// then a cookie, for which the token is looked up and asked about each time. It is safe for concurrent use.
type sessions struct {
	permit permission // nil = whoever reaches the port may do everything
	next   http.Handler

	mu struct {
		sync.Mutex
		all   map[string]session        // by the value of the cookie
		wrong map[string]*limit.Limiter // of wrong tokens, by where they come from; "" is all others
	}
}

// session is somebody who is signed in.
type session struct {
	token string
	began time.Time
}

func newSessions(permit permission, next http.Handler) *sessions {
	s := &sessions{permit: permit, next: next}
	s.mu.all, s.mu.wrong = map[string]session{}, map[string]*limit.Limiter{}
	return s
}

// guesses returns the limiter of wrong tokens from where r comes: a token is a long random one, and this is for those
// that are not. Each source has its own, so that nobody locks out others by guessing.
func (s *sessions) guesses(r *http.Request) *limit.Limiter {
	from := ""
	if peer, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
		from = forwarded.Network(peer.Addr(), 64)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.wrong[from] == nil && len(s.mu.wrong) >= mostGuessers {
		maps.DeleteFunc(s.mu.wrong, func(_ string, l *limit.Limiter) bool { return l.Remaining() == burstOfGuesses })
		if len(s.mu.wrong) >= mostGuessers {
			from = ""
		}
	}
	if s.mu.wrong[from] == nil {
		l, err := limit.NewLimiter(limit.Policy{Rate: limit.PerMinute(30), Burst: burstOfGuesses})
		if err != nil {
			panic(err) // the policy is a constant
		}
		s.mu.wrong[from] = l
	}
	return s.mu.wrong[from]
}

// ServeHTTP implements [http.Handler].
func (s *sessions) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasPrefix(r.URL.Path, ui.Prefix+"/static/"):
		ui.Static(w, r)
		return
	case s.permit == nil && (r.URL.Path == loginPath || r.URL.Path == ui.Prefix+"/logout"):
		http.Redirect(w, r, ui.Prefix, http.StatusSeeOther)
		return
	case r.URL.Path == loginPath && r.Method == http.MethodPost:
		s.login(w, r)
		return
	case r.URL.Path == ui.Prefix+"/logout" && r.Method == http.MethodPost:
		s.end(r)
		http.SetCookie(w, s.cookie(r, "", -1))
		http.Redirect(w, r, loginPath, http.StatusSeeOther)
		return
	}
	status := s.allowed(r)
	switch {
	case r.URL.Path == loginPath && status == 0:
		http.Redirect(w, r, within(r.URL.Query().Get("next")), http.StatusSeeOther)
	case r.URL.Path == loginPath:
		ui.Login(w, http.StatusOK, within(r.URL.Query().Get("next")), "")
	case status == 0:
		s.next.ServeHTTP(w, r)
	case r.Method == http.MethodGet && r.URL.Path != ui.Prefix+"/events":
		ui.Login(w, status, within(r.URL.RequestURI()), "")
	default:
		ui.Secure(w.Header())
		http.Error(w, "sign in first, at "+loginPath, status)
	}
}

// within returns a path of the dashboard: never another place.
func within(next string) string {
	u, err := url.Parse(next)
	switch {
	case err != nil || len(next) > 2000 || u.Scheme != "" || u.Host != "" || path.Clean(u.Path) != u.Path:
	case u.Path != ui.Prefix && !strings.HasPrefix(u.Path, ui.Prefix+"/"), u.Path == loginPath, u.Path == ui.Prefix+"/events":
	default:
		return u.RequestURI()
	}
	return ui.Prefix
}

// allowed says whether a request may go on: by its session, or by what it shows itself.
func (s *sessions) allowed(r *http.Request) (status int) {
	if s.permit == nil {
		return 0
	}
	if c, err := r.Cookie(ui.Cookie); err == nil {
		if token, ok := s.tokenOf(c.Value); ok {
			return s.check(r, token)
		}
	}
	status, _ = s.permit(r)
	return status
}

// check says whether the token is good now.
func (s *sessions) check(r *http.Request, token string) (status int) {
	with := r.Clone(r.Context())
	with.Header.Set("Authorization", "Bearer "+token)
	status, _ = s.permit(with)
	return status
}

func (s *sessions) login(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	token, next := r.PostFormValue("token"), within(r.PostFormValue("next"))
	guesses := s.guesses(r)
	if guesses.Remaining() == 0 {
		ui.Login(w, http.StatusTooManyRequests, next, "Too many wrong tokens were given. Wait a moment.")
		return
	}
	if status := s.check(r, token); status != 0 {
		guesses.Allow()
		ui.Login(w, status, next, "That is not the token of the admin port.")
		return
	}
	id := rand.Text() + rand.Text()
	s.mu.Lock()
	oldest := ""
	for other, is := range s.mu.all {
		switch {
		case time.Since(is.began) > sessionFor:
			delete(s.mu.all, other)
		case oldest == "" || is.began.Before(s.mu.all[oldest].began):
			oldest = other
		}
	}
	if len(s.mu.all) >= mostSessions {
		delete(s.mu.all, oldest)
	}
	s.mu.all[id] = session{token, time.Now()}
	s.mu.Unlock()
	http.SetCookie(w, s.cookie(r, id, int(sessionFor.Seconds())))
	http.Redirect(w, r, next, http.StatusSeeOther)
}

func (s *sessions) tokenOf(id string) (token string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	is, ok := s.mu.all[id]
	return is.token, ok && time.Since(is.began) <= sessionFor
}

func (s *sessions) end(r *http.Request) {
	if c, err := r.Cookie(ui.Cookie); err == nil {
		s.mu.Lock()
		delete(s.mu.all, c.Value)
		s.mu.Unlock()
	}
}

// cookie is sent by no other site: not with its forms, and not with its links.
func (s *sessions) cookie(r *http.Request, value string, age int) *http.Cookie {
	return &http.Cookie{
		Name: ui.Cookie, Value: value, Path: ui.Prefix, MaxAge: age, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	}
}
