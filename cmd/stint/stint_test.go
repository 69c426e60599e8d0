package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stint-io/stint/internal/builttest"
)

// binary is the command, built once.
type binary struct {
	once sync.Once
	dir  string // where it is unless the run has a folder for it; "" = it was not wanted
	path string
	err  error
}

var built binary

func (b *binary) get(t *testing.T) string {
	t.Helper()
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "stint"); b.err == nil {
			b.path, b.err = builttest.Stint(b.dir)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return b.path
}

func TestMain(m *testing.M) {
	// What the service keeps by default is not to be the user's.
	state, err := os.MkdirTemp("", "stint-state-")
	if err == nil {
		err = errors.Join(os.Setenv("XDG_STATE_HOME", state), os.Unsetenv("STATE_DIRECTORY"))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(state); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	if err := os.RemoveAll(built.dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// environment is that of a child: without the state that the user of this machine or an earlier test has left.
func environment(t *testing.T, env []string) []string {
	t.Helper()
	return append(append(os.Environ(), "STATE_DIRECTORY=", "XDG_STATE_HOME="+t.TempDir()), env...)
}

// call runs the command to its end.
func call(t *testing.T, env []string, args ...string) (code int, out, errOut string) {
	t.Helper()
	var o, e bytes.Buffer
	cmd := exec.Command(built.get(t), args...)
	cmd.Stdout, cmd.Stderr, cmd.Env = &o, &e, environment(t, env)
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), o.String(), e.String()
}

// process is a running stint serve.
type process struct {
	t        *testing.T
	cmd      *exec.Cmd
	greeting string
	log      *bufio.Reader
	http     string
	admin    string
}

// serveProcess starts the command and reads its output until it listens.
func serveProcess(t *testing.T, env []string, args ...string) *process {
	t.Helper()
	args = append([]string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, args...)
	cmd := exec.Command(built.get(t), args...)
	cmd.Env = environment(t, env)
	return start(t, cmd)
}

// start starts a command and reads its output until it listens.
func start(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	log, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.log = bufio.NewReader(log)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			// It may have ended by itself.
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		p.greeting += lines.Text() + "\n"
		if lines.Text() == "ready" || strings.HasPrefix(lines.Text(), "listening, ") {
			p.http = regexp.MustCompile(`http +(https?://\S+)`).FindStringSubmatch(p.greeting)[1]
			p.admin = regexp.MustCompile(`admin +(https?://\S+)/metrics`).FindStringSubmatch(p.greeting)[1]
			return p
		}
	}
	text, _ := io.ReadAll(p.log)
	t.Fatalf("the service was never ready: %v\n%s%s", lines.Err(), p.greeting, text)
	return nil
}

// await reads the log until a line has text in it.
func (p *process) await(text string) {
	p.t.Helper()
	for {
		line, err := p.log.ReadString('\n')
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			p.t.Fatalf("the log ended without %q", text)
		}
	}
}

// end sends a signal and returns the exit code.
func (p *process) end(sig os.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, p.log); err != nil {
		p.t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil && p.cmd.ProcessState == nil {
		p.t.Fatal(err)
	}
	return p.cmd.ProcessState.ExitCode()
}

func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The first minute of a newcomer: start, paste the line that is printed, stop.
func TestServeWithoutConfiguration(t *testing.T) {
	p := serveProcess(t, nil)
	for _, text := range []string{"stint " + version(), "store   memory", "limits  2", "grpc    127.0.0.1:", "try it:"} {
		if !strings.Contains(p.greeting, text) {
			t.Errorf("the greeting has no %q:\n%s", text, p.greeting)
		}
	}
	line := regexp.MustCompile(`curl .*`).FindString(p.greeting)
	for i := range 6 {
		out, err := exec.Command("sh", "-c", strings.Replace(line, "curl -i", "curl -s -i", 1)).Output()
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		want := "HTTP/1.1 200 OK"
		if i == 5 {
			want = "HTTP/1.1 429 Too Many Requests"
		}
		if !strings.HasPrefix(string(out), want) {
			t.Fatalf("request %d: %s", i+1, out)
		}
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Fatalf("SIGTERM: exit code %d", code)
	}
}

