package admin

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/server/internal/ui"
)

// board is a port with a dashboard that says who has come.
func board(token string) (*port, http.Handler, *int) {
	p := newPort()
	seen := new(int)
	p.o.Token = token
	p.o.UI = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { *seen++; fmt.Fprint(w, "keys of clients") })
	return p, New(p.o), seen
}

func browse(h http.Handler, method, path, form string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(form))
	r.Host = "127.0.0.1:8082"
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			r.Host = header[i+1]
		}
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// A session from the token to its end: a stranger sees nothing, the cookie lets in, another does not, and it is over
// when the token is, or who has it signs out.
func TestSession(t *testing.T) {
	_, h, seen := board("open sesame")
	for _, path := range []string{"/ui", "/ui/limit?name=a", "/ui/bans", "/ui/events?of=/ui", "/ui/nothing"} {
		if w := browse(h, "GET", path, ""); w.Code != 401 || strings.Contains(w.Body.String(), "keys of clients") {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	want(t, browse(h, "POST", "/ui/bans/lift", "limit=a&id=1"), 401, "sign in first")
	want(t, browse(h, "GET", "/v1/top", ""), 401, "token")
	want(t, browse(h, "POST", "/ui/login", "token=guess"), 401, "not the token")
	if *seen != 0 {
		t.Fatalf("a stranger was served %d times", *seen)
	}
	w := browse(h, "POST", "/ui/login", url.Values{"token": {"open sesame"}, "next": {"/ui/limit?name=a"}}.Encode())
	want(t, w, 303, "")
	cookie := w.Result().Cookies()[0]
	if w.Header().Get("Location") != "/ui/limit?name=a" || !cookie.HttpOnly || cookie.SameSite != http.SameSiteStrictMode || cookie.Path != "/ui" || cookie.Name != ui.Cookie || len(cookie.Value) < 40 {
		t.Errorf("%v %+v", w.Header(), cookie)
	}
	with := []string{"Cookie", cookie.Name + "=" + cookie.Value}
	want(t, browse(h, "GET", "/ui", "", with...), 200, "keys of clients")
	want(t, browse(h, "GET", "/ui/login?next=/ui/bans", "", with...), 303, "")
	want(t, browse(h, "GET", "/ui", "", "Cookie", cookie.Name+"="+cookie.Value[1:]+"A"), 401, "Token")
	want(t, browse(h, "GET", "/v1/top", "", with...), 401, "token") // the cookie is of the dashboard alone
	want(t, browse(h, "GET", "/ui", "", "Authorization", "Bearer open sesame"), 200, "keys of clients")
	// Another site sends nothing, and a name that points here does not either.
	want(t, browse(h, "POST", "/ui/bans/lift", "limit=a&id=1", append(with, "Origin", "https://evil.example")...), 403, "")
	want(t, browse(h, "POST", "/ui/bans/lift", "limit=a&id=1", append(with, "Sec-Fetch-Site", "cross-site")...), 403, "")
	want(t, browse(h, "GET", "/ui", "", append(with, "Host", "evil.example")...), 421, "")
	want(t, browse(h, "POST", "/ui/logout", "", with...), 303, "")
	want(t, browse(h, "GET", "/ui", "", with...), 401, "Token")
}

// Over TLS the cookie is for TLS alone.
func TestSessionOverTLS(t *testing.T) {
	_, h, _ := board("open sesame")
	for _, over := range []*tls.ConnectionState{nil, {}} {
		r := httptest.NewRequest("POST", "/ui/login", strings.NewReader("token=open+sesame"))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Host, r.TLS = "localhost", over
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if c := w.Result().Cookies(); len(c) != 1 || c[0].Secure != (over != nil) {
			t.Errorf("over TLS: %v, the cookies are %v", over != nil, c)
		}
	}
}

// After the token nobody is led away from the dashboard.
func TestNextStaysHere(t *testing.T) {
	_, h, _ := board("open sesame")
	for _, next := range []string{"https://evil.example", "//evil.example", "/ui/../v1/bans#", "/uix", "javascript:alert(1)", "/ui/login", "/ui/events?of=/ui", "/ui/" + strings.Repeat("x", 3000)} {
		w := browse(h, "POST", "/ui/login", url.Values{"token": {"open sesame"}, "next": {next}}.Encode())
		if to := w.Header().Get("Location"); to != "/ui" && !strings.HasPrefix(to, "/ui/") {
			t.Errorf("%.40s leads to %q", next, to)
		}
	}
}

// TestGuessing: a source that guesses has to wait, and the right token from there has to wait too. Other sources do not. An
// IPv6 network is one source, and of more sources than are told apart the rest share one burst.
func TestGuessing(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	synctest.Test(t, func(t *testing.T) {
		_, h, seen := board("open sesame")
		login := func(from, token string) int {
			r := httptest.NewRequest("POST", "/ui/login", strings.NewReader(url.Values{"token": {token}}.Encode()))
			r.Host, r.RemoteAddr = "127.0.0.1:8082", netip.AddrPortFrom(netip.MustParseAddr(from), uint16(1+random.IntN(65000))).String()
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Code
		}
		for n := range 50 {
			codes := map[int]int{}
			for i := range burstOfGuesses + random.IntN(40) {
				from := fmt.Sprintf("192.0.2.%d", n)
				if n%2 == 0 {
					from = fmt.Sprintf("2001:db8:0:%x::%x", n, 1+random.IntN(1<<16))
				}
				codes[login(from, fmt.Sprint(i))]++
			}
			if codes[401] != burstOfGuesses || len(codes) > 2 || codes[429] != 0 && len(codes) != 2 {
				t.Fatalf("source %d: %v, want %d wrong tokens", n, codes, burstOfGuesses)
			}
			if code := login(fmt.Sprintf("198.51.100.%d", n), "open sesame"); code != 303 {
				t.Fatalf("the right token from elsewhere: %d", code)
			}
		}
		if code := login("192.0.2.1", "open sesame"); code != 429 {
			t.Errorf("the right token from where was guessed: %d", code)
		}
		for n := range mostGuessers {
			login(fmt.Sprintf("10.0.%d.%d", n>>8, n&255), "wrong")
		}
		wrong := 0
		for n := range 5 * burstOfGuesses {
			if login(fmt.Sprintf("10.1.0.%d", n), "wrong") == 401 {
				wrong++
			}
		}
		if wrong > burstOfGuesses {
			t.Errorf("%d wrong tokens of sources beyond %d, want at most %d", wrong, mostGuessers, burstOfGuesses)
		}
		time.Sleep(time.Minute)
		if code := login("203.0.113.7", "open sesame"); code != 303 {
			t.Errorf("the right token a minute later: %d", code)
		}
		if *seen != 0 {
			t.Errorf("%d were served", *seen)
		}
	})
}

// Without a token the port is open, and the dashboard too; of more sessions than there is room for the first ends.
func TestSessionsAreBounded(t *testing.T) {
	_, open, _ := board("")
	want(t, browse(open, "GET", "/ui", ""), 200, "keys of clients")
	want(t, browse(open, "GET", "/ui/login", ""), 303, "")
	_, h, _ := board("open sesame")
	var cookies []*http.Cookie
	for range mostSessions + 1 {
		cookies = append(cookies, browse(h, "POST", "/ui/login", "token=open+sesame").Result().Cookies()[0])
	}
	in := 0
	for _, c := range cookies {
		if browse(h, "GET", "/ui", "", "Cookie", c.Name+"="+c.Value).Code == 200 {
			in++
		}
	}
	if in != mostSessions {
		t.Errorf("%d of %d sessions go on", in, len(cookies))
	}
}

// A session is over when the token that it began with is good no more, and after sessionFor; then it takes no room either.
func TestSessionEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := "first"
		s := newSessions(func(r *http.Request) (int, string) {
			if r.Header.Get("Authorization") != "Bearer "+good {
				return http.StatusUnauthorized, "no"
			}
			return 0, ""
		}, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		login := func() []string {
			w := browse(s, "POST", "/ui/login", "token="+good)
			if len(w.Result().Cookies()) != 1 {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			c := w.Result().Cookies()[0]
			if c.MaxAge != 12*60*60 {
				t.Errorf("the cookie lasts %d s", c.MaxAge)
			}
			return []string{"Cookie", c.Name + "=" + c.Value}
		}
		with := login()
		want(t, browse(s, "GET", "/ui", "", with...), 200, "")
		good = "second"
		want(t, browse(s, "GET", "/ui", "", with...), 401, "Token")
		want(t, browse(s, "GET", "/ui", "", append(with, "Authorization", "Bearer second")...), 401, "Token")
		with = login()
		time.Sleep(12 * time.Hour)
		want(t, browse(s, "GET", "/ui", "", with...), 200, "")
		time.Sleep(time.Second)
		want(t, browse(s, "GET", "/ui", "", with...), 401, "Token")
		if login(); len(s.mu.all) != 1 {
			t.Errorf("%d sessions are kept", len(s.mu.all))
		}
	})
}
