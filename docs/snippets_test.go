// Package docs_test runs what the pages show. Each fenced block is one of these:
//
//	go                 a fragment, or a file: it is compiled, and a fragment is run
//	go compiled: why   it is compiled alone, since it would never end
//	sh                 commands, run in order; "stint serve" goes on beside the others
//	console            commands after "$ ", each with the output that it must have
//	console figures: x the same, but numbers may differ from run to run, for the reason x
//	yaml               a limits file or a scenario: it has no faults
//	json               one or more values
//	text, or nothing   a picture, a formula, or an output
//	... unchecked: why it is not run, for the reason that the page gives
//
// Blocks of a page see what those before them have left: files, services, variables.
// A block of YAML or Go that begins with a comment of one word, such as "# stint.yaml", is
// the file of that name. The ports of a page stand for free ones, in commands and outputs.
package docs_test

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/sim"
	"github.com/stint-io/stint/sim/overload"
)

const (
	// mostUnchecked bounds the blocks of all pages that are not run. Lower it when you can.
	mostUnchecked = 3
	// mostCompiled bounds those that are compiled and not run.
	mostCompiled = 0
	// fewestRun is a little less than how many blocks are checked today: fewer means that
	// the search is wrong.
	fewestRun = 95
)

// TestMain lets eight pages run at a time, however many processors there are: most of their
// time they wait for a service to be ready.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// measured are pages whose commands measure for minutes to hours.
var measured = regexp.MustCompile(`^docs/benchmarks`)

// fence is one fenced block of a page.
type fence struct {
	page      string // its path from the root of the repository
	line      int    // of its first line of text
	lang      string
	compiled  string // why it is only compiled, "" = it is run
	figures   string // why the numbers of its output may differ, "" = they may not
	unchecked string // why it is not checked, "" = it is
	text      string
}

// file returns the name that a first line such as "# stint.yaml" or "// worker/main.go"
// gives the block; "" = none.
func (f fence) file() string {
	m := regexp.MustCompile(`^(?:#|//) (\S+\.\w+)\n`).FindStringSubmatch(f.text)
	if m == nil {
		return ""
	}
	return m[1]
}

// program reports whether a block of Go is a whole file.
func (f fence) program() bool {
	return f.lang == "go" && regexp.MustCompile(`(?m)^package \w+$`).MatchString(f.text)
}

// fragment reports whether a block is Go without a package clause.
func (f fence) fragment() bool {
	return f.lang == "go" && f.unchecked == "" && !f.program()
}

// readFences returns the blocks of a page, and what is wrong with their marks.
func readFences(page, text string) (fences []fence, faults []string) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		info, opens := strings.CutPrefix(strings.TrimLeft(lines[i], " "), "```")
		if !opens {
			continue
		}
		indent := len(lines[i]) - len(strings.TrimLeft(lines[i], " "))
		lang, mark, _ := strings.Cut(info, " ")
		f := fence{page: page, line: i + 2, lang: lang}
		kind, why, _ := strings.Cut(mark, ": ")
		switch {
		case mark == "":
		case len(strings.Fields(why)) < 3:
			faults = append(faults, page+": "+lines[i]+": want compiled:, figures: or unchecked: and a reason of three words at least")
		case kind == "compiled":
			f.compiled = why
		case kind == "figures":
			f.figures = why
		case kind == "unchecked":
			f.unchecked = why
		default:
			faults = append(faults, page+": unknown mark in "+lines[i])
		}
		for i++; i < len(lines) && !strings.HasPrefix(strings.TrimLeft(lines[i], " "), "```"); i++ {
			f.text += lines[i][min(indent, len(lines[i])):] + "\n"
		}
		fences = append(fences, f)
	}
	return fences, faults
}

