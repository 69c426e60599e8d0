// Command evidence keeps the ledger of measured claims: evidence.yaml, the page docs/evidence.md that is
// written from it, and the figures in README.md and docs that refer to it.
//
//	evidence [flags] [WORD...]
//
// It runs the commands again of the row whose name is the word, or of the rows whose area, claim and command have all words,
// and writes figure, commit, date and machine of those whose figure is the same but for noise.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

type options struct {
	root                                           string
	check, page, list, stale, renew, long, believe bool
	n                                              int
	seed                                           uint64
	timeout                                        time.Duration
}

func main() {
	var o options
	flag.StringVar(&o.root, "root", ".", "the repository")
	flag.BoolVar(&o.check, "check", false, "run nothing: say what is wrong with rows, page and figures")
	flag.BoolVar(&o.page, "page", false, "run nothing: write docs/evidence.md")
	flag.BoolVar(&o.list, "list", false, "run nothing: list the rows")
	flag.BoolVar(&o.stale, "stale", false, "run nothing: list the rows whose packages have changed since their commit")
	flag.BoolVar(&o.renew, "renew", false, "only rows that are stale")
	flag.BoolVar(&o.long, "long", false, "also rows that are marked long")
	flag.BoolVar(&o.believe, "believe", false, "write figures outside the noise too")
	flag.IntVar(&o.n, "n", 0, "draw so many of the rows at random")
	flag.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "of -n")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Minute, "for each command")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if faults, err := run(ctx, os.Stdout, o, flag.Args()); err != nil || faults > 0 {
		if err != nil {
			fmt.Fprintln(os.Stderr, "evidence:", err)
		}
		os.Exit(1)
	}
}

// run does what the options say and returns how many faults it has printed.
func run(ctx context.Context, to io.Writer, o options, words []string) (faults int, _ error) {
	l, err := readLedger(o.root)
	if err != nil {
		return 0, err
	}
	if o.page {
		return 0, l.writePage()
	}
	if o.check {
		found, err := l.checkFigures()
		if err != nil {
			return 0, err
		}
		found = append(append(l.check(), l.checkPage()...), found...)
		for _, fault := range found {
			fmt.Fprintln(to, fault)
		}
		return len(found), nil
	}
	rows, err := l.choose(o, words)
	if err != nil {
		return 0, err
	}
	switch {
	case o.stale:
		return listStale(to, o.root, rows), nil
	case o.list:
		for _, r := range rows {
			fmt.Fprintf(to, "%s\n  %s\n", r, r.Command)
		}
		return 0, nil
	}
	return l.again(ctx, to, o, rows)
}

// choose returns the rows that options and words name.
func (l *ledger) choose(o options, words []string) (rows []*row, _ error) {
	h := &history{root: o.root, changed: map[string]change{}}
	name := ""
	if len(words) == 1 && slices.ContainsFunc(l.rows, func(r *row) bool { return r.Name == words[0] }) {
		name = words[0]
	}
	for _, r := range l.rows {
		switch {
		case name != "" && name != r.Name,
			name == "" && (!r.has(words) || r.Long && !o.long && !o.stale && !o.list):
			continue
		}
		if o.renew {
			if files, err := h.stale(r); err == nil && len(files) == 0 {
				continue
			}
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 && !o.renew {
		return nil, fmt.Errorf("no row has the words %q", words)
	}
	if o.n > 0 && o.n < len(rows) {
		rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(rows), func(i, k int) { rows[i], rows[k] = rows[k], rows[i] })
		rows = rows[:o.n]
	}
	return rows, nil
}

func (r *row) has(words []string) bool {
	text := strings.ToLower(strings.Join([]string{r.Name, r.Area, r.Claim, r.Command}, " "))
	for _, word := range words {
		if !strings.Contains(text, strings.ToLower(word)) {
			return false
		}
	}
	return true
}

func listStale(to io.Writer, root string, rows []*row) (stale int) {
	h := &history{root: root, changed: map[string]change{}}
	for _, r := range rows {
		switch files, err := h.stale(r); {
		case err != nil:
			fmt.Fprintf(to, "stale: %s: %v\n", r, err)
			stale++
		case len(files) > 0:
			which := strings.Join(files[:min(3, len(files))], ", ")
			if more := len(files) - 3; more > 0 {
				which += fmt.Sprintf(" and %d more", more)
			}
			fmt.Fprintf(to, "stale: %s: since %s of %s %s changed\n", r, r.Commit, r.Date, which)
			stale++
		}
	}
	fmt.Fprintf(to, "%d of %d rows are stale\n", stale, len(rows))
	return stale
}

// again runs the commands of rows and writes what they show.
func (l *ledger) again(ctx context.Context, to io.Writer, o options, rows []*row) (faults int, _ error) {
	h := &history{root: o.root}
	if changes, err := h.git("status", "--porcelain", "--untracked-files=no", "--", "*.go"); err != nil || changes != "" {
		return 0, fmt.Errorf("what is measured is a commit: commit first\n%s%w", changes, err)
	}
	runner := &runner{root: o.root, timeout: o.timeout, outputs: map[string]result{}}
	for i, r := range rows {
		begin := time.Now()
		figure, done, err := runner.again(ctx, r)
		if ctx.Err() != nil {
			return faults, ctx.Err()
		}
		if err == nil {
			if off := within(r.Noise, r.Figure, figure); off != nil && !o.believe {
				err = fmt.Errorf("the figure is %s: %w", figure, off)
			}
		}
		fmt.Fprintf(to, "%d of %d: %s (%s)\n  %s\n  was %s\n", i+1, len(rows), r, time.Since(begin).Round(time.Second), r.Command, r.Figure)
		if err != nil {
			faults++
			fmt.Fprintf(to, "  FAILED: %v\n", err)
			continue
		}
		fmt.Fprintf(to, "  now %s\n", figure)
		commit, err := h.measured(r)
		if err != nil {
			return faults, err
		}
		for _, field := range []struct{ name, value string }{
			{"figure", figure}, {"commit", commit}, {"date", time.Now().UTC().Format(time.DateOnly)}, {"machine", machine(done.load)},
		} {
			// A figure that is the same stays as it is written; in virtual time it is that of every machine.
			if field.name == "figure" && field.value == r.Figure || field.name == "machine" && strings.HasPrefix(r.Machine, "virtual time") {
				continue
			}
			if err := l.set(r, field.name, field.value); err != nil {
				return faults, err
			}
		}
		if err := l.save(); err != nil {
			return faults, err
		}
	}
	written, err := readLedger(o.root)
	if err != nil {
		return faults, err
	}
	for _, fault := range written.check() {
		fmt.Fprintln(to, fault)
		faults++
	}
	fmt.Fprintf(to, "%d rows, %d faults\n", len(rows), faults)
	return faults, written.writePage()
}
