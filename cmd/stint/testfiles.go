package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/internal/limittest"
	"github.com/stint-io/stint/rules"
)

func newTest() *cobra.Command {
	var asJSON, verbose bool
	cmd := &cobra.Command{
		Use:   "test FILE...",
		Short: "test limits: requests at stated times, and what is expected of them",
		Long: `Play the tests of files against the limits that they name: requests at stated times,
and what is expected of each. Time is virtual, and each test begins with empty
counters. Nothing is connected to.

The exit code is 0 when all expectations are met, 1 when one is not or a file has
faults, and 2 when a file cannot be read.`,
		Example: `  stint test login_test.yaml
  stint test --json tests/*.yaml`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runTests(cmd, args, asJSON, verbose)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "print the tests that pass as well")
	return cmd
}

func runTests(cmd *cobra.Command, paths []string, asJSON, verbose bool) error {
	out := cmd.OutOrStdout()
	all := struct {
		OK     bool                `json:"ok"`
		Files  []*limittest.Report `json:"files"`
		Errors []fault             `json:"errors"`
	}{OK: true, Files: []*limittest.Report{}, Errors: []fault{}}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return &exit{exitUsage, err}
		}
		report, err := limittest.Run(cmd.Context(), path, text)
		if err != nil {
			list := rules.Errors(nil)
			if !errors.As(err, &list) {
				list = rules.Errors{{Message: err.Error()}}
			}
			all.OK = false
			all.Errors = append(all.Errors, faults(list)...)
			if !asJSON {
				fmt.Fprintf(cmd.ErrOrStderr(), "%v\nFAIL  %s  %d %s\n", err, path, len(list), plural(len(list), "fault"))
			}
			continue
		}
		all.OK = all.OK && report.Failed == 0
		all.Files = append(all.Files, report)
		if !asJSON {
			writeTests(out, report, verbose)
		}
	}
	if asJSON {
		enc := json.NewEncoder(out)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(all); err != nil {
			return err
		}
	}
	if !all.OK {
		return &exit{code: exitNo}
	}
	return nil
}

// writeTests writes what became of the tests of a file, in the form of go test.
func writeTests(w io.Writer, r *limittest.Report, verbose bool) {
	for _, t := range r.Tests {
		if t.OK && verbose {
			fmt.Fprintf(w, "--- PASS: %s (%s:%d)\n", t.Name, r.File, t.Line)
		}
		if t.OK {
			continue
		}
		fmt.Fprintf(w, "--- FAIL: %s (%s:%d)\n", t.Name, r.File, t.Line)
		for _, f := range t.Failures {
			fmt.Fprintf(w, "    %s:%d: %s: %s\n        got  %s\n        want %s\n", r.File, f.Line, f.Request, f.What, f.Got, f.Want)
		}
	}
	if r.Failed > 0 {
		fmt.Fprintf(w, "FAIL  %s  %d of %d %s\n", r.File, r.Failed, len(r.Tests), plural(len(r.Tests), "test"))
		return
	}
	fmt.Fprintf(w, "ok    %s  %d %s\n", r.File, len(r.Tests), plural(len(r.Tests), "test"))
}
