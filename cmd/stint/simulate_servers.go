package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/sim"
	"github.com/stint-io/stint/sim/overload"
)

// fleetFlags are those that only a fleet of limiters has.
var fleetFlags = []string{"arrivals", "jitter", "loss"}

// runServers plays a file that describes servers.
func (o *simulation) runServers(cmd *cobra.Command, path string, format sim.Format) error {
	for _, name := range fleetFlags {
		if cmd.Flags().Changed(name) {
			return &exit{exitUsage, fmt.Errorf("--%s is for fleets that share a limit, and %s describes servers", name, path)}
		}
	}
	file, err := overload.ParseFile(path)
	if list := rules.Errors(nil); errors.As(err, &list) {
		fmt.Fprintln(cmd.ErrOrStderr(), err)
		return &exit{exitNo, fmt.Errorf("%d %s", len(list), plural(len(list), "fault"))}
	} else if err != nil {
		return &exit{exitUsage, err}
	}
	runs, figures := file.Runs, file.Show
	if cmd.Flags().Changed("runs") {
		if runs = o.runs; runs < 1 || runs > overload.MaxRuns {
			return &exit{exitUsage, fmt.Errorf("--runs is %d, want from 1 to %d", runs, overload.MaxRuns)}
		}
	}
	if cmd.Flags().Changed("seed") {
		file.Scenario.Seed = o.seed
	}
	switch {
	case slices.Contains(o.figures, "all"):
		figures = nil
		for _, f := range file.Scenario.Figures() {
			figures = append(figures, f.Name)
		}
	case len(o.figures) > 0:
		figures = nil
		for _, name := range o.figures {
			name, err := file.Scenario.FigureNamed(name)
			if err != nil {
				return &exit{exitUsage, fmt.Errorf("--show: %w", err)}
			}
			figures = append(figures, name)
		}
	case format == sim.CSV || format == sim.JSON:
		figures = nil
	}
	systems, err := file.Choose(o.systems...)
	if err != nil {
		return &exit{exitUsage, fmt.Errorf("--systems: %w", err)}
	}
	if o.svg != "" {
		if _, err := os.Stat(filepath.Dir(o.svg)); err != nil {
			return &exit{exitUsage, fmt.Errorf("--svg: %w", err)}
		}
	}
	comparison, err := overload.Compare(cmd.Context(), file.Scenario, systems, runs)
	if cause := context.Cause(cmd.Context()); err != nil && cause != nil {
		return &exit{exitNo, fmt.Errorf("the simulation was ended before its time: %w", cause)}
	}
	if err != nil {
		return &exit{exitNo, err}
	}
	if err := comparison.WriteTable(cmd.OutOrStdout(), format, figures); err != nil {
		return &exit{exitNo, err}
	}
	if o.svg == "" {
		return nil
	}
	var svg bytes.Buffer
	if err := comparison.WriteChart(&svg); err != nil {
		return &exit{exitNo, err}
	}
	return o.writeChart(&svg)
}
