package tables

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/stint-io/stint/bench/internal/fleet"
)

// smallResult is what came of a limit of few tokens, while all asked and then one.
type smallResult struct {
	small
	processes int
	run       *fleet.Run
	pace      [2]float64
	pause     [2]time.Duration
	admitted  [2]int
}

// playSmall has all n processes ask for all small limits at once, then one of them.
func playSmall(ctx context.Context, cfg Config, f *fleet.Fleet, n int) ([]*smallResult, error) {
	from := fleet.After(ahead)
	at := from + int64(cfg.FleetSettle+cfg.FleetSmall)
	end := at + int64(cfg.FleetSettle+cfg.FleetSmall)
	loads := make([][]fleet.Load, n)
	for i, s := range smallLimits(n) {
		for p := range n {
			// A different order of the processes for each limit.
			phase := float64((p*(2*i+1))%n) / float64(n)
			loads[p] = append(loads[p], fleet.Load{Limit: s.name, From: from, To: at, PerSecond: s.wanted() / float64(n), Phase: phase, Take: true})
		}
		loads[0] = append(loads[0], fleet.Load{Limit: s.name, From: at, To: end, PerSecond: s.wanted(), Take: true})
	}
	logs, err := f.Play(ctx, func(p int) []fleet.Load { return loads[p] })
	if err != nil {
		return nil, err
	}
	var results []*smallResult
	for _, s := range smallLimits(n) {
		r := &smallResult{small: s, processes: n, run: fleet.Gather(logs, s.name, s.perSecond, float64(s.burst), true)}
		if made, _ := r.run.Requests(); float64(made) < 0.9*s.wanted()*time.Duration(end-from).Seconds() {
			return nil, fmt.Errorf("%d requests of limit %s were made: the machine is too busy for this load", made, s.name)
		}
		for i, to := range []int64{at, end} {
			since := to - int64(cfg.FleetSmall)
			r.pace[i], r.pause[i], r.admitted[i] = r.run.Pace(since, to), r.run.Pause(since, to), r.run.Admitted(since, to)
		}
		results = append(results, r)
	}
	return results, nil
}

// stall is the longest pause that is none: three tokens' time, and at least a second.
func (s small) stall() float64 { return max(1, 3/s.perSecond) }

func writeSmall(cfg Config, rep *Report, results []*smallResult) {
	if len(results) == 0 {
		return
	}
	rep.Section("Limits of fewer tokens than processes",
		fmt.Sprintf("Fleets of the same kind, and all limits at once, each with a burst of one second's tokens, or one. All processes together ask for four times the limit, at least 20/s, each as often, by Take, which waits for an answer of the coordinator for at most %v; then one process alone asks for as much. Each lasts %v, after %v that are not measured.", takeWaits, cfg.FleetSmall, cfg.FleetSettle),
		"Use is the pace from the first admission to the last, over the limit's. Pause is the longest time without an admission.",
		"Over is how many tokens all together admitted beyond burst + rate × T, in the worst of all intervals T of the whole run, by the times at which answers were there: a part of a token is a process that waited for a processor.",
		"Surely over counts a request only for intervals that it was asked and answered in.")
	head := []string{"limit", "processes", "use, all", "use, one", "pause, all, s", "pause, one, s", "admitted, all", "admitted, one", "over", "surely over"}
	var rows [][]string
	for _, r := range results {
		row := []string{r.rate, strconv.Itoa(r.processes)}
		if r.perSecond > 0 {
			row = append(row, figure(r.pace[0]), figure(r.pace[1]), fmt.Sprintf("%.2f", r.pause[0].Seconds()), fmt.Sprintf("%.2f", r.pause[1].Seconds()))
		} else {
			row = append(row, "–", "–", "–", "–")
		}
		rows = append(rows, append(row, strconv.Itoa(r.admitted[0]), strconv.Itoa(r.admitted[1]), figure(r.run.Over()), figure(r.run.SurelyOver())))
		who := fmt.Sprintf("%s among %d processes: ", r.rate, r.processes)
		rep.AtMost(who+"surely over", r.run.SurelyOver(), 0, " tokens")
		rep.AtMost(who+"over, by recorded times", r.run.Over(), 0.5, " tokens")
		if r.perSecond > 0 {
			rep.AtLeast(who+"use, the lower", min(r.pace[0], r.pace[1]), 0.95, "")
			rep.AtMost(who+"longest pause", max(r.pause[0], r.pause[1]).Seconds(), r.stall(), " s")
		}
	}
	rep.Table(head, rows)
	for _, r := range results {
		writeBreach(rep, fmt.Sprintf("%d processes, %s", r.processes, r.rate), r.run)
	}
}