// What a reservation would take is explained where costs are estimated.
func TestExplainEstimate(t *testing.T) {
	p := serveProcess(t, nil, "--config", file(t, "stint.yaml", "estimates: {by: model, start: 700}\nlimits:\n  - {name: tokens, rate: 3000/hour}\n"))
	for args, want := range map[string]string{
		"model=m max_tokens=4096": "a reservation without a cost would take 700: nothing is learned yet, of 4096 declared\n",
		"model=m":                 "a reservation without a cost would take 700: nothing is learned yet\n",
	} {
		if code, out, _ := call(t, []string{"STINT_ADDR=" + p.http}, append([]string{"explain"}, strings.Fields(args)...)...); code != exitOK || !strings.Contains(out, want) {
			t.Errorf("%s: %d %s", args, code, out)
		}
	}
}

// What the service finds by itself is shown, and what was given is not repeated.
func TestExplainFound(t *testing.T) {
	p := serveProcess(t, nil, "--config", file(t, "stint.yaml",
		"identity: {user_ip_headers: [True-Client-IP]}\nlimits:\n  - {name: per-client, key: [user_ip, host], rate: 3/hour}\n"))
	for args, want := range map[string]string{
		"ip=192.0.2.7 host=h header:true-client-ip=198.51.100.9": "asked: fits\n    found: user_ip=198.51.100.9\n",
		"ip=192.0.2.7 host=h user_ip=203.0.113.5":                "asked: fits\n",
	} {
		code, out, _ := call(t, []string{"STINT_ADDR=" + p.http}, append([]string{"explain"}, strings.Fields(args)...)...)
		if code != exitOK || !strings.HasSuffix(out, want) {
			t.Errorf("%s: %d %s", args, code, out)
		}
	}
}

func TestTakeAndExplain(t *testing.T) {
	p := serveProcess(t, nil, "--config", file(t, "stint.yaml", "limits:\n  - {name: per-user, key: [user], rate: 3/hour}\n"))
	if !strings.Contains(p.greeting, `-d '{"attributes":{"user":"demo"}}'`) {
		t.Errorf("the line to paste does not fit the limits:\n%s", p.greeting)
	}
	addr := []string{"STINT_ADDR=" + p.http}
	for i, c := range []struct {
		args []string
		code int
		text string
	}{
		{[]string{"take", "user=u", "--cost", "2"}, exitOK, "allowed\n  per-user: 1 of 3 left"},
		{[]string{"take", "user=u", "--cost", "0"}, exitOK, "allowed"},
		{[]string{"explain", "user=u"}, exitOK, "2 of 3 used, 1 asked: fits"},
		{[]string{"explain", "user=u", "--cost", "2"}, exitNo, "would be refused"},
		{[]string{"take", "user=u", "--cost", "2"}, exitNo, "refused by per-user"},
		{[]string{"take", "user=u", "--cost", "2", "--json"}, exitNo, `"violated-policies":["per-user"]`},
		{[]string{"take", "user=u"}, exitOK, "0 of 3 left"},
		{[]string{"take", "user=v", "--cost", "5", "--count-refused"}, exitNo, "refused by per-user"},
		{[]string{"take", "user=v", "--cost", "1"}, exitNo, "refused by per-user"},
		{[]string{"take", "user=w", "--idempotency-key", "job 1"}, exitOK, "allowed\n  per-user: 2 of 3 left"},
		{[]string{"take", "user=w", "--idempotency-key", "job 1"}, exitOK, "allowed (repeated: charged before, and not again)\n  per-user: 2 of 3 left"},
		{[]string{"take", "user=w", "--idempotency-key", "job 1", "--json"}, exitOK, `"repeated":true`},
		{[]string{"take", "user=w", "--idempotency-key", "job 2"}, exitOK, "allowed\n  per-user: 1 of 3 left"},
		{[]string{"take", "user=w", "--cost", "2", "--count-refused", "--idempotency-key", "job 1"}, exitNo, "refused by per-user"},
		{[]string{"take", "user=w", "--cost", "2", "--count-refused", "--idempotency-key", "job 1"}, exitNo, "(repeated: charged before, and not again)"},
		{[]string{"take", "user=w", "--idempotency-key", ""}, exitUsage, `"" of --idempotency-key: want 1 to 256`},
		{[]string{"take", "user=w", "--idempotency-key", "job\n1"}, exitUsage, "want 1 to 256"},
		{[]string{"take", "path=/x"}, exitOK, "no limit applies"},
		{[]string{"explain", "path=/x", "--json"}, exitOK, `"unmatched":["per-user"]`},
		{[]string{"take", "user"}, exitUsage, `"user" is not an attribute`},
		{[]string{"take", "usr=u"}, exitOK, `per-user does not apply: the request has no user (it has "usr")`},
		{[]string{"take", "per-user", "user=u"}, exitUsage, "the attributes choose the limits, so name none"},
		{[]string{"take", "user:u"}, exitUsage, "write it as user=u"},
		{[]string{"take", `{"ip":"192.0.2.7"}`}, exitUsage, "write it as ip=192.0.2.7; the attributes"},
		{[]string{"take", "192.0.2.7"}, exitUsage, "write it as ip=192.0.2.7"},
		{[]string{"take", "header:x-api-key"}, exitUsage, "write it as header:x-api-key=VALUE"},
		{[]string{"key", "get", "user=u", "per-user"}, exitUsage, "the limit goes first: write per-user user=u"},
		{[]string{"take", "user=u", "user=v"}, exitUsage, "given twice"},
		{[]string{"take", "user=u", "--cost", "-1"}, exitUsage, "want at least 0"},
		{[]string{"take", "user=u", "--cost", "99999999999999999999"}, exitUsage, "--cost"},
		{[]string{"take", "user=u", "--cost", "9223372036854775807"}, exitUsage, "cost is 9223372036854775807"},
		{[]string{"take", "user=u", "--addr", "127.0.0.1:1"}, exitUsage, "stint serve"},
	} {
		code, out, errOut := call(t, addr, c.args...)
		if code != c.code || !strings.Contains(out+errOut, c.text) {
			t.Errorf("call %d, %v: exit code %d, want %d with %q\n%s%s", i+1, c.args, code, c.code, c.text, out, errOut)
		}
	}
	if code := p.end(os.Interrupt); code != exitOK {
		t.Fatalf("SIGINT: exit code %d", code)
	}
}

