// Command mutants breaks the code on purpose, one place at a time, and counts how often
// the tests notice.
//
// It draws places by a seed, so that a figure can be measured again: flipped and
// shifted comparisons, conditions that always or never hold, dropped statements, doubled
// constants, swapped operators, results that are zero. All mutants of a package are
// written into one copy of its sources, each behind an index that the test binary reads from
// the environment, and built once with go's -overlay: the tree is never changed. A mutant
// that cannot be written so, such as one in a constant's declaration, has a build of its own;
// one that does not compile at all is drawn again.
//
// Each test is run once unmutated, to learn how long it takes and by which places it comes.
// A mutant is then tried by the tests of its own package that come by its place, the quickest
// first. It is killed when one fails twice, crashes or does not end within three times its
// time and five seconds.
//
//	go run ./mutants -seed 1 -n 40 limit split
package main

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	o := options{}
	var equivalents string
	flag.Uint64Var(&o.seed, "seed", 1, "draws the places")
	flag.IntVar(&o.each, "n", 40, "mutants of each package")
	flag.StringVar(&o.root, "root", "..", "the repository")
	flag.StringVar(&o.only, "only", "", "only places whose file:line contains this, such as pool.go or pool.go:17")
	flag.DurationVar(&o.budget, "budget", 30*time.Second, "for the unmutated time of a test, and of all tests that try one mutant; the slowest are left out")
	flag.StringVar(&equivalents, "equivalent", "mutants/equivalent.txt", "mutants that do the same as the original")
	flag.StringVar(&o.list, "list", "", "write all mutants and what became of them here, as lines of JSON")
	flag.StringVar(&o.again, "again", "", "only the mutants that survived in this list, which -list wrote")
	flag.Parse()
	err := func() (err error) {
		if o.known, err = readKnown(equivalents); err != nil {
			return err
		}
		return run(o, flag.Args())
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

type options struct {
	seed   uint64
	each   int
	root   string
	only   string
	list   string
	again  string
	budget time.Duration
	known  known
	// survivors are the keys of the mutants that are tried again; nil = any.
	survivors map[string]bool
}

func run(o options, packages []string) (err error) {
	if len(packages) == 0 || o.each < 1 {
		return errors.New("want packages and -n above 0, such as: -n 40 limit store/memory")
	}
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if o.again != "" {
		if o.survivors, err = readSurvivors(o.again); err != nil {
			return err
		}
	}
	var reports []report
	for _, pkg := range packages {
		r, err := o.measure(work, strings.Trim(filepath.ToSlash(filepath.Clean(pkg)), "/"))
		if err != nil {
			return err
		}
		reports = append(reports, r)
		if o.list != "" {
			if err := writeList(o.list, reports); err != nil {
				return err
			}
		}
	}
	printTable(os.Stdout, reports, o.seed)
	return nil
}

// measure draws mutants of a package, and tries them.
func (o options) measure(work, pkg string) (report, error) {
	begun := time.Now()
	s, err := load(o.root, pkg)
	if err != nil {
		return report{}, err
	}
	r := report{pkg: pkg}
	all := s.places()
	names := map[string]bool{}
	var places []mutant
	for _, m := range all {
		key := o.key(s, m)
		names[key] = true
		if strings.Contains(fmt.Sprintf("%s:%d", m.file, m.line), o.only) && (o.survivors == nil || o.survivors[key]) {
			places = append(places, m)
		}
	}
	for _, entry := range o.known.stale(pkg, names) {
		fmt.Printf("no such place: %s\n", entry)
	}
	// One stream for each package, so that its mutants do not depend on the others named.
	rand.New(rand.NewPCG(o.seed, hash(pkg))).Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	r.places = len(places)

	switched, alone := s.choose(places, o.each)
	if len(switched)+len(alone) == 0 {
		return r, fmt.Errorf("nothing to mutate in %s", pkg)
	}
	file, err := overlay(work, s.schema(switched))
	if err != nil {
		return r, err
	}
	binary, err := build(s.dir, file)
	if err != nil {
		return r, err
	}
	tests, err := newSuite(s.dir, work, binary, o.budget)
	if err != nil {
		return r, err
	}
	r.tests, r.unused = len(tests.tests), tests.unused
	for _, line := range r.unused {
		fmt.Printf("%s: not used: %s\n", pkg, line)
	}
	for _, m := range slices.Concat(switched, alone) {
		e := entry{Package: pkg, File: o.relative(m), Line: m.line, What: m.what, Code: s.code(m)}
		own := ""
		if m.index == 0 {
			r.own++
			file, err := overlay(work, s.plain(m))
			if err != nil {
				return r, err
			}
			if own, err = build(s.dir, file); err != nil {
				return r, err
			}
		}
		verdict, by := tests.try(m, own, o.budget)
		if own != "" {
			_ = os.RemoveAll(filepath.Dir(own))
		}
		e.By = by
		e.Reason = o.known[o.key(s, m)]
		if e.Reason != "" {
			if verdict == killed || verdict == timedOut {
				fmt.Printf("%s:%d: is listed as equivalent and was killed by %s: %s\n", e.File, e.Line, by, e.What)
			} else {
				verdict = equivalent
			}
		}
		e.Verdict = verdict
		r.entries = append(r.entries, e)
		fmt.Println(e)
	}
	r.took = time.Since(begun)
	fmt.Println(r)
	return r, nil
}

// choose takes the first n mutants that compile: those that the schema holds, with their
// indices, and those that need a build of their own.
func (s *source) choose(places []mutant, n int) (switched, alone []mutant) {
	for _, m := range places {
		if len(switched)+len(alone) == n {
			break
		}
		m.index = len(switched) + 1
		if s.check(s.schema(append(slices.Clone(switched), m)), nil) == nil {
			switched = append(switched, m)
			continue
		}
		m.index = 0
		if s.check(s.plain(m), nil) == nil {
			alone = append(alone, m)
		}
	}
	return switched, alone
}

func (o options) relative(m mutant) string {
	return filepath.ToSlash(strings.TrimPrefix(m.file, o.root+string(filepath.Separator)))
}

func (o options) key(s *source, m mutant) string { return key(o.relative(m), m.what, s.code(m)) }

func hash(s string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(s))
	return h.Sum64()
}
