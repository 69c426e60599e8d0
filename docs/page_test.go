package docs_test

import (
	"bufio"
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/redistest"
)

const (
	// patience bounds one command, on a machine that is busy with other tests.
	patience = 10 * time.Minute
	// redisPort and etcdPort are the ports by which pages mean a Redis and an etcd.
	redisPort = "6379"
	etcdPort  = "2379"
)

var address = regexp.MustCompile(`(?:127\.0\.0\.1|localhost):(\d+)`)

// figure is a number in an output.
var figure = regexp.MustCompile(`\d+(\.\d+)?`)

// ports are the free ports that stand for those that a page names.
type ports map[string]string

// reservePorts finds a free port for each that a page names, and for the three of a service.
func reservePorts(t *testing.T, fences []fence) ports {
	p := ports{}
	needed := []string{"8080", "8081", "8082"}
	for _, f := range fences {
		for _, m := range address.FindAllStringSubmatch(f.text, -1) {
			needed = append(needed, m[1])
		}
	}
	for _, port := range needed {
		switch {
		case p[port] != "":
		case port == redisPort:
			_, p[port], _ = strings.Cut(redistest.Start(t).Addr(), ":")
		case port == etcdPort:
			_, p[port], _ = strings.Cut(etcdtest.Start(t).Addr(), ":")
		default:
			p[port] = strconv.Itoa(redistest.ReservePort(t))
		}
	}
	return p
}

// replace puts the free ports in the place of those that are written.
func (p ports) replace(text string) string {
	return address.ReplaceAllStringFunc(text, func(a string) string {
		_, port, _ := strings.Cut(a, ":")
		return "127.0.0.1:" + p[port]
	})
}

// written puts the ports of the page back into an output.
func (p ports) written(text string) string {
	for port, free := range p {
		text = strings.ReplaceAll(text, "127.0.0.1:"+free, "127.0.0.1:"+port)
	}
	return text
}

// page runs the blocks of one page in a folder of its own.
type page struct {
	t        *testing.T
	bin      string // the folder of the commands
	dir      string
	name     string
	ports    ports
	fences   []fence
	limits   []string // the limits files that the page has shown
	services []*service
}

func newPage(t *testing.T, bin, name string, ports ports, fences []fence) *page {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	p := &page{t: t, bin: bin, dir: t.TempDir(), name: name, ports: ports, fences: fences}
	for _, folder := range []string{"examples", "clients"} {
		if err := os.Symlink(filepath.Join(root, folder), filepath.Join(p.dir, folder)); err != nil {
			t.Fatal(err)
		}
	}
	// Programs of the page are a module that finds this one beside it.
	for _, file := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		if rest, ok := strings.CutPrefix(string(text), "module github.com/stint-io/stint\n"); ok {
			text = []byte("module page\n" + rest +
				"\nrequire github.com/stint-io/stint v0.0.0\nreplace github.com/stint-io/stint => " + root + "\n")
		}
		p.write(file, string(text))
	}
	return p
}

