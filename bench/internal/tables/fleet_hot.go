package tables

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/stint-io/stint/bench/internal/fleet"
	"github.com/stint-io/stint/bench/internal/measure"
)

// hotResult is what came of moving all load to one process, several times.
type hotResult struct {
	processes    int
	run          *fleet.Run
	even         measure.Series // use while all are asked
	hot, steady  measure.Series // use while one is asked: from the step, and from one second later
	t95, t95Fine measure.Series // seconds
	unreached    int            // steps after which 95 % were not reached
	made         float64        // requests, over those that were ordered
	server       float64        // processor time of the coordinator, in parts of one core
	clients      time.Duration  // of all processes, for a second
	kbps         float64        // what one process sent and got, on average
}

// step is when the load moved, and until when it stayed.
type step struct{ from, at, end int64 }

// playHot has all n processes ask for twice the limit together, then one of them for
// as much; then all again, and another one.
func playHot(ctx context.Context, cfg Config, c *coordinator, f *fleet.Fleet, n int) (*hotResult, error) {
	begin := fleet.After(ahead)
	loads := make([][]fleet.Load, n)
	var steps []step
	t := begin
	for i := range cfg.FleetSteps {
		even := cfg.FleetEven
		if i == 0 {
			even += warmUp
		}
		s := step{from: t, at: t + int64(even)}
		s.end = s.at + int64(cfg.FleetHot)
		for p := range n {
			loads[p] = append(loads[p], fleet.Load{Limit: "hot", From: s.from, To: s.at, PerSecond: 2 * hotRate / float64(n), Phase: float64(p) / float64(n)})
		}
		hot := i % n
		loads[hot] = append(loads[hot], fleet.Load{Limit: "hot", From: s.at, To: s.end, PerSecond: 2 * hotRate})
		steps, t = append(steps, s), s.end
	}
	cpu, err := c.process.CPU()
	if err != nil {
		return nil, err
	}
	up, down := f.Bytes()
	logs, err := f.Play(ctx, func(p int) []fleet.Load { return loads[p] })
	if err != nil {
		return nil, err
	}
	after, err := c.process.CPU()
	if err != nil {
		return nil, err
	}
	up2, down2 := f.Bytes()
	took := time.Duration(t - begin).Seconds()
	r := &hotResult{processes: n, run: fleet.Gather(logs, "hot", hotRate, hotBurst, false)}
	for _, l := range logs {
		r.clients += time.Duration(float64(l.CPU) / took)
	}
	r.server = (after - cpu).Seconds() / took
	r.kbps = float64(up2-up+down2-down) * 8 / 1000 / took / float64(n)
	made, _ := r.run.Requests()
	r.made = float64(made) / (2 * hotRate * took)
	for i, s := range steps {
		if i == 0 {
			s.from += int64(warmUp)
		}
		r.measure(s)
	}
	if made == 0 || r.made < 0.9 {
		return nil, fmt.Errorf("%d requests were made of %.0f: the machine is too busy for this load", made, 2*hotRate*took)
	}
	return r, nil
}

func (r *hotResult) measure(s step) {
	// All hold parts of the rate and little of it lies idle a second after a step.
	r.even = append(r.even, r.run.Use(s.from+int64(time.Second), s.at))
	r.hot = append(r.hot, r.run.Use(s.at, s.end))
	r.steady = append(r.steady, r.run.Use(s.at+int64(time.Second), s.end))
	at, ok := r.run.T95(s.at, s.end, time.Second)
	fine, okFine := r.run.T95(s.at, s.end, 100*time.Millisecond)
	if !ok || !okFine {
		r.unreached++
	}
	r.t95, r.t95Fine = append(r.t95, at.Seconds()), append(r.t95Fine, fine.Seconds())
}

// largest is the worst of a series of which each should be small.
func largest(s measure.Series) (most float64) {
	for _, x := range s {
		most = max(most, x)
	}
	return most
}

// smallest is the worst of a series of which each should be large.
func smallest(s measure.Series) float64 {
	least := 0.0
	for i, x := range s {
		if i == 0 || x < least {
			least = x
		}
	}
	return least
}

