package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/sim"
	"github.com/stint-io/stint/sim/overload"
)

// progressEvery is how often a simulation says how far it is. Not more often: a short
// one should say nothing. Not less: a user who waits should know for how long.
const progressEvery = 2 * time.Second

// progressWhen are the values of the flag --progress.
var progressWhen = []string{"auto", "always", "never"}

// simulation is what the flags of simulate say.
type simulation struct {
	runs     int
	seed     uint64
	systems  []string
	figures  []string
	svg      string
	format   string
	progress string // one of progressWhen

	arrivals string
	jitter   time.Duration
	loss     float64
}

func newSimulate() *cobra.Command {
	var o simulation
	cmd := &cobra.Command{
		Use:   "simulate FILE",
		Short: "play a scenario and print what a policy would do",
		Long: `Play a scenario in virtual time: a fleet that shares one limit, or servers that are
asked for more than they can do. It is played with the code that the service, its
clients and throttled servers run, and with models of published systems beside it.
Print a table with a row for each system, and draw a chart. The same file and seed
give the same result.

The exit code is 0 when it was played, 1 when the file has faults or the simulation
was ended, and 2 when the file cannot be read or a flag is wrong.`,
		Example: `  stint simulate examples/scenarios/e4-one-hot-10.yaml
  stint simulate --runs 10 --systems stint,hermes --svg out.svg scenario.yaml
  stint simulate examples/scenarios/overload-chain.yaml
  stint simulate --format csv --show use,over,t95 scenario.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd, args[0])
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.runs, "runs", 0, "how often to play each system, with seeds that follow the first; prints 95 % intervals (default: what the file says, or 1)")
	f.Uint64Var(&o.seed, "seed", 0, "the first seed (default: what the file says)")
	f.StringSliceVar(&o.systems, "systems", nil, "what to compare: "+strings.Join(sim.SystemNames(), ", ")+", or variants of the file (default: what the file says)")
	f.StringSliceVar(&o.figures, "show", nil, "figures to print, such as use,over,t95, or all (default: what the file says)")
	f.StringVar(&o.arrivals, "arrivals", "", "even or poisson, instead of what the file says of loads that are one of both")
	f.DurationVar(&o.jitter, "jitter", 0, "a random addition to the delay of each message, up to this, instead of what the file says")
	f.Float64Var(&o.loss, "loss", 0, "how many of 100 messages are lost, instead of what the file says")
	f.StringVar(&o.svg, "svg", "", "file to draw a chart to")
	f.StringVar(&o.progress, "progress", progressWhen[0], "when to print on standard error how far it is: "+strings.Join(progressWhen, ", ")+"; auto is on a terminal")
	f.StringVar(&o.format, "format", sim.FormatNames()[0], "how to print: "+strings.Join(sim.FormatNames(), ", "))
	return cmd
}

func (o *simulation) run(cmd *cobra.Command, path string) error {
	if !slices.Contains(progressWhen, o.progress) {
		return &exit{exitUsage, fmt.Errorf("--progress is %q, want one of %s", o.progress, strings.Join(progressWhen, ", "))}
	}
	format, err := sim.ParseFormat(o.format)
	if err != nil {
		return &exit{exitUsage, fmt.Errorf("--format: %w", err)}
	}
	if overload.Speaks(path) {
		return o.runServers(cmd, path, format)
	}
	file, err := sim.ParseFile(path)
	if list := rules.Errors(nil); errors.As(err, &list) {
		fmt.Fprintln(cmd.ErrOrStderr(), err)
		return &exit{exitNo, fmt.Errorf("%d %s", len(list), plural(len(list), "fault"))}
	} else if err != nil {
		return &exit{exitUsage, err}
	}
	runs, figures := file.Runs, file.Show
	if cmd.Flags().Changed("runs") {
		if runs = o.runs; runs < 1 || runs > sim.MaxRuns {
			return &exit{exitUsage, fmt.Errorf("--runs is %d, want from 1 to %d", runs, sim.MaxRuns)}
		}
	}
	if cmd.Flags().Changed("seed") {
		file.Scenario.Seed = o.seed
	}
	if err := o.disturb(cmd, &file.Scenario); err != nil {
		return &exit{exitUsage, err}
	}
	if figures, err = o.choose(figures, format); err != nil {
		return &exit{exitUsage, fmt.Errorf("--show: %w", err)}
	}
	systems, err := file.Choose(o.systems...)
	if err != nil {
		return &exit{exitUsage, fmt.Errorf("--systems: %w", err)}
	}
	if o.svg != "" {
		// Better now than after an hour.
		if _, err := os.Stat(filepath.Dir(o.svg)); err != nil {
			return &exit{exitUsage, fmt.Errorf("--svg: %w", err)}
		}
	}
	var progress io.Writer // nil = nothing is printed
	if errOut := cmd.ErrOrStderr(); o.progress == "always" || o.progress == "auto" && onTerminal(errOut) {
		progress = errOut
	}
	comparison, err := compare(cmd.Context(), progress, file.Scenario, systems, runs)
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

func (o *simulation) writeChart(svg *bytes.Buffer) error {
	if err := os.WriteFile(o.svg, svg.Bytes(), 0o644); err != nil { //nolint:gosec // a picture is for all
		return &exit{exitUsage, fmt.Errorf("--svg: %w", err)}
	}
	return nil
}

// disturb puts other arrivals and another network in the scenario, and says so in its
// name, which stands above the table.
func (o *simulation) disturb(cmd *cobra.Command, s *sim.Scenario) error {
	var said []string
	switch o.arrivals {
	case "":
	case "even", "poisson":
		kinds := map[string]sim.Arrivals{"even": sim.Even, "poisson": sim.Poisson}
		for i := range s.Loads {
			if a := s.Loads[i].Arrivals; a == sim.Even || a == sim.Poisson {
				s.Loads[i].Arrivals = kinds[o.arrivals]
			}
		}
		said = append(said, o.arrivals+" arrivals")
	default:
		return fmt.Errorf("--arrivals is %q, want even or poisson", o.arrivals)
	}
	if cmd.Flags().Changed("jitter") {
		s.Network.Jitter = o.jitter
		said = append(said, fmt.Sprintf("jitter %v", o.jitter))
	}
	if cmd.Flags().Changed("loss") {
		if !(o.loss >= 0 && o.loss < 100) {
			return fmt.Errorf("--loss is %v, want from 0 to below 100 percent", o.loss)
		}
		s.Network.Loss = o.loss / 100
		said = append(said, fmt.Sprintf("%v %% of messages lost", o.loss))
	}
	if len(said) > 0 {
		s.Name += " (" + strings.Join(said, ", ") + ")"
	}
	return nil
}

// choose returns the figures to print. CSV and JSON have all unless the flag says
// otherwise: a program picks its own.
func (o *simulation) choose(ofFile []string, format sim.Format) ([]string, error) {
	if len(o.figures) == 0 {
		if format == sim.CSV || format == sim.JSON {
			return nil, nil
		}
		return ofFile, nil
	}
	var names []string
	for _, name := range o.figures {
		if name == "all" {
			names = nil
			for _, f := range sim.Figures() {
				names = append(names, f.Name)
			}
			return names, nil
		}
		name, err := sim.FigureNamed(name)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// onTerminal reports whether w is a terminal, or another device of characters.
func onTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// compare is sim.Compare, which prints now and then how far it is, unless to is nil.
func compare(ctx context.Context, to io.Writer, s sim.Scenario, systems []sim.System, runs int) (*sim.Comparison, error) {
	if to == nil {
		return sim.Compare(ctx, s, systems, runs)
	}
	p := &progress{duration: s.Duration}
	watched := make([]sim.System, len(systems))
	for i, system := range systems {
		watched[i] = watchedSystem{system, p}
	}
	total := len(systems) * runs
	done := make(chan struct{})
	var speaker sync.WaitGroup
	speaker.Go(func() {
		began, ticker := time.Now(), time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				part := p.part() / float64(total)
				line := fmt.Sprintf("simulate: %.0f %% of %d %s", 100*part, total, plural(total, "run"))
				if part > 0.02 {
					left := time.Duration(float64(time.Since(began)) * (1 - part) / part)
					line += fmt.Sprintf(", about %v left", left.Round(time.Second))
				}
				fmt.Fprintln(to, line)
			}
		}
	})
	comparison, err := sim.Compare(ctx, s, watched, runs)
	close(done)
	speaker.Wait()
	return comparison, err
}

// progress is how far runs are, of which some are in progress at once.
type progress struct {
	duration time.Duration
	mu       sync.Mutex
	runs     []*atomic.Int64 // virtual time since the start of each, in nanoseconds
}

// part is the sum of the parts of all runs that are over.
func (p *progress) part() float64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum := 0.0
	for _, at := range p.runs {
		sum += min(float64(at.Load())/float64(p.duration), 1)
	}
	return sum
}

// watchedSystem looks at the clock of instance 0, which shows how far a run is.
type watchedSystem struct {
	sim.System
	progress *progress
}

func (w watchedSystem) Instance(env sim.Env, setup sim.Setup, i, restart int) sim.Enforcer {
	if i == 0 && restart == 0 {
		at := new(atomic.Int64)
		w.progress.mu.Lock()
		w.progress.runs = append(w.progress.runs, at)
		w.progress.mu.Unlock()
		env = watchedEnv{Env: env, start: env.Now(), at: at}
	}
	return w.System.Instance(env, setup, i, restart)
}

type watchedEnv struct {
	sim.Env
	start limit.Time
	at    *atomic.Int64
}

func (e watchedEnv) Now() limit.Time {
	now := e.Env.Now()
	e.at.Store(int64(now - e.start))
	return now
}