func (p *page) write(name, text string) {
	p.t.Helper()
	path := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// writeProgram keeps a whole Go file and compiles its package.
func (p *page) writeProgram(f fence) {
	p.t.Helper()
	name := f.file()
	if name == "" {
		p.t.Fatalf("%s:%d: a Go file begins with its name, such as // worker/main.go", f.page, f.line)
	}
	p.write(name, p.ports.replace(f.text))
	if out, err := p.command("go", "vet", "./"+filepath.Dir(name)).CombinedOutput(); err != nil {
		p.t.Fatalf("%s:%d: %v\n%s", f.page, f.line, err, out)
	}
}

// command is a command in the folder of the page, with the ports of the page.
func (p *page) command(name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	p.t.Cleanup(cancel)
	if name == "stint" {
		name = filepath.Join(p.bin, name)
	}
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = p.dir
	cmd.WaitDelay = time.Second
	cmd.Env = append(os.Environ(),
		"PATH="+p.bin+string(os.PathListSeparator)+os.Getenv("PATH"),
		"XDG_STATE_HOME="+filepath.Join(p.dir, "state"), "STATE_DIRECTORY=",
		"STINT_HTTP=127.0.0.1:"+p.ports["8080"], "STINT_GRPC=127.0.0.1:"+p.ports["8081"], "STINT_ADMIN=127.0.0.1:"+p.ports["8082"],
		"STINT_ADDR=http://127.0.0.1:"+p.ports["8080"], "STINT_TO=etcd://127.0.0.1:"+p.ports[etcdPort]+"/shop",
		"GOFLAGS=-mod=mod -buildvcs=false -trimpath -ldflags=-w", "GOPROXY=off")
	return cmd
}

// ours turns a command as a reader of a clone types it into one for the built stint.
func (p *page) ours(text string) string {
	return strings.NewReplacer("go run ./cmd/stint ", "stint ", "bin/stint ", "stint ").Replace(p.ports.replace(text))
}

// runScript runs the commands of a block; the first that fails ends the test.
func (p *page) runScript(f fence) {
	p.t.Helper()
	if regexp.MustCompile(`stint (take|explain)|127\.0\.0\.1:808[012]`).MatchString(f.text) && !strings.Contains(f.text, "stint serve") {
		p.needService()
	}
	var script strings.Builder
	run := func() {
		if strings.TrimSpace(script.String()) == "" {
			return
		}
		if out, err := p.command("sh", "-e", "-c", script.String()).CombinedOutput(); err != nil {
			p.t.Fatalf("%s:%d: %v in\n%s\n%s", f.page, f.line, err, script.String(), out)
		}
		script.Reset()
	}
	for line := range strings.Lines(strings.ReplaceAll(p.ours(f.text), "\\\n", " ")) {
		if strings.HasPrefix(line, "stint serve") {
			run()
			p.serve(line)
			continue
		}
		script.WriteString(line)
	}
	run()
}

// runConsole runs each command of a block and compares what it prints. "..." in an output
// stands for anything, over several lines where it is a line of its own.
func (p *page) runConsole(f fence) {
	p.t.Helper()
	commands := strings.Split("\n"+f.text, "\n$ ")
	if strings.TrimSpace(commands[0]) != "" || len(commands) < 2 {
		p.t.Fatalf("%s:%d: a block of console begins with $", f.page, f.line)
	}
	for _, c := range commands[1:] {
		c = strings.ReplaceAll(c, "\\\n", " ")
		line, want, _ := strings.Cut(c, "\n")
		line = p.ours(line)
		var got string
		switch background, ok := strings.CutSuffix(line, " &"); {
		case strings.HasPrefix(line, "stint serve"):
			got = p.serve(line).greeting
		case ok:
			p.start(background)
		default:
			got = p.shown(line)
		}
		// What only reads is read again: a file that has changed is loaded in a moment.
		reads := strings.HasPrefix(line, "stint explain") || strings.HasPrefix(line, "curl -s http://127.0.0.1:"+p.ports["8082"])
		for tries := 0; reads && tries < 100 && !p.agrees(f, want, got); tries++ {
			<-time.After(100 * time.Millisecond)
			got = p.shown(line)
		}
		if !p.agrees(f, want, got) {
			p.t.Errorf("%s:%d: %s\nprints\n%s\nwant\n%s", f.page, f.line, line, got, want)
		}
	}
}

// shown is what a command prints. Refusals have an exit code of their own: the output says all.
func (p *page) shown(line string) string {
	out, _ := p.command("sh", "-c", line).CombinedOutput()
	return string(out)
}

// agrees compares an output with the one of a block.
func (p *page) agrees(f fence, want, got string) bool {
	got = p.ports.written(strings.ReplaceAll(got, "\r", ""))
	if f.figures != "" {
		want, got = figure.ReplaceAllString(want, "0"), figure.ReplaceAllString(got, "0")
	}
	return matches(want, got)
}

// start runs a command beside the others until the page ends.
func (p *page) start(line string) {
	p.t.Helper()
	cmd := p.command("sh", "-c", "exec "+line)
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		// It ends by the signal, or has ended with an error of its own.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// matches compares an output with the one that a page shows.
func matches(want, got string) bool {
	var lines []string
	for line := range strings.SplitSeq(strings.TrimSpace(want), "\n") {
		line = strings.TrimRight(line, " ")
		if strings.TrimSpace(line) == "..." {
			lines = append(lines, `(?s:.*)`)
			continue
		}
		lines = append(lines, strings.ReplaceAll(regexp.QuoteMeta(line), `\.\.\.`, `.*`)+` *`)
	}
	pattern := strings.ReplaceAll(strings.Join(lines, "\n"), "\n(?s:.*)", "(?s:.*)")
	return regexp.MustCompile(`^` + pattern + `$`).MatchString(strings.TrimSpace(got))
}

func TestMatches(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		same      bool
	}{
		{"a\nb\n", "a\nb", true},
		{"a\nb\n", "a\nc", false},
		{"a ... d", "a b c d\n", true},
		{"a\n...\nd", "a\nb\nc\nd", true},
		{"a\n...\nd", "a\nb\nc\n", false},
		{"a.c", "abc", false},
		{"", "something", false},
	} {
		if matches(tt.want, tt.got) != tt.same {
			t.Errorf("matches(%q, %q) is not %v", tt.want, tt.got, tt.same)
		}
	}
}

// service is one stint serve of a page.
type service struct {
	cmd      *exec.Cmd
	log      *bytes.Buffer
	greeting string
	address  string
}

// needService starts a service with the limits that the page has shown, if none runs.
func (p *page) needService() {
	p.t.Helper()
	if len(p.services) > 0 {
		return
	}
	line := "stint serve"
	for _, name := range p.limits {
		line += " --config " + name
	}
	p.serve(line)
}

// serve starts a service and returns when it is ready. One that has its address ends first.
func (p *page) serve(line string) *service {
	p.t.Helper()
	at := "127.0.0.1:" + p.ports["8080"]
	if m := regexp.MustCompile(`--http[ =](\S+)`).FindStringSubmatch(line); m != nil {
		at = m[1]
	}
	for i, s := range p.services {
		if s.address == at {
			p.services = slices.Delete(p.services, i, i+1)
			s.stop(p.t)
			break
		}
	}
	s := &service{address: at, log: new(bytes.Buffer)}
	line, _, _ = strings.Cut(line, "#")
	// No time limit: it runs as long as the page.
	s.cmd = p.command("sh", "-c", "exec "+strings.TrimSuffix(strings.TrimSpace(line), "&"))
	s.cmd.Cancel = func() error { return nil }
	s.cmd.Stderr = s.log
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.services = append(p.services, s)
	p.t.Cleanup(func() { s.stop(p.t) })
	for lines := bufio.NewScanner(out); lines.Scan(); {
		s.greeting += lines.Text() + "\n"
		if lines.Text() == "ready" || strings.HasPrefix(lines.Text(), "listening, ") {
			break
		}
	}
	admin := regexp.MustCompile(`admin +(http://\S+)/metrics`).FindStringSubmatch(s.greeting)
	if admin == nil {
		s.stop(p.t)
		p.t.Fatalf("%s did not start:\n%s%s", line, s.greeting, s.log)
	}
	p.awaitReady(line, admin[1]+"/readyz")
	return s
}

// awaitReady asks until a service says that it is ready.
func (p *page) awaitReady(line, url string) {
	p.t.Helper()
	late := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return
			}
		}
		select {
		case <-tick.C:
		case <-late:
			p.t.Fatalf("%s was never ready: %v", line, err)
		}
	}
}

// stop ends a service as an operator does, once.
func (s *service) stop(t *testing.T) {
	if s.cmd.ProcessState != nil {
		return
	}
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	// The exit code is that of a stop.
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("%v: %v\n%s", s.cmd.Args, err, s.log)
	}
}
