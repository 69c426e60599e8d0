package stint_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

func ExamplePer() {
	limiter, err := stint.Per("user", "2/hour")
	if err != nil {
		fmt.Println(err)
		return
	}
	req := limit.Request{Attributes: []limit.Attribute{{Name: "user", Value: "u1"}}}
	for range 3 {
		d, err := limiter.Take(context.Background(), req)
		fmt.Println(d.Allowed, err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

// One line protects a handler: each client may make two requests an hour.
func Example() {
	limiter, err := stint.Per("ip", "2/hour")
	if err != nil {
		fmt.Println(err)
		return
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	handler := httplimit.New(limiter)(hello)

	for range 3 {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		fmt.Println(w.Code)
	}
	// Output:
	// 200
	// 200
	// 429
}

func ExampleParse() {
	limiter, err := stint.Parse(`
limits:
  - name: login-per-ip
    match: {method: POST, path: /login}
    key: [ip]
    rate: 5/minute
    algorithm: sliding_window_log
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := limiter.Take(context.Background(), limit.Request{Attributes: []limit.Attribute{
		{Name: "method", Value: "POST"}, {Name: "path", Value: "/login"}, {Name: "ip", Value: "192.0.2.7"},
	}})
	fmt.Println(d.Allowed, d.Results[0].Limit, d.Results[0].Remaining, err)
	// Output: true login-per-ip 4 <nil>
}

func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stint.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("limits:\n  - {name: a, rate: 5/hour}\n")
	l, err := stint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	remaining := func(want int64) {
		t.Helper()
		d, err := l.Take(context.Background(), limit.Request{})
		if err != nil || d.Results[0].Remaining != want {
			t.Fatalf("%+v %v, want %d remaining", d, err, want)
		}
	}
	remaining(4)
	write("limits:\n  - {name: a, rate: 5/lunch}\n")
	if err := l.Reload(); err == nil || !strings.Contains(err.Error(), path+":2:") {
		t.Fatalf("a bad file was loaded: %v", err)
	}
	remaining(3)
	write("limits:\n  - {name: a, rate: 6/hour}\n")
	if err := l.Reload(); err != nil {
		t.Fatal(err)
	}
	remaining(3)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// What changes in the files is in force without a call, and a change with a fault is not. Counters stay.
func TestOpenFollowsItsFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stint.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("limits: [{name: a, rate: 5/hour}]\n")
	l, err := stint.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	look := func(cost int64) limit.Result {
		t.Helper()
		d, err := l.Take(t.Context(), limit.Request{Cost: cost, Peek: cost == 0})
		if err != nil {
			t.Fatal(err)
		}
		return d.Results[0]
	}
	look(3)
	followed := func(name string) {
		t.Helper()
		late := time.After(30 * time.Second) // the files are looked at every ten
		for tick := time.Tick(10 * time.Millisecond); look(0).Limit != name; {
			select {
			case <-tick:
			case <-late:
				t.Fatalf("the limit is %s, want %s", look(0).Limit, name)
			}
		}
	}
	write("limits: [{name: b, rate: 7/hour}, {name: a, rate: 7/hour}]\n")
	followed("b")
	write("limits: [{name: c, rate: 5/lunch}]\n")
	write("limits: [{name: a, rate: 5/hour}]\n")
	followed("a")
	if r := look(0); r.Remaining != 2 {
		t.Errorf("%d remaining, want 2: what was used stays used", r.Remaining)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestPerWithBurst(t *testing.T) {
	l, err := stint.Per("key", "1/hour", stint.WithBurst(9), stint.WithBurst(2))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	req := limit.Request{Attributes: []limit.Attribute{{Name: "key", Value: "k"}}}
	for i, want := range []bool{true, true, false} {
		if d, err := l.Take(t.Context(), req); err != nil || d.Allowed != want {
			t.Errorf("take %d: %v %v, want %v", i, d.Allowed, err, want)
		}
	}
	if _, err := stint.Per("key", "1/s", stint.WithBurst(-1)); err == nil {
		t.Error("a burst of -1 was taken")
	}
}

func problem(_ *stint.Limiter, err error) error { return err }

func TestPerChecksItsWords(t *testing.T) {
	for _, rate := range []string{"", "-1/s", "NaN", "5", "5/lunch", "1/s}\n  - {name: b"} {
		if _, err := stint.Per("ip", rate); err == nil {
			t.Errorf("the rate %q was taken", rate)
		}
	}
	if _, err := stint.Per("", "1/s"); err == nil {
		t.Error("an attribute without a name was taken")
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{problem(stint.Per("100/s", "ip")), `the attribute goes first: write Per("ip", "100/s")`},
		{problem(stint.Per("ip", "100")), `Per("ip", "100"): rate "100" has no period; write it as 100/s`},
		{problem(stint.Per("ip", "5 per minute")), "did you mean 5/minute?"},
		{problem(stint.Parse("stint.yaml")), "is a path: use Open"},
		{problem(stint.Open("limits: [{name: a, rate: 1/s}]\n")), "is the text of one: use Parse"},
		{problem(stint.Parse("login: {rate: 1/s}")), "begin with limits:"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
	l, err := stint.Parse("limits: []")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Reload(); err == nil {
		t.Error("a limiter without files was loaded again")
	}
}

// What the limits of a file read, the middleware gathers without being told again.
func TestMiddlewareReadsWhatTheLimitsRead(t *testing.T) {
	limiter, err := stint.Per("header:x-tenant", "2/hour")
	if err != nil {
		t.Fatal(err)
	}
	handler := httplimit.New(limiter)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for _, tt := range []struct {
		tenant string
		status int
	}{{"a", 200}, {"a", 200}, {"a", 429}, {"b", 200}, {"b", 200}, {"b", 429}} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-Tenant", tt.tenant)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r)
		if w.Code != tt.status {
			t.Errorf("tenant %s: %d, want %d", tt.tenant, w.Code, tt.status)
		}
	}
}

// What the service follows and the library does not is an error: limits that nothing meets would admit everything.
func TestParseRefusesWhatTheLibraryDoesNotFollow(t *testing.T) {
	for section, want := range map[string]string{
		"identity: {user_ip_headers: [x-user-ip]}":                                                        "section identity",
		"plans: [{name: free, limits: [{name: m, rate: 1/s}]}]\ncustomers: {by: customer, default: free}": "the file has plans",
	} {
		if _, err := stint.Parse(section + "\nlimits: [{name: l, rate: 1/s}]\n"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", section, err, want)
		}
	}
}

// A limiter of files can be used in virtual time, and read its files again when it is told to.
func TestLoadInVirtualTime(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stint.yaml")
	write := func(rate string) {
		if err := os.WriteFile(path, []byte("limits:\n  - {name: login, key: [user], rate: "+rate+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("2/hour")
	synctest.Test(t, func(t *testing.T) {
		limiter, err := stint.Load(path)
		if err != nil {
			t.Fatal(err)
		}
		defer limiter.Close()
		take := func(want bool) {
			t.Helper()
			d, err := limiter.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "user", Value: "u1"}}})
			if err != nil || d.Allowed != want {
				t.Errorf("allowed %v, %v, want %v", d.Allowed, err, want)
			}
		}
		take(true)
		take(true)
		take(false)
		time.Sleep(30 * time.Minute)
		take(true)
		take(false)
		write("1/hour")
		time.Sleep(time.Hour)
		take(true)
		take(true) // the files are not followed
	})
	if _, err := stint.Load(filepath.Join(t.TempDir(), "none.yaml")); err == nil {
		t.Error("a file that is not there was loaded")
	}
}

// TestDoubtsAreLogged: what stint check warns of is in the log of a program, but for names that may be its own.
func TestDoubtsAreLogged(t *testing.T) {
	var log bytes.Buffer
	former := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(former)
	for attribute, want := range map[string]string{"client_ip": "did you mean ip?", "IP": "write ip", "tenant": "", "ip": "", "header:x-api-key": ""} {
		log.Reset()
		l, err := stint.Per(attribute, "5/s")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if got := log.String(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("%s: logged %q, want %q", attribute, got, want)
		}
	}
}
