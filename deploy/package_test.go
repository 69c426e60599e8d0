// Package deploy_test builds what is published of this version, installs it, and starts the service
// as the installed files say. ./scripts/package-test does the same at length, in a fresh Debian that
// systemd has booted.
package deploy_test

import (
	"bufio"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const released = "9.8.7-rc.1"

// built is a release for this system alone, which all tests install.
var built struct {
	once   sync.Once
	folder string
	err    error
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.folder != "" {
		if err := os.RemoveAll(built.folder); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	os.Exit(code)
}

// release returns the folder of the release.
func release(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.folder, built.err = os.MkdirTemp("", "release"); built.err != nil {
			return
		}
		cmd := exec.Command("../scripts/release", "--only", "linux/"+runtime.GOARCH, filepath.Join(built.folder, "dist"))
		cmd.Env = append(os.Environ(), "VERSION=v"+released, "SOURCE_DATE_EPOCH=1795366276")
		if out, err := cmd.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("scripts/release: %w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	dist := filepath.Join(built.folder, "dist")
	run(t, dist, "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	return dist
}

// run runs a command in a folder and returns what it prints.
func run(t *testing.T, folder, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = folder
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// files are the files, links and folders below a folder, without those of dpkg itself.
func files(t *testing.T, root string) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		if rel, _ := filepath.Rel(root, name); err == nil && !strings.HasPrefix(rel, "var/lib/dpkg") {
			found = append(found, rel)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestPackage installs the package for Debian below an empty folder, with its scripts; starts the service as the
// installed unit says, with nothing but the installed files in sight; stops it; installs again over a file that was
// edited; and removes the package, after which nothing is left.
func TestPackage(t *testing.T) {
	dist := release(t)
	root := filepath.Join(t.TempDir(), "root")
	for _, folder := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/lib/systemd", "etc/systemd/system"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	before := files(t, root)
	deb := filepath.Join(dist, "stint_"+strings.ReplaceAll(released, "-", "~")+"_"+runtime.GOARCH+".deb")
	dpkg := func(args ...string) {
		t.Helper()
		run(t, dist, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--force-confold"}, args...)...)
	}
	dpkg("--install", deb)
	_, toolchain, _ := strings.Cut(read(t, "../go.mod"), "\ntoolchain ")
	toolchain, _, _ = strings.Cut(toolchain, "\n")
	if out := run(t, dist, filepath.Join(root, "usr/bin/stint"), "version"); !strings.HasPrefix(out, "stint "+released+" ("+toolchain) {
		t.Errorf("stint version: %s, want it built by %s", out, toolchain)
	}
	sbomIsComplete(t, filepath.Join(root, "usr/bin/stint"), filepath.Join(root, "usr/share/doc/stint/sbom.cdx.json"))

	s := startUnit(t, root)
	resp, err := http.Post(s.http+"/v1/take", "application/json", strings.NewReader(`{"attributes": {"ip": "192.0.2.7"}}`))
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(body), `"name":"requests-per-ip"`) {
		t.Errorf("the first request: %s, %s, %v", resp.Status, body, err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Error(err)
	}
	s.stop()

	limits := filepath.Join(root, "etc/stint/limits.yaml")
	edited := read(t, limits) + "# edited\n"
	if err := os.WriteFile(limits, []byte(edited), 0o644); err != nil {
		t.Fatal(err)
	}
	dpkg("--install", deb)
	if read(t, limits) != edited {
		t.Error("an upgrade has replaced a limits file that was edited")
	}
	dpkg("--remove", "stint")
	if read(t, limits) != edited {
		t.Error("the limits file went before the purge")
	}
	if err := os.RemoveAll(filepath.Join(root, "run")); err != nil { // of the test
		t.Fatal(err)
	}
	dpkg("--purge", "stint")
	left := slices.DeleteFunc(files(t, root), func(name string) bool { return slices.Contains(before, name) })
	if len(left) > 0 {
		t.Errorf("a purge has left %v", left)
	}
}

// sbomIsComplete: the bill lists each module that the program names, and nothing else but Go's library.
func sbomIsComplete(t *testing.T, program, file string) {
	t.Helper()
	var bill struct {
		Components []struct{ Name, Version string } `json:"components"`
	}
	if err := json.Unmarshal([]byte(read(t, file)), &bill); err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	var want, got []string
	for _, m := range info.Deps {
		want = append(want, m.Path+" "+m.Version)
	}
	for _, c := range bill.Components {
		got = append(got, c.Name+" "+c.Version)
	}
	want = append(want, "std "+strings.TrimPrefix(info.GoVersion, "go"))
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) || len(want) < 20 {
		t.Errorf("the bill lists %d modules\n%v\nwant %d\n%v", len(got), got, len(want), want)
	}
	for _, s := range info.Settings {
		if slices.Contains([]string{"vcs.revision", "-ldflags"}, s.Key) || strings.Contains(s.Value, os.TempDir()) {
			t.Errorf("the program says where it was built: %s=%s", s.Key, s.Value)
		}
	}
}

// unitProcess is a service that was started as systemd would.
type unitProcess struct {
	t    *testing.T
	cmd  *exec.Cmd
	told func() string
	http string
}

// startUnit runs ExecStart= of the installed unit with its environment, in the installed files
// as the root of the file system, and waits for READY=1.
func startUnit(t *testing.T, root string) *unitProcess {
	t.Helper()
	unit := read(t, filepath.Join(root, "usr/lib/systemd/system/stint.service"))
	value := func(name string) string {
		m := regexp.MustCompile(`(?m)^` + name + `=-?(.+)$`).FindStringSubmatch(unit)
		if m == nil {
			t.Fatalf("the unit has no %s=", name)
		}
		return m[1]
	}
	if value("Type") != "notify" || value("StateDirectory") != "stint" {
		t.Fatal("the unit has another type, or another state directory")
	}
	for _, folder := range []string{"var/lib/stint", "run"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(root, "run/notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // nothing is sent by then
	words := strings.Fields(value("ExecStart"))
	s := &unitProcess{t: t, cmd: &exec.Cmd{Path: words[0], Args: words, Dir: "/", SysProcAttr: &syscall.SysProcAttr{Chroot: root}}}
	s.cmd.Env = []string{
		value("Environment"), "STATE_DIRECTORY=/var/lib/stint", "NOTIFY_SOCKET=/run/notify",
		"STINT_HTTP=127.0.0.1:0", "STINT_GRPC=127.0.0.1:0", "STINT_ADMIN=127.0.0.1:0",
	}
	for line := range strings.Lines(read(t, filepath.Join(root, value("EnvironmentFile")))) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			s.cmd.Env = append(s.cmd.Env, line)
		}
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.cmd.Stderr = os.Stderr
	if err := s.cmd.Start(); err != nil {
		t.Fatalf("%v: %v (this test runs as root, as installing does)", words, err)
	}
	t.Cleanup(func() {
		if s.cmd.ProcessState == nil {
			_ = s.cmd.Process.Kill() // it may have ended by itself
			_ = s.cmd.Wait()
		}
	})
	s.told = func() string {
		t.Helper()
		buf := make([]byte, 4096)
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if m := regexp.MustCompile(`^ +http +(http://\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			s.http = m[1]
		}
		if lines.Text() == "ready" {
			break
		}
	}
	if got := s.told(); !strings.HasPrefix(got, "READY=1\nSTATUS=1 limit, store memory") || s.http == "" {
		t.Fatalf("systemd is told %q", got)
	}
	return s
}

// stop ends the service as systemd does.
func (s *unitProcess) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if got := s.told(); !strings.HasPrefix(got, "STOPPING=1") {
		s.t.Errorf("at the end systemd is told %q", got)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("the service ended with %v", err)
	}
}

// TestUnit: systemd reads the unit without a complaint, and rates how far it is shut in.
func TestUnit(t *testing.T) {
	unit := filepath.Join(t.TempDir(), "stint.service")
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// Verify looks for the program too: any will do.
	text := strings.ReplaceAll(read(t, "systemd/stint.service"), "/usr/bin/stint", program)
	if err := os.WriteFile(unit, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := run(t, ".", "systemd-analyze", "verify", "--man=no", unit); out != "" {
		t.Errorf("systemd-analyze verify: %s", out)
	}
	out := run(t, ".", "systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=15", unit)
	fmt.Println(strings.TrimSpace(out[strings.LastIndex(out, "→"):])) // at most 1.5 of 10
}

// TestInstalledByGo: "go install github.com/stint-io/stint/cmd/stint@latest" refuses a module with one of
// these in its go.mod.
func TestInstalledByGo(t *testing.T) {
	if m := regexp.MustCompile(`(?m)^(replace|exclude)\b.*`).FindString(read(t, "../go.mod")); m != "" {
		t.Errorf("go.mod has %q", m)
	}
}

// TestImage loads the image by hand, as a container engine does, and runs the service in it: its files alone are in
// sight, and it is the user that the image names.
func TestImage(t *testing.T) {
	dist := release(t)
	folder, root := t.TempDir(), t.TempDir()
	run(t, folder, "tar", "-xf", filepath.Join(dist, "stint_"+released+"_linux_"+runtime.GOARCH+"_image.tar"))
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(folder, "manifest.json"))), &manifest); err != nil || len(manifest) != 1 {
		t.Fatalf("%v in %v", err, manifest)
	}
	var image struct {
		Architecture, OS string
		Config           struct {
			User            string
			Entrypoint, Cmd []string
		}
	}
	if err := json.Unmarshal([]byte(read(t, filepath.Join(folder, manifest[0].Config))), &image); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(manifest[0].RepoTags, []string{"stint:" + released}) || image.Architecture != runtime.GOARCH || image.OS != "linux" || image.Config.User != "65532:65532" {
		t.Errorf("%+v, %+v", manifest[0], image)
	}
	for _, layer := range manifest[0].Layers {
		run(t, root, "tar", "-xpf", filepath.Join(folder, layer))
	}
	if err := os.Chmod(root, 0o755); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(read(t, filepath.Join(root, "etc/ssl/certs/ca-certificates.crt")), "BEGIN CERTIFICATE"); n < 50 {
		t.Errorf("%d authorities", n)
	}
	args := append(slices.Clone(image.Config.Entrypoint[1:]), image.Config.Cmd...)
	cmd := exec.Command(image.Config.Entrypoint[0], append(args, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0")...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	cmd.Dir, cmd.Env = "/", []string{"STINT_STATE_DIR=/var/lib/stint"}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	url := ""
	for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
		if m := regexp.MustCompile(`^  http +(http://\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			url = m[1]
		}
	}
	go io.Copy(io.Discard, out)
	resp, err := http.Post(url+"/v1/take", "application/json", strings.NewReader(`{"attributes": {"ip": "192.0.2.7"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body.Close(); resp.StatusCode != http.StatusOK {
		t.Errorf("the first request: %s", resp.Status)
	}
	if _, err := os.Stat(filepath.Join(root, "var/lib/stint/counts.db")); err != nil {
		t.Error(err)
	}
}

// TestClientsInstall: pip and npm install the clients that a release has.
func TestClientsInstall(t *testing.T) {
	dist := release(t)
	folder := t.TempDir()
	run(t, folder, "python3", "-m", "venv", "venv")
	run(t, folder, "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check", filepath.Join(dist, "stint_client-9.8.7rc1.tar.gz"))
	if out := run(t, folder, "venv/bin/python", "-c", "import stint_client, importlib.metadata as m; print(stint_client.Client.__name__, m.version('stint-client'))"); out != "Client 9.8.7rc1\n" {
		t.Errorf("Python says %q", out)
	}
	run(t, folder, "npm", "install", "--silent", "--no-audit", "--no-fund", filepath.Join(dist, "stint-client-"+released+".tgz"))
	if out := run(t, folder, "node", "--input-type=module", "-e", "import { Client } from 'stint-client'; console.log(Client.name)"); out != "Client\n" {
		t.Errorf("Node says %q", out)
	}
}
