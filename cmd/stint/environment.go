package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/stint-io/stint/internal/document"
)

// variablePrefix begins the environment variables that set flags.
const variablePrefix = "STINT_"

// variable is the name of the environment variable that sets a flag.
func variable(flag string) string {
	return variablePrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// fromEnvironment sets the flags that were not given from the variables of the same
// name. One that is empty counts as not set: Compose and Kubernetes write those.
func fromEnvironment(flags *pflag.FlagSet, lookup func(string) (string, bool)) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Changed || f.Name == "help" {
			return
		}
		name := variable(f.Name)
		if v, ok := lookup(name); ok && v != "" {
			if err := flags.Set(f.Name, v); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", name, err))
			}
		}
	})
	return errors.Join(errs...)
}

// unknownVariable is a variable with our prefix that sets no flag of any command, as
// one that is misspelled does not.
type unknownVariable struct{ name, hint string }

func (u unknownVariable) String() string {
	text := fmt.Sprintf("the environment variable %s is no flag of any command, and is ignored", u.name)
	if u.hint != "" {
		text += ": " + u.hint
	}
	return text
}

// variableElsewhere is the hint for a variable whose flag has another name here; "" = it is not known.
func variableElsewhere(name string, known []string) string {
	flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, variablePrefix), "_", "-"))
	for here := range strings.SplitSeq(flagsElsewhere[flag], "|") {
		flag, value, _ := strings.Cut(strings.TrimPrefix(here, "--"), " ")
		if here != "" && slices.Contains(known, variable(flag)) && !strings.Contains(value, " ") {
			return "write " + variable(flag) + "=" + value
		}
	}
	return ""
}

// unknownVariables returns them by name. Their values may be secret and are left out.
func unknownVariables(root *cobra.Command, environ []string) []unknownVariable {
	var known []string
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" {
				known = append(known, variable(f.Name))
			}
		})
		for _, below := range cmd.Commands() {
			visit(below)
		}
	}
	visit(root)
	slices.Sort(known)
	known = slices.Compact(known)
	var out []unknownVariable
	for _, e := range environ {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, variablePrefix) || slices.Contains(known, name) {
			continue
		}
		out = append(out, unknownVariable{name, cmp.Or(variableElsewhere(name, known), document.Meant(name, known))})
	}
	slices.SortFunc(out, func(a, b unknownVariable) int { return strings.Compare(a.name, b.name) })
	return out
}
