package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/stint-io/stint/server"
)

// service is a server with limits, and a browser that looks at it.
type service struct {
	t           *testing.T
	http, admin string

	mu     sync.Mutex
	faults []string // what the console said
}

const token = "open sesame, a long one"

// start runs a server. limits is a limits file.
func start(t *testing.T, limits string, change func(*server.Options)) *service {
	t.Helper()
	file := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(file, []byte(limits), 0o600); err != nil {
		t.Fatal(err)
	}
	o := server.Options{
		HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", ConfigPaths: []string{file},
		Logger: slog.New(slog.DiscardHandler), StateDir: t.TempDir(), FirstStart: true,
	}
	if change != nil {
		change(&o)
	}
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-s.Ready():
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	return &service{t: t, http: "http://" + s.Addrs().HTTP.String(), admin: "http://" + s.Addrs().Admin.String()}
}

// take asks for a decision.
func (s *service) take(attrs map[string]string) int {
	s.t.Helper()
	body, err := json.Marshal(map[string]any{"attributes": attrs})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.post("/v1/take", body)
}

func (s *service) post(path string, body []byte) int {
	s.t.Helper()
	r, err := http.Post(s.http+path, "application/json", bytes.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	_, _ = io.Copy(io.Discard, r.Body)
	return r.StatusCode
}

// browse opens a browser whose window has a size. What its console says is kept.
func (s *service) browse(width, height int, dark bool) context.Context {
	s.t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.NoSandbox, chromedp.DisableGPU, chromedp.UserDataDir(s.t.TempDir()), chromedp.WindowSize(width, height),
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-background-networking", true), chromedp.Flag("disable-sync", true),
	)
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	s.t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	s.t.Cleanup(cancel)
	messages := chromedp.Console(ctx)
	var listening sync.WaitGroup
	listening.Go(func() {
		for m := range messages {
			if t := string(m.Type); t == "error" || t == "warning" || m.IsException() {
				s.mu.Lock()
				s.faults = append(s.faults, t+": "+m.Text+" "+m.URL)
				s.mu.Unlock()
			}
		}
	})
	s.t.Cleanup(func() { cancel(); listening.Wait() })
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
		s.t.Fatal(err)
	}
	s.do(ctx, chromedp.EmulateViewport(int64(width), int64(height)))
	return ctx
}

// patience is how long a step may take.
const patience = 30 * time.Second

func (s *service) do(ctx context.Context, actions ...chromedp.Action[chromedp.Void]) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		s.t.Fatal(err)
	}
}

// get returns the value of an action.
func get[T any](ctx context.Context, s *service, a chromedp.Action[T]) T {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, a)
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

func (s *service) text(ctx context.Context, css string) string {
	s.t.Helper()
	return get(ctx, s, chromedp.Evaluate[string](fmt.Sprintf("document.querySelector(%q).innerText", css)))
}

// until waits until an expression is true, also of the page that comes next.
func (s *service) until(ctx context.Context, expression string) {
	s.t.Helper()
	look := time.NewTicker(30 * time.Millisecond)
	defer look.Stop()
	for end := time.Now().Add(patience); time.Now().Before(end); <-look.C {
		once, cancel := context.WithTimeout(ctx, patience)
		there, err := chromedp.Run(once, chromedp.Evaluate[bool]("!!("+expression+")"))
		cancel()
		if err == nil && there {
			return
		}
	}
	s.t.Fatalf("it does not come true: %s", expression)
}

// seen waits for an element.
func (s *service) seen(ctx context.Context, css string) {
	s.t.Helper()
	s.until(ctx, fmt.Sprintf("document.querySelector(%q)", css))
}

// quiet fails if the console said anything.
func (s *service) quiet() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		s.t.Errorf("the console said: %s", f)
	}
}