func writeHot(cfg Config, rep *Report, results []*hotResult) {
	if len(results) == 0 {
		return
	}
	rep.Section("All load on one of many processes",
		fmt.Sprintf("One `stint serve` and so many other processes on this machine, which share a limit of %d/s with a burst of %d through its coordinator. Each has a connection of its own, with %v one way.", hotRate, hotBurst, linkDelay),
		fmt.Sprintf("All together ask for %d/s for %v, each as often; then one process alone asks for as much for %v; then all again, and another one, %d times.", 2*hotRate, cfg.FleetEven, cfg.FleetHot, cfg.FleetSteps),
		"All ask by Allow, which never waits. Each process logs the time of every request by the host's monotonic clock, which is the same for all.",
		"t95 is the time from the step after which every second (every 0.1 s) used at least 95 % of the limit. Use is what was admitted over what the limit allows, while all ask, while one asks, and while one asks from a second after the step.",
		"The figures of the steps are medians [lowest–highest].")
	head := []string{"processes", "t95, s", "t95 of 0.1 s, s", "use, all", "use, one", "use, one, later"}
	var rows [][]string
	for _, r := range results {
		rows = append(rows, []string{
			strconv.Itoa(r.processes), r.t95.Format("%.2f"), r.t95Fine.Format("%.2f"), r.even.Format("%.3f"), r.hot.Format("%.3f"), r.steady.Format("%.3f"),
		})
	}
	rep.Table(head, rows)
	fmt.Fprintf(rep.Out, "\nOver is how many tokens all together admitted beyond burst + rate × T, in the worst of all intervals T; the next columns are the most in any 0.1, 1 and 10 s, over burst + rate × T. "+
		"Made are the requests, of those that were due; late is by how much the latest of them was. CPU is in parts of one core; the last column is what one process sent and got, with HTTP/2 and without TCP.\n")
	head = []string{"processes", "over", "0.1 s", "1 s", "10 s", "admitted", "made", "late, ms", "CPU, coordinator", "CPU, all processes", "kbit/s"}
	rows = nil
	for _, r := range results {
		_, admitted := r.run.Requests()
		rows = append(rows, []string{
			strconv.Itoa(r.processes), figure(r.run.Over()), figure(r.run.Peak(100 * time.Millisecond)), figure(r.run.Peak(time.Second)), figure(r.run.Peak(10 * time.Second)),
			strconv.Itoa(admitted), figure(r.made), fmt.Sprintf("%.0f", r.run.Late.Seconds()*1000), figure(r.server), figure(r.clients.Seconds()), fmt.Sprintf("%.1f", r.kbps),
		})
		who := fmt.Sprintf("all load on one of %d processes: ", r.processes)
		rep.AtMost(who+"steps without 95 %", float64(r.unreached), 0, "")
		rep.AtMost(who+"t95, the longest", largest(r.t95), 0.3, " s")
		rep.AtLeast(who+"use, the lowest", smallest(r.hot), 0.98, "")
		rep.AtMost(who+"over", r.run.SurelyOver(), 0, " tokens")
	}
	rep.Table(head, rows)
	for _, r := range results {
		writeBreach(rep, fmt.Sprintf("%d processes, hot", r.processes), r.run)
	}
}

// writeBreach shows what was admitted where a limit was surely broken.
func writeBreach(rep *Report, what string, r *fleet.Run) {
	if r.SurelyOver() == 0 {
		return
	}
	from, to, within := r.Worst()
	fmt.Fprintf(rep.Out, "\n%s: the limit of %g/s with a burst of %g was broken by %.3f tokens within %.3f s; asked and answered, in ms:\n\n```\n",
		what, r.Rate, r.Burst, r.SurelyOver(), time.Duration(to-from).Seconds())
	for _, a := range within[max(0, len(within)-200):] {
		fmt.Fprintf(rep.Out, "%.3f %.3f\n", float64(a.Asked-from)/1e6, float64(a.Answered-from)/1e6)
	}
	fmt.Fprintln(rep.Out, "```")
}
