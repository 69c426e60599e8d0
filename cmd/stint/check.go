package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server"
	"github.com/stint-io/stint/store/redis"
)

func newCheck() *cobra.Command {
	var asJSON, strict bool
	var how rules.Options
	cmd := &cobra.Command{
		Use: "check FILE...", SuggestFor: []string{"validate", "lint", "verify"},
		Short: "look for faults in limit files",
		Long: `Look for faults in limit files and folders of them, all together, as serve would
load them. The exit code is 0 when they are good, 1 when there are faults or, with --strict, warnings, and 2
when a file cannot be read. Nothing is connected to: stint doctor asks the store, and
with --cluster the backend of a cluster.`,
		Example: `  stint check stint.yaml
  stint check --json stint.yaml limits.d`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, path := range args {
				if err := thereIs(path); err != nil {
					return err
				}
			}
			set, err := how.Load(args...)
			if err == nil {
				err = checkStore(set.Store())
			}
			var doubts []rules.Error
			if err == nil {
				doubts, err = checkCustomers(set)
			}
			out, errOut := cmd.OutOrStdout(), cmd.ErrOrStderr()
			if asJSON {
				err = checkJSON(out, set, doubts, err)
			} else {
				err = checkText(out, errOut, set, doubts, err)
			}
			if n := len(doubts); strict && err == nil && set != nil {
				if n += len(warnings(set)); n > 0 {
					return &exit{exitNo, fmt.Errorf("%d %s, and --strict takes them for faults", n, plural(n, "warning"))}
				}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&how.MergeDomains, "rls-merge-domains", false, "several files in Envoy's format may have one domain")
	cmd.Flags().BoolVar(&strict, "strict", false, "end with exit code 1 also for warnings")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// checkStore returns what is wrong with the URL of a store. The files that it names
// need only be where the service runs, so one that cannot be read is no fault here.
func checkStore(url string) error {
	if url == server.StoreMemory {
		return nil
	}
	_, err := redis.ParseURL(url)
	faults := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		faults = joined.Unwrap()
	}
	faults = slices.DeleteFunc(faults, func(err error) bool {
		return errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission)
	})
	if err = errors.Join(faults...); err != nil {
		return fmt.Errorf("store: the URL is wrong: %w", err)
	}
	return nil
}

// checkCustomers reads the files of customers that a set names, and returns what is doubtful about them.
func checkCustomers(set *rules.Set) (doubts []rules.Error, err error) {
	warnings, err := server.CheckCustomers(set)
	if err != nil {
		return nil, err
	}
	for _, text := range warnings {
		doubts = append(doubts, rules.Error{File: "customers", Message: text})
	}
	return doubts, nil
}

func checkText(out, errOut io.Writer, set *rules.Set, doubts []rules.Error, err error) error {
	if err != nil {
		fmt.Fprintln(errOut, err)
		n := 1
		if list := rules.Errors(nil); errors.As(err, &list) {
			n = len(list)
		}
		return &exit{exitNo, fmt.Errorf("%d %s", n, plural(n, "fault"))}
	}
	for _, w := range append(warnings(set), doubts...) {
		fmt.Fprintf(errOut, "warning: %v\n", w)
	}
	n := len(set.Limits())
	_, err = fmt.Fprintf(out, "good: %d %s\n", n, plural(n, "limit"))
	return err
}

// warnings are those that serve logs, and those for the author of a file.
func warnings(set *rules.Set) []rules.Error {
	return slices.Concat(set.Warnings(), set.Unprovided(), set.Uncarried(), set.Unkept())
}

func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return word + "s"
}

// fault is a rules.Error on the wire.
type fault struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Column  int    `json:"column,omitempty"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Excerpt string `json:"excerpt,omitempty"`
}

func checkJSON(out io.Writer, set *rules.Set, doubts []rules.Error, err error) error {
	report := struct {
		OK       bool    `json:"ok"`
		Limits   int     `json:"limits"`
		Errors   []fault `json:"errors"`
		Warnings []fault `json:"warnings"`
	}{OK: err == nil, Errors: []fault{}, Warnings: []fault{}}
	if err != nil {
		var list rules.Errors
		if !errors.As(err, &list) {
			list = rules.Errors{{Message: err.Error()}}
		}
		report.Errors = faults(list)
	} else {
		report.Limits = len(set.Limits())
		report.Warnings = faults(append(warnings(set), doubts...))
	}
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(report); err != nil {
		return err
	}
	if !report.OK {
		return &exit{code: exitNo}
	}
	return nil
}

func faults(list []rules.Error) []fault {
	out := make([]fault, len(list))
	for i, e := range list {
		out[i] = fault(e)
	}
	return out
}