// shot keeps a picture where SHOTS names a folder.
func (s *service) shot(ctx context.Context, name string) {
	folder := os.Getenv("SHOTS")
	if folder == "" {
		return
	}
	picture := get(ctx, s, chromedp.CaptureScreenshot())
	if err := os.WriteFile(filepath.Join(folder, name+".png"), picture, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// axe returns the faults of a page that are serious or worse.
func (s *service) axe(ctx context.Context) []string {
	s.t.Helper()
	script, err := os.ReadFile(".axe/node_modules/axe-core/axe.min.js")
	if err != nil {
		s.t.Fatalf("%v: run ./scripts/browser, which installs it", err)
	}
	s.do(ctx, chromedp.Evaluate[chromedp.Void](string(script)+"; 0"))
	return get(ctx, s, chromedp.Evaluate[[]string](`axe.run().then(r => r.violations.filter(v => v.impact === "serious" || v.impact === "critical")
		.map(v => v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map(n => n.html + " " + n.failureSummary).join(" | ")))`, chromedp.EvalAwaitPromise))
}

const few = `
limits:
  - {name: login-per-ip, match: {path: /login}, key: [ip], rate: 5/minute, algorithm: sliding_window_log, on_exceed: {reject: 429, ban: {for: 15m, after: 6/minute}}}
  - {name: api-per-user, match: {path: /api}, key: [user], rate: 2/s, burst: 4}
  - {name: trial, key: [user], rate: 1/s, shadow: true}
  - {name: messages, match: {path: /m}, rate: 300/s, burst: 100, sharing: leased}
`

// hostile are keys that a page must show as text.
var hostile = []string{
	`<script>document.title="owned"</script>`, `"><img src=x onerror="document.title='owned'">`, `' onmouseover='x`, "\u202e\u2066bidi\u0000\u0007", "{{.}}${7*7}",
	`<script>` + strings.Repeat("x", 50_000),
}

// busy makes some of everything: refusals, bans, keys of all kinds.
func (s *service) busy() {
	for i := range 40 {
		s.take(map[string]string{"path": "/login", "ip": fmt.Sprintf("192.0.2.%d", i%3)})
		s.take(map[string]string{"path": "/api", "user": fmt.Sprint("u", i%5)})
		s.take(map[string]string{"path": "/m", "user": "m"})
	}
	for _, key := range hostile {
		for range 9 {
			s.take(map[string]string{"path": "/api", "user": key})
		}
	}
	s.post("/v1/take", []byte("{\"attributes\": {\"path\": \"/api\", \"user\": \"\xff\xfe\"}}"))
}

// Each page, light and dark, wide and narrow: axe finds no serious fault, the console is silent, nothing of a key is
// run, and the page is not wider than the window.
func TestPages(t *testing.T) {
	s := start(t, few, nil)
	s.busy()
	for _, look := range []struct {
		name          string
		width, height int
		dark          bool
	}{{"wide-light", 1280, 900, false}, {"narrow-dark", 375, 760, true}} {
		ctx := s.browse(look.width, look.height, look.dark)
		for _, page := range []string{"/ui", "/ui/limit?name=api-per-user", "/ui/limit?name=api-per-user&rate=200/s", "/ui/limit?name=gone", "/ui/leases", "/ui/members", "/ui/bans", "/ui/explain"} {
			s.do(ctx, chromedp.Navigate(s.admin+page))
			s.seen(ctx, "main a, h1")
			if page != "/ui/limit?name=gone" {
				s.until(ctx, `document.getElementById("live").textContent === "live"`)
			}
			title := get(ctx, s, chromedp.Title())
			wider := get(ctx, s, chromedp.Evaluate[int](`document.documentElement.scrollWidth - window.innerWidth`))
			if !strings.HasSuffix(title, " - stint") || wider > 0 {
				t.Errorf("%s, %s: title %q, %d pixels too wide", page, look.name, title, wider)
			}
			for _, f := range s.axe(ctx) {
				t.Errorf("%s, %s: %s", page, look.name, f)
			}
			s.shot(ctx, look.name+strings.NewReplacer("/", "-", "?", "-", "=", "-", "&", "-").Replace(page))
		}
	}
	s.mu.Lock()
	kept := s.faults[:0]
	for _, f := range s.faults {
		if !strings.Contains(f, "/ui/limit?name=gone") { // the browser says that this is not found, as it is
			kept = append(kept, f)
		}
	}
	s.faults = kept
	s.mu.Unlock()
	s.quiet()
}

// Figures change without a reload, and the focus stays where it is.
func TestLive(t *testing.T) {
	s := start(t, few, nil)
	ctx := s.browse(1280, 900, false)
	s.do(ctx, chromedp.Navigate(s.admin+"/ui"))
	s.until(ctx, `document.getElementById("live").textContent === "live"`)
	s.do(ctx, chromedp.Evaluate[chromedp.Void](`document.querySelector('#rows a[href$="name=api-per-user"]').focus()`))
	s.busy()
	s.until(ctx, `[...document.querySelectorAll("#rows tr")].some(r => r.textContent.includes("api-per-user") && r.querySelector(".hot"))`)
	focused := get(ctx, s, chromedp.Evaluate[string](`document.activeElement.textContent`))
	if focused != "api-per-user" {
		t.Errorf("the focus is at %q", focused)
	}
	s.quiet()
}

// With the keyboard alone: find a limit, open it, play another rate; lift a ban; explain a request.
func TestKeyboard(t *testing.T) {
	s := start(t, few, nil)
	s.busy()
	ctx := s.browse(1280, 900, false)
	// tab goes on until the focus is at what the expression says.
	tab := func(until string) {
		t.Helper()
		for range 60 {
			s.do(ctx, chromedp.KeyEvent(kb.Tab))
			there := get(ctx, s, chromedp.Evaluate[bool](`(e => `+until+`)(document.activeElement)`))
			if there {
				return
			}
		}
		t.Fatalf("the keyboard does not reach %s", until)
	}
	s.do(ctx, chromedp.Navigate(s.admin+"/ui"))
	tab(`e.id === "find"`)
	s.do(ctx, chromedp.KeyEvent("per-user"), chromedp.KeyEvent(kb.Enter))
	s.until(ctx, `location.search.includes("find=per-user") && document.readyState === "complete"`)
	tab(`e.textContent === "api-per-user"`)
	s.do(ctx, chromedp.KeyEvent(kb.Enter))
	s.until(ctx, `document.getElementById("rate") && document.readyState === "complete"`)
	tab(`e.id === "rate"`)
	s.do(ctx, chromedp.KeyEvent("200/s"), chromedp.KeyEvent(kb.Enter))
	s.seen(ctx, ".said strong")
	if text := s.text(ctx, ".said strong"); text != "0 refused" {
		t.Errorf("with 200/s: %q", text)
	}
	s.do(ctx, chromedp.Navigate(s.admin+"/ui/bans"))
	tab(`e.textContent === "Lift"`)
	s.do(ctx, chromedp.KeyEvent(kb.Enter))
	s.seen(ctx, ".said")
	if text := s.text(ctx, ".said"); text != "The ban is lifted." {
		t.Errorf("%q", text)
	}
	s.do(ctx, chromedp.Navigate(s.admin+"/ui/explain"))
	tab(`e.id === "curl"`)
	s.do(ctx, chromedp.KeyEvent("curl 'https://x.example/login' -X POST"))
	tab(`e.textContent === "Explain" && e.tagName === "BUTTON"`)
	s.do(ctx, chromedp.KeyEvent(kb.Enter))
	s.seen(ctx, "section[role=status]")
	if text := s.text(ctx, "section[role=status]"); !strings.Contains(text, "login-per-ip") || !strings.Contains(text, "192.0.2.7") {
		t.Errorf("%q", text)
	}
	s.quiet()
}

// A stranger sees the page that asks for the token, and nothing else; with the token there is a session, which ends.
func TestSignIn(t *testing.T) {
	s := start(t, few, func(o *server.Options) { o.AdminToken = token })
	s.busy()
	ctx := s.browse(375, 760, true)
	s.do(ctx, chromedp.Navigate(s.admin+"/ui/limit?name=api-per-user"))
	s.seen(ctx, "#token")
	page := get(ctx, s, chromedp.Evaluate[string](`document.documentElement.outerHTML`))
	if strings.Contains(page, "api-per-user</h1>") || strings.Contains(page, "u1") {
		t.Error("a stranger sees keys")
	}
	for _, f := range s.axe(ctx) {
		t.Error(f)
	}
	s.shot(ctx, "sign-in")
	enter := func(text string) {
		s.do(ctx, chromedp.Evaluate[chromedp.Void](`document.getElementById("token").focus()`), chromedp.KeyEvent(text), chromedp.KeyEvent(kb.Enter))
	}
	enter("guess")
	s.seen(ctx, ".said.bad")
	enter(token)
	s.seen(ctx, "#curve")
	place := get(ctx, s, chromedp.Location())
	if !strings.HasSuffix(place, "/ui/limit?name=api-per-user") {
		t.Errorf("signed in, at %s", place)
	}
	cookies := get(ctx, s, chromedp.Evaluate[string]("document.cookie"))
	s.do(ctx, chromedp.Evaluate[chromedp.Void](`document.querySelector('form[action="/ui/logout"] button').click()`))
	s.seen(ctx, "#token")
	s.do(ctx, chromedp.Navigate(s.admin+"/ui"))
	s.seen(ctx, "#token")
	if cookies != "" {
		t.Errorf("scripts see the cookie %q", cookies)
	}
}

var quietMachine = flag.Bool("quiet-machine", false, "hold TestThousandLimits to its times, which a busy machine does not meet")

// With 1000 limits and 10,000 keys: the first paint within a second, changes within 100 ms, a silent console, and no
// serious fault.
func TestThousandLimits(t *testing.T) {
	var b strings.Builder
	b.WriteString("limits:\n")
	for i := range 1000 {
		fmt.Fprintf(&b, "  - {name: limit-%d, match: {tenant: t%d}, key: [user], rate: 2/s}\n", i, i)
	}
	s := start(t, b.String(), nil)
	for i := range 12_000 {
		s.take(map[string]string{"tenant": fmt.Sprint("t", i%1000), "user": fmt.Sprint("u", i%10_000)})
	}
	ctx := s.browse(1280, 900, false)
	s.do(ctx, chromedp.Navigate(s.admin+"/ui"))
	s.seen(ctx, "#rows tr")
	s.until(ctx, `performance.getEntriesByName("first-contentful-paint").length > 0`)
	paint := get(ctx, s, chromedp.Evaluate[float64](`performance.getEntriesByName("first-contentful-paint")[0].startTime`))
	// Requests go on, so that there is something new each second.
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				s.take(map[string]string{"tenant": fmt.Sprint("t", i%50), "user": fmt.Sprint("u", i%10_000)})
			}
		}
	}()
	s.until(ctx, `Number(document.body.dataset.updates) > 4`)
	slowest := get(ctx, s, chromedp.Evaluate[float64](`Number(document.body.dataset.slowest)`))
	close(stop)
	<-ended
	begin := time.Now()
	r, err := http.Get(s.admin + "/ui")
	if err != nil {
		t.Fatal(err)
	}
	size, _ := io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	t.Logf("first paint %.0f ms, slowest change %.1f ms, the page has %d bytes and is rendered in %v", paint, slowest, size, time.Since(begin).Round(time.Millisecond))
	if *quietMachine && (paint > 1000 || slowest > 100) {
		t.Errorf("first paint after %.0f ms, want 1000; a change took %.1f ms, want 100", paint, slowest)
	}
	for _, f := range s.axe(ctx) {
		t.Error(f)
	}
	s.shot(ctx, "thousand")
	s.quiet()
}
