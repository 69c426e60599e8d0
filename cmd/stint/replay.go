package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/internal/replay"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server"
)

// replaying is what the flags of replay say.
type replaying struct {
	config, against []string
	format, cost    string
	fields          []string
	reorder         time.Duration
	bunched         bool
	statuses        []int
	memory          int64
	svg, progress   string
	asJSON, bursts  bool
}

func newReplay() *cobra.Command {
	o := replaying{progress: progressWhen[0], reorder: replay.DefaultReorder}
	cmd := &cobra.Command{
		Use:   "replay LOG...",
		Short: "decide the requests of access logs by limits",
		Long: `Decide the requests of access logs by the limits of a configuration, at the times of
the log, with the code that the service runs: how many would have been refused, by
which limits, and which keys. A log is a file, packed by gzip or not; - is standard
input. Several logs are merged by time. Nothing is connected to.

The exit code is 0 when the logs were replayed, 1 when the configuration has faults or
the replay was ended, and 2 when a file cannot be read, no line of the logs can, or a
flag is wrong. Lines that cannot be read are counted, and the first are shown.`,
		Example: `  stint replay --config new.yaml access.log
  stint replay --config new.yaml --against stint.yaml --svg change.svg access.log.1.gz access.log
  stint replay --config new.yaml --format '$remote_addr [$time_local] "$request" $http_x_api_key' access.log
  zcat logs/*.gz | stint replay --config new.yaml --field user=account -`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.config, "config", nil, "limit file or folder (may be repeated)")
	f.StringSliceVar(&o.against, "against", nil, "limit file or folder to compare with, such as those in force (may be repeated)")
	f.StringVar(&o.format, "format", "auto", "format of the logs: auto, combined, common, json, csv, or the text of nginx's log_format")
	f.StringArrayVar(&o.fields, "field", nil, "ATTRIBUTE=FIELD: the field of the log that has an attribute, such as user=account (may be repeated)")
	f.StringVar(&o.cost, "cost", "", "field of the log with the cost of a request (default: each costs 1)")
	f.DurationVar(&o.reorder, "reorder", o.reorder, "how much earlier than lines in front of it a line may be and still be decided in its order; 0 = none")
	f.BoolVar(&o.bunched, "bunched", false, "where the log has whole seconds, take the requests of a second to come at its beginning, not evenly within it")
	f.IntSliceVar(&o.statuses, "refused-status", []int{429}, "statuses of requests that were refused when the log was written")
	f.Var(byteSize{&o.memory, server.MinMaxBytes}, "memory", "memory of the counters, as of serve (default 256MiB)")
	f.BoolVar(&o.bursts, "bursts", false, "also say which bursts the token buckets would have needed, at half of their rate, at it, and at twice as much")
	f.StringVar(&o.svg, "svg", "", "file to draw a chart to")
	f.StringVar(&o.progress, "progress", o.progress, "when to print on standard error how far it is: "+strings.Join(progressWhen, ", ")+"; auto is on a terminal")
	f.BoolVar(&o.asJSON, "json", false, "print one JSON object")
	return cmd
}

func (o *replaying) run(cmd *cobra.Command, logs []string) error {
	options, err := o.options(cmd, logs)
	if err != nil {
		return err
	}
	if o.svg != "" {
		// Better now than after an hour.
		if _, err := os.Stat(filepath.Dir(o.svg)); err != nil {
			return &exit{exitUsage, fmt.Errorf("--svg: %w", err)}
		}
	}
	errOut := cmd.ErrOrStderr()
	if o.progress == "always" || o.progress == "auto" && onTerminal(errOut) {
		options.OnProgress = o.follow(errOut, logs, options.Logs)
	}
	report, err := replay.Run(cmd.Context(), *options)
	switch cause := context.Cause(cmd.Context()); {
	case err != nil && cause != nil:
		return &exit{exitNo, fmt.Errorf("the replay was ended before its time: %w", cause)}
	case errors.Is(err, replay.ErrNoLines):
		return &exit{exitUsage, fmt.Errorf("%w\nhint: say with --format what the lines look like, such as nginx's log_format", err)}
	case err != nil:
		return &exit{exitUsage, err}
	}
	if o.asJSON {
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		err = enc.Encode(report)
	} else {
		err = report.WriteText(cmd.OutOrStdout())
	}
	if err != nil || o.svg == "" {
		return err
	}
	var svg bytes.Buffer
	if err := report.WriteChart(&svg, strings.Join(o.config, ", ")+" on "+strings.Join(logs, ", ")); err != nil {
		return &exit{exitNo, err}
	}
	return (&simulation{svg: o.svg}).writeChart(&svg)
}