// Several --config, files and folders, in stint's format and in Envoy's, are one
// configuration; a request meets the limits of all.
func TestSeveralConfigurations(t *testing.T) {
	one := file(t, "one.yaml", "limits:\n  - {name: first, key: [user], rate: 9/hour}\n")
	folder := t.TempDir()
	for name, text := range map[string]string{
		"two.yaml":  "limits:\n  - {name: second, key: [user], rate: 7/hour}\n",
		"edge.yaml": "domain: edge\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 3}}\n",
		"note.txt":  "not a limits file",
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := serveProcess(t, nil, "--config", one, "--config", folder)
	_, out, _ := call(t, nil, "take", "user=u", "--addr", p.http)
	if !strings.Contains(out, "first: 8 of 9") || !strings.Contains(out, "second: 6 of 7") {
		t.Errorf("both files of limits must apply:\n%s", out)
	}
	body := strings.NewReader(`{"domain":"edge","descriptors":[{"entries":[{"key":"user","value":"u"}]}]}`)
	resp, err := http.Post(p.http+"/json", "application/json", body)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(text), `"limitRemaining":2`) {
		t.Errorf("the file in Envoy's format: %d %s, %v", resp.StatusCode, text, err)
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestHangupReloads(t *testing.T) {
	path := file(t, "stint.yaml", "limits:\n  - {name: before, rate: 5/hour}\n")
	p := serveProcess(t, nil, "--config", path)
	if err := os.WriteFile(path, []byte("limits:\n  - {name: after, rate: 5/hour}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.await("configuration loaded")
	code, out, _ := call(t, nil, "take", "--addr", p.http)
	if code != exitOK || !strings.Contains(out, "after: 4 of 5") {
		t.Fatalf("exit code %d: %s", code, out)
	}
	if err := os.WriteFile(path, []byte("limits:\n  - {name: broken, rate: 5/fortnight}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.await("configuration refused")
	if code, out, _ = call(t, nil, "take", "--addr", p.http); code != exitOK || !strings.Contains(out, "after: 3 of 5") {
		t.Fatalf("exit code %d: %s", code, out)
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Fatalf("exit code %d", code)
	}
}

func TestServeRefusesToStart(t *testing.T) {
	p := serveProcess(t, nil)
	taken := strings.TrimPrefix(p.http, "http://")
	empty := file(t, "token", "\n")
	bad := file(t, "bad.yaml", "limits:\n  - {name: a, rate: -1/s}\n")
	for _, c := range []struct {
		env  []string
		args []string
		code int
		text string
	}{
		{nil, []string{"--admin", "0.0.0.0:0"}, exitUsage, "--admin-token-file"},
		{nil, []string{"--admin-token-file", empty}, exitUsage, "is empty"},
		{nil, []string{"--store", "redis"}, exitUsage, "unknown store"},
		{nil, []string{"--config", bad}, exitUsage, bad + ":2:"},
		{nil, []string{"--http", taken}, exitNo, "another address with --http"},
		{nil, []string{"--htpp", taken}, exitUsage, "--htpp"},
		{nil, []string{"extra"}, exitUsage, "extra"},
		{[]string{"STINT_GRACE=soon"}, nil, exitUsage, "STINT_GRACE"},
		{[]string{"STINT_STORE=redis"}, nil, exitUsage, "unknown store"},
		{nil, []string{"--log", "xml"}, exitUsage, "xml"},
	} {
		args := append([]string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, c.args...)
		code, out, errOut := call(t, c.env, args...)
		if code != c.code || !strings.Contains(errOut, c.text) || out != "" {
			t.Errorf("%v %v: exit code %d, want %d with %q\n%s%s", c.env, c.args, code, c.code, c.text, out, errOut)
		}
	}
}

func TestAdminToken(t *testing.T) {
	p := serveProcess(t, nil, "--admin-token-file", file(t, "token", "s3cret\n"))
	for token, want := range map[string]int{"": 401, "wrong": 401, "s3cret": 200} {
		req, err := http.NewRequestWithContext(context.Background(), http.MethodGet, p.admin+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("token %q: %d, want %d", token, resp.StatusCode, want)
		}
	}
	code, _, errOut := call(t, nil, "top", "--once", "--admin", p.admin)
	if want := "the admin token is missing or wrong\nhint: give a token with --token-file"; code != exitUsage || !strings.Contains(errOut, want) {
		t.Errorf("exit code %d, want %d with %q\n%s", code, exitUsage, want, errOut)
	}
}

func TestCheck(t *testing.T) {
	good := file(t, "good.yaml", "limits:\n  - {name: a, rate: 5/hour}\n")
	envoy := file(t, "envoy.yaml", "domain: d\ndescriptors:\n  - {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n")
	bad := file(t, "bad.yaml", "limits:\n  - name: a\n    raet: 5/hour\n  - {name: b, rate: NaN}\n")
	store := file(t, "store.yaml", "store: redis://h?password_file=/none/at/all&timeout=1s\nlimits: []\n")
	badStore := file(t, "store.yaml", "store: redis://:s3cret@h?timeuot=1s\nlimits: []\n")
	for _, c := range []struct {
		args []string
		code int
		text []string
	}{
		{[]string{store}, exitOK, []string{"good: 0 limits"}},
		{[]string{badStore}, exitNo, []string{"store: the URL is wrong", "did you mean timeout?", "1 fault"}},
		{[]string{good}, exitOK, []string{"good: 1 limit"}},
		{[]string{good, envoy}, exitOK, []string{"good: 2 limits"}},
		{[]string{bad}, exitNo, []string{bad + ":3:", bad + ":4:", "raet", "rate", "NaN", "^"}},
		{[]string{"--json", good}, exitOK, []string{`"ok": true`, `"limits": 1`}},
		{[]string{"--json", bad}, exitNo, []string{`"ok": false`, `"line": 3`, `"column":`, `"hint":`}},
		{[]string{filepath.Dir(good) + "/none.yaml"}, exitUsage, []string{"none.yaml"}},
		{nil, exitUsage, []string{"requires at least 1 arg"}},
	} {
		code, out, errOut := call(t, nil, append([]string{"check"}, c.args...)...)
		if code != c.code {
			t.Errorf("%v: exit code %d, want %d\n%s%s", c.args, code, c.code, out, errOut)
		}
		for _, text := range c.text {
			if !strings.Contains(out+errOut, text) {
				t.Errorf("%v: no %q in\n%s%s", c.args, text, out, errOut)
			}
		}
		if strings.Contains(out+errOut, "s3cret") {
			t.Errorf("%v: the password is shown:\n%s%s", c.args, out, errOut)
		}
	}
}

func TestVersionHelpCompletion(t *testing.T) {
	for _, c := range []struct{ args, text string }{
		{"version", "stint " + version() + " ("},
		{"--help", "stint serve"},
		{"serve --help", "SIGHUP"},
		{"completion bash", "bash completion"},
	} {
		code, out, errOut := call(t, nil, strings.Fields(c.args)...)
		if code != exitOK || !strings.Contains(out, c.text) {
			t.Errorf("%s: exit code %d\n%s%s", c.args, code, out, errOut)
		}
	}
	if code, _, errOut := call(t, nil, "srve"); code != exitUsage || !strings.Contains(errOut, "serve") {
		t.Errorf("exit code %d: %s", code, errOut)
	}
}
