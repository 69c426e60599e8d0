// Command path counts the code that each request passes: packages, files and functions of this
// module, the calls that lead back into an earlier file, and the functions that only forward.
//
//	./scripts/path              the checkout
//	./scripts/path COMMIT       a commit, built beside the checkout
//
// It builds stint with coverage, runs it with few requests and with many, and takes the functions
// whose number of calls grew by that of the requests. Work in the background grows with the time,
// which is about the same in both runs. Calls between those functions come from the types of the
// source: an interface method leads to each of those functions that implements it.
package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

const (
	module = "github.com/stint-io/stint"
	few    = 100  // requests of the short run
	many   = 2000 // how many more the long run has
)

// driver is the program that sends the requests. It is compiled in the module under test, whose
// client it uses for lease reports.
//
//go:embed driver.go.txt
var driver string

// A scenario is one kind of request.
type scenario struct {
	name   string // as the driver knows it
	limits string
}

const counted = "limits: [{name: day, key: [user], algorithm: fixed_window, rate: 1000000000/day}]\n"

var scenarios = []scenario{
	{"http", counted},
	{"rls", counted},
	{"reservation", counted},
	{"report", "limits: [{name: shared, rate: 1000000/s, sharing: leased}]\n"},
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("path: ")
	root := flag.String("root", ".", "the checkout whose code is counted")
	list := flag.Bool("list", false, "print each function, with the calls that lead back")
	flag.Parse()
	if err := run(*root, *list); err != nil {
		log.Fatal(err)
	}
}

func run(root string, list bool) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "path")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := build(root, work); err != nil {
		return err
	}
	source, err := load(root)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "request\tpackages\tfiles\tfunctions\tcalls back\tforwarding")
	var details bytes.Buffer
	for _, s := range scenarios {
		short, err := count(root, work, s, few)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		long, err := count(root, work, s, few+many)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		passed := map[string]bool{} // blocks
		for block, n := range long {
			// A lease report is sent when it is due, so that its number varies a little.
			if n-short[block] >= many*9/10 {
				passed[block] = true
			}
		}
		p := source.path(passed)
		fmt.Fprintf(table, "%s\t%d\t%d\t%d\t%d\t%d\n", s.name, len(p.packages), len(p.files), len(p.functions), len(p.back), len(p.forwarding))
		fmt.Fprintf(&details, "\n%s\n", s.name)
		for _, f := range p.functions {
			fmt.Fprintf(&details, "  %s\n", f)
		}
		for _, c := range p.back {
			fmt.Fprintf(&details, "  back: %s\n", c)
		}
		for _, f := range slices.Sorted(maps.Keys(p.forwarding)) {
			fmt.Fprintf(&details, "  only forwards: %s\n", f)
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if list {
		_, err = details.WriteTo(os.Stdout)
	}
	return err
}

// build makes the covered stint and the driver.
func build(root, work string) error {
	if err := command(root, "go", "build", "-cover", "-covermode=atomic", "-coverpkg="+module+"/...", "-o", filepath.Join(work, "stint"), "./cmd/stint"); err != nil {
		return err
	}
	// A folder of the checkout, since the driver uses packages that its go.mod requires.
	folder, err := os.MkdirTemp(root, ".path")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	if err := os.WriteFile(filepath.Join(folder, "main.go"), []byte(driver), 0o600); err != nil {
		return err
	}
	return command(root, "go", "build", "-o", filepath.Join(work, "driver"), "./"+filepath.Base(folder))
}

func command(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(strings.Join(cmd.Args, " "), name), err)
	}
	return nil
}

// count runs stint and n requests, and returns how often each block ran.
func count(root, work string, s scenario, n int) (map[string]int, error) {
	dir, err := os.MkdirTemp(work, s.name)
	if err != nil {
		return nil, err
	}
	limits, data := filepath.Join(dir, "limits.yaml"), filepath.Join(dir, "data")
	if err := os.WriteFile(limits, []byte(s.limits), 0o600); err != nil {
		return nil, err
	}
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, err
	}
	const http, grpc, admin = "127.0.0.1:28180", "127.0.0.1:28181", "127.0.0.1:28182"
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	serve := exec.CommandContext(ctx, filepath.Join(work, "stint"), "serve", "--config", limits, "--http", http, "--grpc", grpc, "--admin", admin)
	serve.Env = append(os.Environ(), "GOCOVERDIR="+data, "XDG_STATE_HOME="+dir)
	var output bytes.Buffer
	serve.Stdout, serve.Stderr = &output, &output
	if err := serve.Start(); err != nil {
		return nil, err
	}
	drive := exec.CommandContext(ctx, filepath.Join(work, "driver"), s.name, http, grpc, admin, fmt.Sprint(n))
	drive.Stderr = os.Stderr
	failed := drive.Run()
	if err := serve.Process.Signal(syscall.SIGTERM); err != nil && failed == nil {
		failed = err
	}
	if err := serve.Wait(); err != nil && failed == nil {
		failed = err
	}
	if failed != nil {
		return nil, fmt.Errorf("%w\n%s", failed, output.String())
	}
	profile := filepath.Join(dir, "profile")
	if err := command(root, "go", "tool", "covdata", "textfmt", "-i="+data, "-o="+profile); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(profile)
	if err != nil {
		return nil, err
	}
	blocks := map[string]int{}
	for line := range strings.Lines(string(text)) {
		// path/file.go:1.2,3.4 STATEMENTS COUNT
		var block string
		var statements, n int
		if _, err := fmt.Sscan(line, &block, &statements, &n); err == nil {
			blocks[block] = n
		}
	}
	return blocks, nil
}
