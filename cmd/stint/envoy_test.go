package main

import (
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// asEnvoys starts the command under the name and in the environment of Envoy's own service, which has
// nothing else.
func asEnvoys(t *testing.T, env ...string) *process {
	t.Helper()
	name := filepath.Join(t.TempDir(), envoyName)
	if err := os.Symlink(built.get(t), name); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name)
	cmd.Env = append([]string{
		"HOST=127.0.0.1", "PORT=0", "GRPC_HOST=127.0.0.1", "GRPC_PORT=0", "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=0", "STINT_ADMIN=127.0.0.1:0", "USE_STATSD=false", "HOME=" + t.TempDir(),
	}, env...)
	return start(t, cmd)
}

// find reads the log until a line matches, and returns its first group.
func (p *process) find(pattern string) string {
	p.t.Helper()
	want := regexp.MustCompile(pattern)
	for {
		line, err := p.log.ReadString('\n')
		if m := want.FindStringSubmatch(line); m != nil {
			return m[1]
		}
		if err != nil {
			p.t.Fatalf("the log ended without %q", pattern)
		}
	}
}

// page is what GET answers.
func page(t *testing.T, url string) (status int, text string) {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// The program of the image, by its name, its variables and a folder as it is mounted there: /healthcheck
// and /json on one port, /rlconfig on another. A flag and a variable of ours win.
func TestAsEnvoysProgram(t *testing.T) {
	root := t.TempDir()
	folder := filepath.Join(root, "ratelimit", "config")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	rule := "domain: edge\ndescriptors: [{key: remote, rate_limit: {unit: hour, requests_per_unit: 2}}]\n"
	if err := os.WriteFile(filepath.Join(folder, "edge.yaml"), []byte(rule), 0o600); err != nil {
		t.Fatal(err)
	}
	p := asEnvoys(t, "RUNTIME_ROOT="+root, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false", "LIMIT_RESPONSE_HEADERS_ENABLED=true",
		"LIMIT_LIMIT_HEADER=X-Theirs", "STINT_RLS_LIMIT_HEADER=X-Ours", "REDIS_POOL_SIZE=3")
	debug := p.find(`listener=envoy-debug address=(\S+)`)
	if status, text := page(t, p.http+"/healthcheck"); status != http.StatusOK || text != "OK" {
		t.Errorf("healthcheck: %d %s", status, text)
	}
	if status, text := page(t, "http://"+debug+"/rlconfig"); status != http.StatusOK || text != "edge.remote: unit=HOUR requests_per_unit=2, shadow_mode: false, quota_mode: false\n" {
		t.Errorf("rlconfig: %d %s", status, text)
	}
	for i, want := range []int{200, 200, 429} {
		resp, err := http.Post(p.http+"/json", "", strings.NewReader(`{"domain": "edge", "descriptors": [{"entries": [{"key": "remote", "value": "x"}]}]}`))
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(resp.Body)
		if _ = resp.Body.Close(); resp.StatusCode != want || !strings.Contains(string(text), "X-Ours") {
			t.Errorf("request %d: %d %s", i+1, resp.StatusCode, text)
		}
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// A value that cannot be read ends the start, with what to do; other names of the program read none of it.
func TestEnvoysEnvironmentIsChecked(t *testing.T) {
	code, _, errOut := call(t, []string{"REDIS_TIMEOUT=10"}, "serve", "--envoy-environment")
	if code != exitUsage || !strings.Contains(errOut, `REDIS_TIMEOUT is "10", want a duration, such as 500ms or 10s`) {
		t.Errorf("exit code %d\n%s", code, errOut)
	}
	code, _, errOut = call(t, []string{"RUNTIME_ROOT=/none/that/is"}, "serve", "--envoy-environment")
	if code != exitUsage || !strings.Contains(errOut, "RUNTIME_ROOT, RUNTIME_SUBDIRECTORY and RUNTIME_APPDIRECTORY make the folder /none/that/is/config, which there is not") {
		t.Errorf("exit code %d\n%s", code, errOut)
	}
	p := serveProcess(t, []string{"REDIS_TIMEOUT=10", "PORT=x"})
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}