// options reads the flags.
func (o *replaying) options(cmd *cobra.Command, logs []string) (*replay.Options, error) {
	wrong := func(format string, args ...any) (*replay.Options, error) {
		return nil, &exit{exitUsage, fmt.Errorf(format, args...)}
	}
	switch {
	case len(o.config) == 0:
		return wrong("replay needs limits\nhint: --config stint.yaml")
	case o.reorder < 0 || o.reorder > time.Hour:
		return wrong("--reorder is %v, want from 0 to 1h", o.reorder)
	}
	options := &replay.Options{
		Format: o.format, Cost: o.cost, Reorder: o.reorder, Bunched: o.bunched, Statuses: o.statuses, MaxBytes: o.memory, Bursts: o.bursts,
		Fields: map[string]string{},
	}
	if o.reorder == 0 {
		options.Reorder = -1
	}
	for _, f := range o.fields {
		attribute, field, ok := strings.Cut(f, "=")
		if !ok || attribute == "" || field == "" {
			return wrong("--field is %q, want ATTRIBUTE=FIELD\nhint: --field user=account takes the attribute user from the field account", f)
		}
		for other, taken := range options.Fields {
			if taken == field && other != attribute {
				return wrong("--field gives the field %s to the attributes %s and %s, and it can be one: name another field", field, min(other, attribute), max(other, attribute))
			}
		}
		options.Fields[attribute] = field
	}
	var err error
	if options.Set, err = loadLimits(cmd, o.config); err != nil {
		return nil, err
	}
	if len(o.against) > 0 {
		if options.Against, err = loadLimits(cmd, o.against); err != nil {
			return nil, err
		}
	}
	stdin := 0
	for _, name := range logs {
		log := replay.Log{Name: name, Open: func() (io.ReadCloser, error) { return os.Open(name) }}
		if name == "-" {
			stdin++
			log = replay.Log{Name: "stdin", Open: func() (io.ReadCloser, error) { return io.NopCloser(cmd.InOrStdin()), nil }}
		} else if info, err := os.Stat(name); err != nil {
			return nil, &exit{exitUsage, fmt.Errorf("%w\nhint: name the access logs to replay, or - for standard input", err)}
		} else if info.IsDir() {
			return wrong("%s is a folder\nhint: name its files, as in %s", name, filepath.Join(name, "*.log"))
		}
		options.Logs = append(options.Logs, log)
	}
	if stdin > 1 {
		return wrong("standard input can be read once only")
	}
	return options, nil
}

// loadLimits reads limit files, and says what is wrong with them.
func loadLimits(cmd *cobra.Command, paths []string) (*rules.Set, error) {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return nil, &exit{exitUsage, err}
		}
	}
	set, err := rules.Load(paths...)
	if err != nil {
		return nil, checkText(cmd.OutOrStdout(), cmd.ErrOrStderr(), nil, nil, err)
	}
	return set, nil
}

// follow returns what prints how far the replay is: how much of the files is read, and for how long it
// will go on.
func (o *replaying) follow(to io.Writer, names []string, logs []replay.Log) func(int64) {
	read, whole := new(meter), int64(0)
	for i := range logs {
		open := logs[i].Open
		logs[i].Open = func() (io.ReadCloser, error) {
			in, err := open()
			return &metered{ReadCloser: in, meter: read}, err
		}
		if info, err := os.Stat(names[i]); err == nil && whole >= 0 && names[i] != "-" {
			whole += info.Size()
		} else {
			whole = -1
		}
	}
	began := time.Now()
	said := began
	return func(lines int64) {
		if time.Since(said) < progressEvery {
			return
		}
		said = time.Now()
		line := fmt.Sprintf("replay: %d lines", lines)
		if part := float64(read.Load()) / float64(whole); whole > 0 && part > 0.02 {
			left := time.Duration(float64(said.Sub(began)) * (1 - part) / part)
			line += fmt.Sprintf(", %.0f %%, about %v left", 100*part, left.Round(time.Second))
		}
		fmt.Fprintln(to, line)
	}
}
