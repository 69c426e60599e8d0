package tables

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/stint-io/stint/bench/internal/fleet"
)

// What the steps are of.
const (
	stepRate, stepBurst = 500, 50
	stepProcesses       = 20
	stepDelay           = 10 * time.Millisecond
	stepReport          = 100 * time.Millisecond // as instances report by default
	stepUnder           = 3 * time.Second        // at half the limit
	stepLater           = 300 * time.Millisecond // after which what passes is to be near the limit
)

// stepLimits are the limits, and the ways to share, that steps are made of.
const stepLimits = `limits:
  - {name: probe, rate: 1000000/s, sharing: leased}
  - {name: leased, rate: 500/s, burst: 50, sharing: leased}
  - {name: suppressed, rate: 500/s, burst: 50, sharing: suppressed}
`

// stepResult is what came of one step.
type stepResult struct {
	sharing        string
	times          float64
	run            *fleet.Run
	first          int     // admitted in the first second
	peak, later    float64 // the most in a second, over what may be and over the limit
	mean, swing    float64
	made, refusals float64
	stall          time.Duration // the longest of any process that the first second could see
}

// Steps is what real processes admit while demand steps from half the limit to a multiple
// of it.
func Steps(cfg Config, rep *Report) (err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	bin, dir, remove, err := cfg.stint()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	ctx, stop := context.WithTimeout(ctx, 5*time.Minute)
	defer stop()
	c, err := startCoordinator(ctx, bin, dir, stepLimits)
	if err != nil {
		return err
	}
	defer c.close()
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("which program to start: %w", err)
	}
	f, err := fleet.Start(ctx, fleet.Options{
		Processes: stepProcesses, Target: c.grpc, Delay: stepDelay, Ask: takeWaits, Limits: []string{"leased", "suppressed"}, Program: program,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var results []*stepResult
	for _, sharing := range []string{"leased", "suppressed"} {
		for _, times := range cfg.Steps {
			r, err := playStep(ctx, cfg, f, sharing, times)
			if err != nil {
				return fmt.Errorf("bench: a step to %v times: %w", times, err)
			}
			results = append(results, r)
		}
	}
	writeSteps(cfg, rep, results)
	return nil
}

// playStep has all processes ask for half the limit together, and then for a multiple.
func playStep(ctx context.Context, cfg Config, f *fleet.Fleet, sharing string, times float64) (*stepResult, error) {
	from := fleet.After(ahead)
	at := from + int64(stepUnder)
	end := at + int64(cfg.StepOver)
	var stalls []fleet.Stall // first of this process, which carries what the others say
	var watching sync.WaitGroup
	watched, stop := context.WithCancel(ctx)
	watching.Go(func() { stalls = fleet.Stalls(watched) })
	logs, err := f.Play(ctx, func(p int) []fleet.Load {
		phase := float64(p) / stepProcesses
		return []fleet.Load{
			{Limit: sharing, From: from, To: at, PerSecond: stepRate / 2.0 / stepProcesses, Phase: phase},
			{Limit: sharing, From: at, To: end, PerSecond: times * stepRate / stepProcesses, Phase: phase},
		}
	})
	stop()
	watching.Wait()
	if err != nil {
		return nil, err
	}
	run := fleet.Gather(logs, sharing, stepRate, stepBurst, false)
	r := &stepResult{sharing: sharing, times: times, run: run, first: run.Admitted(at, at+int64(time.Second)), peak: run.Peak(time.Second)}
	for _, l := range logs {
		if rec := l.Limits[sharing]; rec != nil {
			stalls = append(stalls, rec.Stalls...)
		}
	}
	for _, s := range stalls {
		if s.To > at-int64(stepReport) && s.From < at+int64(time.Second) {
			r.stall = max(r.stall, time.Duration(s.To-s.From))
		}
	}
	_, later := run.Range(at+int64(stepLater), end, time.Second)
	r.later = float64(later) / stepRate
	steady := at + int64(time.Second)
	least, most := run.Range(steady, end, time.Second)
	r.swing = float64(most-least) / stepRate
	r.mean = float64(run.Admitted(steady, end)) / (stepRate * time.Duration(end-steady).Seconds())
	r.made = float64(run.Offered(at, end)) / (times * stepRate * time.Duration(end-at).Seconds())
	before := run.Offered(from+int64(time.Second), at-int64(fleet.Bin))
	r.refusals = float64(before - run.Admitted(from+int64(time.Second), at-int64(fleet.Bin)))
	if r.made < 0.9 {
		return nil, fmt.Errorf("%.0f %% of the requests were made: the machine is too busy for this load", 100*r.made)
	}
	return r, nil
}

// bound is how much may be admitted above the limit after a step, by suppression:
// docs/reference/suppression.md derives it. A process that the machine does not run reports
// and hears so much later.
func (r *stepResult) bound() float64 {
	const lag = 20 * time.Millisecond
	t := (float64(stepBurst)/stepRate+(stepReport+lag).Seconds())/(r.times-1) + (stepReport + 2*stepDelay + r.stall).Seconds()
	admitted := min(r.times*stepRate*t, stepProcesses*(stepBurst+stepRate*t))
	return admitted - stepRate*t + 2*stepReport.Seconds()*stepRate + stepProcesses
}

func writeSteps(cfg Config, rep *Report, results []*stepResult) {
	rep.Section("A step in demand",
		fmt.Sprintf("%d processes on this machine share a limit of %d/s with a burst of %d through the coordinator of one `stint serve`, each over a connection of its own with %v one way. All together ask for half the limit for %v, and then for a multiple of it for %v, each as often, by Allow.",
			stepProcesses, stepRate, stepBurst, stepDelay, stepUnder, cfg.StepOver),
		"Most in a second is over burst + rate. Above is what was admitted above the limit in the first second, and what may be by suppression, given the longest time for which the machine did not run a process of the fleet, if that was over 25 ms. From 0.3 s is the most in a second that began 0.3 s after the step or later, mean and swing are from a second after it on; all over the limit. Refused before is of requests at half the limit.")
	head := []string{"sharing", "demand", "most in a second", "above", "may be", "from 0.3 s", "mean", "swing", "refused before", "made"}
	var rows [][]string
	for _, r := range results {
		may := "0"
		if r.sharing == "suppressed" {
			may = fmt.Sprintf("%.0f", r.bound())
		}
		above := max(0, r.first-stepRate)
		rows = append(rows, []string{
			r.sharing, fmt.Sprintf("%g x", r.times), fmt.Sprintf("%.3f", r.peak), fmt.Sprint(above), may,
			fmt.Sprintf("%.3f", r.later), fmt.Sprintf("%.3f", r.mean), fmt.Sprintf("%.3f", r.swing), fmt.Sprintf("%.0f", r.refusals), figure(r.made),
		})
		who := fmt.Sprintf("%s, a step to %g times the limit: ", r.sharing, r.times)
		if r.sharing == "leased" {
			rep.AtMost(who+"most in a second", r.peak, 1.05, "")
			rep.AtMost(who+"over", r.run.SurelyOver(), 0, " tokens")
		} else {
			rep.AtMost(who+"above in the first second", float64(above), r.bound(), " tokens")
			rep.AtMost(who+"from 0.3 s on", r.later, 1.1, "")
			rep.AtMost(who+"swing", r.swing, 0.05, "")
			rep.AtMost(who+"mean, to a hundredth", math.Round(100*r.mean)/100, 1, "")
		}
		rep.AtLeast(who+"mean", r.mean, 0.98, "")
		rep.AtMost(who+"refused at half the limit", r.refusals, 0, "")
	}
	rep.Table(head, rows)
}
