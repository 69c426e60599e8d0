// Command mutants breaks the code on purpose, one place at a time, and counts how often
// the tests notice.
//
// It draws places by a seed, so that a figure can be measured again: flipped and
// shifted comparisons, negated conditions, dropped statements, doubled constants,
// swapped operators. Each mutant is built with go's -overlay, so that the tree is never
// changed. A mutant that does not build, or does the same as the original by the
// compiler's word, is drawn again. A mutant is killed when a test fails, or does not
// end in time.
//
//	go run ./mutants -seed 1 -n 40 limit:store/memory,internal/engine split
//
// An argument is a package of the repository, and after a colon the packages whose tests
// are run as well when those of the package itself pass.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

func main() {
	o := options{}
	flag.Uint64Var(&o.seed, "seed", 1, "draws the places")
	flag.IntVar(&o.each, "n", 40, "mutants of each package")
	flag.StringVar(&o.root, "root", "..", "the repository")
	flag.StringVar(&o.only, "only", "", "only files whose path contains this")
	flag.DurationVar(&o.timeout, "timeout", 4*time.Minute, "for the tests of one package under one mutant; longer counts as killed")
	flag.Parse()
	if err := run(o, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

type options struct {
	seed    uint64
	each    int
	root    string
	only    string
	timeout time.Duration
}

func run(o options, targets []string) error {
	if len(targets) == 0 || o.each < 1 {
		return errors.New("want packages and -n above 0, such as: -n 40 limit store/memory")
	}
	work, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, target := range targets {
		pkg, also, _ := strings.Cut(target, ":")
		packages := []string{pkg}
		if also != "" {
			packages = append(packages, strings.Split(also, ",")...)
		}
		if err := o.measure(work, packages); err != nil {
			return err
		}
	}
	return nil
}

// measure draws mutants of the first package, and runs the tests of all of them.
func (o options) measure(work string, packages []string) error {
	for _, p := range packages {
		if verdict, out := o.test(p, ""); verdict != survived {
			return fmt.Errorf("the tests of %s do not pass without a mutant:\n%s", p, out)
		}
	}
	places, err := find(filepath.Join(o.root, packages[0]), o.only)
	if err != nil {
		return err
	}
	// One stream for each package, so that its mutants do not depend on the others named.
	seed := rand.NewPCG(o.seed, hash(packages[0]))
	rand.New(seed).Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	tried, dead := 0, 0
	for _, m := range places {
		if tried == o.each {
			break
		}
		overlay, err := m.write(work)
		if err != nil {
			return err
		}
		verdict := survived
		for _, p := range packages {
			if verdict, _ = o.test(p, overlay); verdict != survived {
				break
			}
		}
		if verdict == invalid {
			continue
		}
		tried++
		if verdict == killed {
			dead++
		}
		fmt.Printf("%-8s %s:%d: %s\n", verdict, filepath.ToSlash(m.file[len(filepath.Clean(o.root))+1:]), m.line, m.what)
	}
	if tried == 0 {
		return fmt.Errorf("nothing to mutate in %s", packages[0])
	}
	fmt.Printf("%s: %d of %d killed, %.0f %%, of %d places, seed %d\n", packages[0], dead, tried, 100*float64(dead)/float64(tried), len(places), o.seed)
	return nil
}

type verdict string

const (
	survived verdict = "SURVIVED"
	killed   verdict = "killed"
	invalid  verdict = "invalid"
)

// memory bounds the address space of a test that a mutant sends astray, in KiB.
const memory = "12000000"

// test runs the tests of a package under an overlay, or of the tree as it is.
func (o options) test(pkg, overlay string) (verdict, string) {
	args := []string{"-c", `ulimit -v ` + memory + `; exec "$@"`, "go", "go", "test", "-failfast", "-vet=off", "-timeout", o.timeout.String()}
	if overlay != "" {
		args = append(args, "-overlay", overlay)
	}
	ctx, cancel := context.WithTimeout(context.Background(), o.timeout+2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", append(args, "./"+pkg)...)
	cmd.Dir = o.root
	// A test may have started servers: they end with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	switch {
	case err == nil:
		return survived, ""
	case bytes.Contains(out.Bytes(), []byte("[build failed]")), bytes.Contains(out.Bytes(), []byte("[setup failed]")):
		return invalid, out.String()
	}
	return killed, out.String()
}

// write makes the mutated file and the overlay that puts it in place of the original.
func (m mutant) write(work string) (overlay string, err error) {
	file := filepath.Join(work, "mutant.go")
	if err := os.WriteFile(file, m.mutated(), 0o600); err != nil {
		return "", err
	}
	original, err := filepath.Abs(m.file)
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(map[string]map[string]string{"Replace": {original: file}})
	if err != nil {
		return "", err
	}
	overlay = filepath.Join(work, "overlay.json")
	return overlay, os.WriteFile(overlay, text, 0o600)
}