// readPages returns the blocks of the README, of CONTRIBUTING and of all pages below docs.
func readPages(t *testing.T) map[string][]fence {
	t.Helper()
	found := map[string][]fence{}
	read := func(path, page string) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		fences, faults := readFences(page, string(text))
		for _, fault := range faults {
			t.Error(fault)
		}
		found[page] = fences
	}
	for _, page := range []string{"README.md", "CONTRIBUTING.md"} {
		read(filepath.Join("..", page), page)
	}
	err := filepath.WalkDir(".", func(name string, entry fs.DirEntry, err error) error {
		if page := "docs/" + filepath.ToSlash(name); err == nil && !entry.IsDir() && filepath.Ext(name) == ".md" && !measured.MatchString(page) {
			read(name, page)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestSnippets runs the blocks of every page, those of a page in their order.
func TestSnippets(t *testing.T) {
	pages := readPages(t)
	var names []string
	checked, compiled, unchecked := 0, 0, 0
	for name, fences := range pages {
		for _, f := range fences {
			switch {
			case f.unchecked != "":
				unchecked++
				t.Logf("%s:%d is not checked: %s", f.page, f.line, f.unchecked)
			case f.compiled != "":
				compiled++
			case f.lang != "" && f.lang != "text":
				checked++
			}
		}
		if len(fences) > 0 {
			names = append(names, name)
		}
	}
	if checked < fewestRun {
		t.Errorf("%d blocks are run, want %d at least: the search is wrong", checked, fewestRun)
	}
	if unchecked > mostUnchecked || compiled > mostCompiled {
		t.Errorf("%d blocks are not checked and %d only compiled, want at most %d and %d", unchecked, compiled, mostUnchecked, mostCompiled)
	}
	slices.Sort(names)
	ports := map[string]ports{}
	for _, name := range names {
		ports[name] = reservePorts(t, pages[name])
	}
	bin := build(t, pages, ports)
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPage(t, bin, name, ports[name], pages[name])
			for _, f := range pages[name] {
				p.check(f)
			}
			p.runFragments()
		})
	}
}

// check runs one block, or says what is wrong with it.
func (p *page) check(f fence) {
	p.t.Helper()
	if f.unchecked != "" {
		return
	}
	switch f.lang {
	case "go":
		if f.program() {
			p.writeProgram(f)
		}
	case "sh":
		p.runScript(f)
	case "console":
		p.runConsole(f)
	case "yaml":
		p.checkYAML(f)
	case "json":
		decoder := json.NewDecoder(strings.NewReader(f.text))
		for {
			var v any
			if err := decoder.Decode(&v); errors.Is(err, io.EOF) {
				return
			} else if err != nil {
				p.t.Errorf("%s:%d: %v", f.page, f.line, err)
				return
			}
		}
	case "", "text":
		if m := regexp.MustCompile(`(?m)^(\$ |stint [a-z]+ |curl |go (run|test|build) ).*`).FindString(f.text); m != "" {
			p.t.Errorf("%s:%d: %q is a command in a block that is not run: say sh, or why not", f.page, f.line, m)
		}
	default:
		p.t.Errorf("%s:%d: a block of %q, which nobody checks: say why with unchecked:", f.page, f.line, f.lang)
	}
}

// checkYAML keeps a limits file for later blocks, and has stint check it.
func (p *page) checkYAML(f fence) {
	p.t.Helper()
	text := p.ports.replace(f.text)
	if regexp.MustCompile(`(?m)^load:`).MatchString(text) {
		name := f.file()
		if name == "" {
			name = "scenario.yaml"
		}
		p.write(name, text)
		if strings.Contains(text, "\nservers:") {
			if _, err := overload.ParseScenario([]byte(text), f.page); err != nil {
				p.t.Errorf("%s:%d: %v", f.page, f.line, err)
			}
			return
		}
		if _, err := sim.ParseScenario([]byte(text), f.page); err != nil {
			p.t.Errorf("%s:%d: %v", f.page, f.line, err)
		}
		return
	}
	name := f.file()
	if name == "" {
		name = fmt.Sprintf("limits-%d.yaml", f.line)
	}
	p.write(name, text)
	if !slices.Contains(p.limits, name) {
		p.limits = append(p.limits, name)
	}
	if out, err := p.command("stint", "check", name).CombinedOutput(); err != nil || strings.Contains(string(out), "0 limits") {
		p.t.Errorf("%s:%d: %v\n%s", f.page, f.line, err, out)
	}
}

// TestFencesAreRead: marks are read, and wrong ones are faults.
func TestFencesAreRead(t *testing.T) {
	fences, faults := readFences("p", "a\n```sh\nstint take\n```\n```go compiled: it never ends\nx()\n```\n  ```yaml unchecked: made for others only\n  a: 1\n  ```\n```\npicture\n```\n")
	if len(faults) > 0 || len(fences) != 4 {
		t.Fatalf("%d blocks, %v", len(fences), faults)
	}
	for i, want := range []fence{
		{"p", 3, "sh", "", "", "", "stint take\n"},
		{"p", 6, "go", "it never ends", "", "", "x()\n"},
		{"p", 9, "yaml", "", "", "made for others only", "a: 1\n"},
		{"p", 12, "", "", "", "", "picture\n"},
	} {
		if fences[i] != want {
			t.Errorf("block %d is %+v, want %+v", i, fences[i], want)
		}
	}
	for _, bad := range []string{"```sh unchecked\n```\n", "```sh unchecked: no\n```\n", "```sh perhaps: it is not clear\n```\n"} {
		if _, faults := readFences("p", bad); len(faults) != 1 {
			t.Errorf("%q: %v, want one fault", bad, faults)
		}
	}
}
