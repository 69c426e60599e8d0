package redis

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/internal/redistest"
)

// trial connects as a Store does and says what is wrong. A busy machine may take longer for
// a connection than connectTime: unless what is wanted says so, it tries again then.
func trial(t *testing.T, o Options, want string) (info serverInfo, err error) {
	t.Helper()
	await(t, "an answer", func() bool {
		info, err = try(t, o)
		late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
		return !late || want != "" && strings.Contains(err.Error(), want)
	})
	return info, err
}

func try(t *testing.T, o Options) (serverInfo, error) {
	t.Helper()
	c, err := newClient(t.Context(), o)
	if err != nil {
		return serverInfo{}, describe(err, o)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	info, err := inspect(ctx, c)
	return info, describe(err, o)
}

func parsed(t *testing.T, url string) Options {
	t.Helper()
	o, err := ParseURL(url)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// wantError looks for one line with the text in it, and for no password.
func wantError(t *testing.T, url string, err error, want string) {
	t.Helper()
	switch {
	case err == nil:
		t.Errorf("%s: no error, want %q", url, want)
	case !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n"):
		t.Errorf("%s: %q, want one line with %q", url, err, want)
	case leaked(err.Error()):
		t.Errorf("%s: the password is in %q", url, err)
	}
}

func TestInspect(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	info, err := trial(t, parsed(t, server.URL()), "")
	if err != nil || info.Name != "redis" || info.Version == "" || info.Mode != "standalone" || info.Role != "master" {
		t.Errorf("got %+v, %v", info, err)
	}
	for version, old := range map[string]bool{
		"5.0.14": true, "6.0.20": true, "6.2.0": false, "7.0.15": false, "8.1": false, "10.0.0": false, "": false, "unstable": false,
	} {
		if got := (serverInfo{Version: version}).old(); got != old {
			t.Errorf("version %q: old is %v", version, got)
		}
	}
}

// TestWrongServer connects to servers that are not what the URL says.
func TestWrongServer(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t, "--requirepass", secret)
	server.Do("ACL", "SETUSER", "weak", "on", ">"+secret, "~*", "-@all")
	with := "redis://:" + secret + "@"
	replica := redistest.Start(t, "--requirepass", secret, "--masterauth", secret, "--replicaof", strings.Replace(server.Addr(), ":", " ", 1))
	aged := redistest.StartProxy(t, server.Addr())
	aged.Rewrite("7.0.15", "6.0.15")
	gone := redistest.Start(t)
	gone.Kill()
	frozen := redistest.Start(t)
	frozen.Freeze()
	for url, want := range map[string]string{
		with + aged.Addr():                                                     aged.Addr() + ": redis 6.0.15 is too old: use Redis 6.2 or newer, or Valkey",
		with + replica.Addr():                                                  "this is a replica, which is read-only: give the address of its master",
		with + server.Addr() + "/99":                                           "fewer databases than the URL asks for",
		"redis://:" + secret + secret + "@" + server.Addr():                    "the user or the password is wrong",
		"redis://nobody:" + secret + "@" + server.Addr():                       "the user or the password is wrong",
		"redis://" + server.Addr():                                             "a password is needed",
		"redis://weak:" + secret + "@" + server.Addr() + "/1":                  "the user lacks a permission (NOPERM",
		"redis+cluster://:" + secret + "@" + server.Addr():                     "this is no cluster (This instance has cluster support disabled): write redis://",
		"redis+cluster://weak:" + secret + "@" + server.Addr():                 "the user lacks a permission (NOPERM",
		"redis+cluster://:" + secret + "@127.0.0.1:1," + server.Addr():         "this is no cluster (This instance has cluster support disabled): write redis://",
		"redis+sentinel://:" + secret + "@" + gone.Addr() + "/m":               "nobody listens there (connection refused): start the server",
		"redis+sentinel://" + server.Addr() + "/m":                             "the sentinels' own are sentinel_username and sentinel_password",
		"redis+sentinel://" + server.Addr() + "/m?sentinel_password=" + secret: "this is no sentinel: write redis://host:6379 for redis+sentinel://",
		gone.URL():                       gone.Addr() + ": nobody listens there (connection refused): start the server, or correct the address",
		"redis+cluster://" + gone.Addr(): "nobody listens there",
		frozen.URL():                     frozen.Addr() + ": no answer in time",
		"redis://no-such-host.invalid":   "the name \"no-such-host.invalid\" is not found",
		"rediss://" + server.Addr():      "it does not speak TLS",
	} {
		began := time.Now()
		_, err := trial(t, parsed(t, url), want)
		wantError(t, url, err, want)
		if took := time.Since(began); took > 10*connectTime && url == frozen.URL() {
			t.Errorf("%s: took %v", url, took)
		}
	}
}

func TestWrongTopology(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	cluster := redistest.StartCluster(t)
	group := redistest.StartSentinel(t)
	for url, want := range map[string]string{
		cluster.Nodes[0].URL():   "this is a node of a cluster: write redis+cluster:// for redis://",
		group.Sentinels[0].URL(): "this is a sentinel: write redis+sentinel://host:26379/mymaster",
		strings.Replace(group.URL(), redistest.MasterName, "other", 1): "the sentinels know no master of that name (No such master with that name): correct the last part",
	} {
		_, err := trial(t, parsed(t, url), want)
		wantError(t, url, err, want)
	}
	for _, url := range []string{cluster.URL(), "redis+cluster://" + cluster.Nodes[0].Addr(), group.URL()} {
		if _, err := trial(t, parsed(t, url), ""); err != nil {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestTLS(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server, _ := redistest.StartTLS(t)
	strict, _ := redistest.StartTLS(t, "--tls-auth-clients", "yes")
	trusting := "?ca=" + server.CAFile()
	for url, want := range map[string]string{
		server.URL() + trusting: "",
		strict.URL() + "?ca=" + strict.CAFile() + "&cert=" + strict.CertFile() + "&key=" + strict.KeyFile(): "",
		server.URL() + "?insecure_skip_verify=true":                                                         "",
		server.URL() + trusting + "&server_name=localhost":                                                  "",
		server.URL() + trusting + "&server_name=other":                                                      "its certificate is for another name",
		server.URL():                            "nobody known here signed its certificate: name the authority with ca=FILE",
		strict.URL() + "?ca=" + strict.CAFile(): "it may want a certificate, give one with cert=FILE and key=FILE",
		"redis://" + server.Addr():              "the connection was closed: look at the server's log, and write rediss:// if it wants TLS",
	} {
		_, err := trial(t, parsed(t, url), want)
		if want == "" && err != nil {
			t.Errorf("%s: %v", url, err)
		}
		if want != "" {
			wantError(t, url, err, want)
		}
	}
}

// TestDescribe has a server answer what servers answer in need.
func TestDescribe(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	o := parsed(t, server.URL())
	c, err := newClient(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	o.Password = secret
	answer := func(text string) error {
		return c.Do(t.Context(), c.B().Eval().Script("return redis.error_reply(ARGV[1])").Numkeys(0).Arg(text).Build()).Error()
	}
	for _, r := range refusals {
		err := describe(answer(r.part+" "+secret), o)
		wantError(t, r.part, err, server.Addr()+": "+r.what)
		wantError(t, r.part, err, r.hint)
	}
	wantError(t, "an unknown answer", describe(answer("ERR what is "+secret+"?"), o), "the server refuses: what is ***?")

	if describe(nil, o) != nil {
		t.Error("nil is no error")
	}
	once := describe(context.DeadlineExceeded, o)
	if !errors.Is(once, context.DeadlineExceeded) || !errors.Is(describe(os.ErrDeadlineExceeded, o), os.ErrDeadlineExceeded) {
		t.Error("the cause is lost")
	}
	if describe(once, o) != once || describe(context.Canceled, o) != context.Canceled {
		t.Error("what is described, or was asked to end, is described again")
	}
	if _, ok := rueidis.IsRedisErr(errors.Unwrap(describe(answer("OOM"), o))); !ok {
		t.Error("the server's answer is lost")
	}
}
