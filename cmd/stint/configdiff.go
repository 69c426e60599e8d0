package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/internal/configstore"
	"github.com/stint-io/stint/rules"
)

func newConfigDiff() *cobra.Command {
	var b backend
	var version uint64
	var how rules.Options
	cmd := &cobra.Command{
		Use:   "diff [FILE...] --to URL",
		Short: "show what a push of the files would change",
		Long: `Show what a push of the files would change: lines with - are those of the latest
version, or of --version, and lines with + those of the files, or without files of
the latest version. Faults for which a push of the files would be refused are said
after it. The exit code is 0 when there is no difference, 1 when there is one or
a fault, and 2 when that cannot be told.`,
		Example: `  stint config diff stint.yaml --to etcd://127.0.0.1:2379/stint
  stint config diff --version 6 --to etcd://127.0.0.1:2379/stint`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 && version == 0 {
				return &exit{exitUsage, errors.New("say what to compare: files, or a version with --version")}
			}
			var now []configstore.File
			var fault error // for which a push is refused
			if len(args) > 0 {
				files, err := rules.Read(args...)
				if err != nil {
					return &exit{exitUsage, err}
				}
				_, fault = compile(how, files, false)
				now = stored(files)
			}
			return b.ask(cmd, func(ctx context.Context, s *configstore.Store) error {
				before, err := s.Latest(ctx)
				if err == nil && len(args) == 0 {
					now = before.Files
				}
				if err == nil && version != 0 {
					before, err = s.Get(ctx, version)
				}
				if err != nil {
					return err
				}
				differs := writeDiff(cmd.OutOrStdout(), before.Files, now)
				switch {
				case fault != nil:
					fmt.Fprintln(cmd.ErrOrStderr(), fault)
					return &exit{exitNo, errors.New("a push of these files is refused: correct what stands above, and ask again")}
				case differs:
					return &exit{code: exitNo}
				}
				return nil
			})
		},
	}
	b.register(cmd)
	cmd.Flags().BoolVar(&how.MergeDomains, "rls-merge-domains", false, "several files in Envoy's format may have one domain")
	cmd.Flags().Uint64Var(&version, "version", 0, "compare with this version (default: the latest)")
	return cmd
}

// writeDiff writes what differs between two configurations, and reports whether anything does.
func writeDiff(out io.Writer, before, now []configstore.File) bool {
	texts := func(files []configstore.File) map[string]string {
		m := map[string]string{}
		for _, f := range files {
			m[f.Name] = f.Text
		}
		return m
	}
	if len(before) == 1 && len(now) == 1 {
		// One file stays one file whatever it is called.
		now = []configstore.File{{Name: before[0].Name, Text: now[0].Text}}
	}
	old, next := texts(before), texts(now)
	names := slices.Sorted(maps.Keys(old))
	for _, name := range slices.Sorted(maps.Keys(next)) {
		if _, ok := old[name]; !ok {
			names = append(names, name)
		}
	}
	differs := false
	for _, name := range names {
		was, had := old[name]
		is, has := next[name]
		if was == is && had == has {
			continue
		}
		differs = true
		fmt.Fprintf(out, "--- %s\n+++ %s\n", map[bool]string{true: name, false: "none"}[had], map[bool]string{true: name, false: "none"}[has])
		for _, l := range diffLines(splitLines(was), splitLines(is)) {
			fmt.Fprintln(out, l)
		}
	}
	return differs
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

const (
	// contextLines are shown around a difference.
	contextLines = 3

	// maxCells bounds the table of a comparison. Where what lies between the first and the last
	// difference is larger, all of it is shown as replaced.
	maxCells = 4 << 20
)

// diffLines returns the lines of both with "-", "+" or " " before each; of those that are in both, only the
// ones near a difference.
func diffLines(a, b []string) []string {
	first := 0
	for first < len(a) && first < len(b) && a[first] == b[first] {
		first++
	}
	last := 0
	for last < len(a)-first && last < len(b)-first && a[len(a)-1-last] == b[len(b)-1-last] {
		last++
	}
	var all []string
	mark := func(sign string, lines []string) {
		for _, l := range lines {
			all = append(all, sign+l)
		}
	}
	mark(" ", a[:first])
	all = append(all, middle(a[first:len(a)-last], b[first:len(b)-last])...)
	mark(" ", a[len(a)-last:])
	return near(all)
}

// middle compares by the longest common subsequence: cell i, j has its length for a[i:] and b[j:].
func middle(a, b []string) []string {
	var out []string
	i, j := 0, 0
	if (len(a)+1)*(len(b)+1) <= maxCells {
		width := len(b) + 1
		cells := make([]int32, (len(a)+1)*width)
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if a[i] == b[j] {
					cells[i*width+j] = cells[(i+1)*width+j+1] + 1
				} else {
					cells[i*width+j] = max(cells[(i+1)*width+j], cells[i*width+j+1])
				}
			}
		}
		for i < len(a) && j < len(b) {
			switch {
			case a[i] == b[j]:
				out = append(out, " "+a[i])
				i, j = i+1, j+1
			case cells[(i+1)*width+j] >= cells[i*width+j+1]:
				out = append(out, "-"+a[i])
				i++
			default:
				out = append(out, "+"+b[j])
				j++
			}
		}
	}
	for ; i < len(a); i++ {
		out = append(out, "-"+a[i])
	}
	for ; j < len(b); j++ {
		out = append(out, "+"+b[j])
	}
	return out
}

// near leaves out what is far from a difference.
func near(all []string) []string {
	shown := make([]bool, len(all))
	for i, l := range all {
		if l[0] == ' ' {
			continue
		}
		for k := max(0, i-contextLines); k <= min(len(all)-1, i+contextLines); k++ {
			shown[k] = true
		}
	}
	var out []string
	for i, l := range all {
		switch {
		case shown[i]:
			out = append(out, l)
		case i == 0 || shown[i-1]:
			out = append(out, "...")
		}
	}
	return out
}
