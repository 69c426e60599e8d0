package tables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/stint-io/stint/bench/internal/fleet"
)

const (
	followProcesses = 10
	// followWatch is how often a process notes its lease, as the simulator does.
	followWatch = 50 * time.Millisecond
	// followed is the largest error of a change that counts as followed.
	followed = 0.03
)

// followResult is how a fleet followed the changes of its demands.
type followResult struct {
	demands *demands
	run     *fleet.Run
	changes []followedChange
	made    float64 // requests of those who do not wait, over those that were ordered
	kbps    float64 // what one process sent and got, on average
}

// followedChange is the worst error of any process after a change.
type followedChange struct {
	seed        uint64
	change      int
	half, whole float64 // from 0.5 s and from 1 s after it on, until the next
	last        float64 // of the last leases before the next
	// disturbed says that the machine had other work: from half a second before the change
	// until the next one some process was not run for longer than fleet.Patience.
	disturbed bool
	about     string // the worst from 1 s on
}

// followLimit is the name of the limit that demands are of.
func followLimit(d *demands) string { return fmt.Sprint("follow-", d.seed) }

// Follow is how real processes that share a limit by leases follow changes of demand.
func Follow(cfg Config, rep *Report) error {
	results, err := follow(cfg)
	if err != nil {
		return err
	}
	writeFollow(rep, results)
	return nil
}

func follow(cfg Config) (results []*followResult, err error) {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	bin, dir, remove, err := cfg.stint()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, remove()) }()
	var all []*demands
	limits := "limits:\n  - {name: probe, rate: 1000000/s, sharing: leased}\n"
	for i := range cfg.FollowFleets {
		d := drawDemands(uint64(i+1), followProcesses, cfg.FollowChanges)
		all = append(all, d)
		limits += fmt.Sprintf("  - {name: %s, rate: %d/s, burst: %d, sharing: leased}\n", followLimit(d), d.rate, d.burst)
	}
	c, err := startCoordinator(ctx, bin, dir, limits)
	if err != nil {
		return nil, err
	}
	defer c.close()
	for _, d := range all {
		r, err := playFollow(ctx, c, d)
		if err != nil {
			return nil, fmt.Errorf("bench: demands of seed %d: %w", d.seed, err)
		}
		results = append(results, r)
	}
	return results, nil
}

// playFollow starts the processes, and has them want what they do.
func playFollow(ctx context.Context, c *coordinator, d *demands) (r *followResult, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.end+time.Minute)
	defer cancel()
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("which program to start: %w", err)
	}
	f, err := fleet.Start(ctx, fleet.Options{
		Processes: len(d.weights), Target: c.grpc, Delay: linkDelay, Ask: takeWaits,
		Limits: []string{followLimit(d)}, Program: program, Weights: d.weights,
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	begin := fleet.After(ahead)
	up, down := f.Bytes()
	var own []fleet.Stall // of this process
	var watching sync.WaitGroup
	watched, stop := context.WithCancel(ctx)
	watching.Go(func() { own = fleet.Stalls(watched) })
	logs, err := f.Play(ctx, func(p int) []fleet.Load { return d.loads(p, begin) })
	stop()
	watching.Wait()
	if err != nil {
		return nil, err
	}
	up2, down2 := f.Bytes()
	r = &followResult{demands: d, run: fleet.Gather(logs, followLimit(d), float64(d.rate), float64(d.burst), true)}
	r.kbps = float64(up2-up+down2-down) * 8 / 1000 / d.end.Seconds() / float64(len(d.weights))
	runs := make([]*fleet.Run, len(d.weights))
	for i := range runs {
		runs[i] = &fleet.Run{}
	}
	records := make([]fleet.Record, len(d.weights))
	for _, l := range logs {
		if rec := l.Limits[followLimit(d)]; rec != nil {
			records[l.Instance] = *rec
		}
		runs[l.Instance] = fleet.Gather([]*fleet.Log{l}, followLimit(d), 0, 0, false)
	}
	r.count(runs)
	if r.made < 0.9 {
		return nil, fmt.Errorf("%.0f %% of the requests were made: the machine is too busy for this load", 100*r.made)
	}
	stalls := [][]fleet.Stall{own}
	for i := range records {
		stalls = append(stalls, records[i].Stalls)
	}
	for k := range d.changes[1:] {
		c := d.judge(k+1, begin, runs, records)
		c.disturbed = disturbed(stalls, begin+int64(d.changes[k+1].at-500*time.Millisecond), begin+int64(d.until(k+1)))
		r.changes = append(r.changes, c)
	}
	return r, nil
}

// loads are those of a process. A demand that stays is one load.
func (d *demands) loads(p int, begin int64) (loads []fleet.Load) {
	for k, c := range d.changes {
		from, to, wants := begin+int64(c.at), begin+int64(d.until(k)), c.wants[p]
		switch {
		case wants == 0:
		case k > 0 && d.changes[k-1].wants[p] == wants:
			loads[len(loads)-1].To = to
		default:
			loads = append(loads, fleet.Load{
				Limit: followLimit(d), From: from, To: to, PerSecond: wants, Phase: float64(p) / float64(len(d.weights)),
				Loop: d.loops[p], Watch: followWatch,
			})
		}
	}
	return loads
}

// count compares what was asked for with what was ordered, of those who do not wait.
func (r *followResult) count(runs []*fleet.Run) {
	ordered, made := 0.0, 0
	for k, c := range r.demands.changes {
		for p, wants := range c.wants {
			if !r.demands.loops[p] {
				ordered += wants * (r.demands.until(k) - c.at).Seconds()
			}
		}
	}
	for p, run := range runs {
		if !r.demands.loops[p] {
			n, _ := run.Requests()
			made += n
		}
	}
	r.made = float64(made) / max(ordered, 1)
}

// judge is how the k-th change was followed.
//
// Who wants more than its level has an error of the part by which its lease is off its
// exact share, at worst, or of what it was admitted less than that share, less one
// request. Who wants less has one of the part of what it asked for that it did not get,
// less one request, three times: 0.01 there counts as much as 0.03 of a share. A loop of
// Wait would have asked for what it wants in the time that it waited.
func (d *demands) judge(k int, begin int64, runs []*fleet.Run, records []fleet.Record) followedChange {
	c, exact := d.changes[k], d.exact(k)
	at, until := begin+int64(c.at), begin+int64(d.until(k))
	r := followedChange{seed: d.seed, change: k}
	for i, wants := range c.wants {
		above := wants > exact[i]*1.0001
		kind := "even"
		if d.loops[i] {
			kind = "loop"
		}
		for _, after := range []time.Duration{500 * time.Millisecond, time.Second} {
			from := at + int64(after)
			took := time.Duration(until - from).Seconds()
			e, about := 0.0, ""
			note := func(off float64, format string, args ...any) {
				if off > e {
					e, about = off, fmt.Sprintf(format, args...)
				}
			}
			got := float64(runs[i].Admitted(from, until))
			switch {
			case above:
				due := exact[i] * took
				note((due-got-1)/due, "was admitted %.0f of %.1f", got, due)
				for _, h := range records[i].Held {
					if h.At >= from && h.At < until {
						off := math.Abs(h.Rate-exact[i]) / exact[i]
						note(off, "has %.4g at +%.2f s", h.Rate, time.Duration(h.At-at).Seconds())
						if after == time.Second && h.At >= until-2*int64(followWatch) {
							r.last = max(r.last, off)
						}
					}
				}
			case wants > 0:
				asked := float64(runs[i].Offered(from, until))
				if d.loops[i] {
					asked = got + wants*waited(&records[i], from, until).Seconds()
				}
				note(3*(asked-got-1)/max(asked, 1), "got %.0f of %.1f", got, asked)
			}
			if after < time.Second {
				r.half = max(r.half, e)
			} else if e > r.whole {
				r.whole = e
				r.about = fmt.Sprintf("process %d (%s, weight %d) wants %.4g, exact %.4g: %s", i, kind, d.weights[i], wants, exact[i], about)
			}
		}
	}
	return r
}

// disturbed says whether any stall touches [from, to).
func disturbed(stalls [][]fleet.Stall, from, to int64) bool {
	for _, process := range stalls {
		for _, s := range process {
			if s.From < to && s.To > from {
				return true
			}
		}
	}
	return false
}

// waited is how long a loop waited for permits in [from, to).
func waited(r *fleet.Record, from, to int64) time.Duration {
	sum := int64(0)
	for _, a := range r.Admitted {
		sum += max(0, min(a.Answered, to)-max(a.Asked, from))
	}
	if r.Waiting > 0 {
		sum += max(0, to-max(r.Waiting, from))
	}
	return time.Duration(sum)
}

func writeFollow(rep *Report, results []*followResult) {
	rep.Section("Changes of demand",
		fmt.Sprintf("%d processes on this machine share a limit through the coordinator of one `stint serve`, each over a connection of its own with %v one way. What they want is drawn from a seed and changes each 2 to 10 s: parts move, some change by a factor, some begin or end; small ones stand beside large ones, a third of the fleets has weights from 1 to 4, and a quarter of the processes are loops of Wait, the others ask by Allow at even pace.", followProcesses, linkDelay),
		"Within 3 % is the part of the changes after which, from so long after the change until the next, each process that wants more than its level had leases within 3 % of its exact weighted max-min share and was admitted as much, and each that wants less got at least 0.99 of what it asked for, to a request.",
		fmt.Sprintf("Undisturbed are the changes during which, and half a second before which, the machine let no process wait for a processor for longer than %v: one that stands still asks for nothing meanwhile, which is a change of its demand too.", fleet.Patience),
		"Over is how many tokens all together admitted beyond burst + rate × T, in the worst of all intervals T, by the times at which answers were there. Made are requests of those who do not wait, of those that were due; late is by how much the latest was.")
	head := []string{"seed", "limit", "burst", "weights", "changes", "within 3 % from 0.5 s", "from 1 s", "undisturbed", "within 3 % from 0.5 s", "from 1 s", "over", "admitted", "made", "late, ms", "kbit/s"}
	var rows [][]string
	var all []followedChange
	for _, r := range results {
		all = append(all, r.changes...)
		_, admitted := r.run.Requests()
		weights := strings.Trim(fmt.Sprint(r.demands.weights), "[]")
		row := append([]string{fmt.Sprint(r.demands.seed), fmt.Sprintf("%d/s", r.demands.rate), fmt.Sprint(r.demands.burst), weights}, within(r.changes)...)
		rows = append(rows, append(row,
			figure(r.run.Over()), strconv.Itoa(admitted), figure(r.made), fmt.Sprintf("%.0f", r.run.Late.Seconds()*1000), fmt.Sprintf("%.1f", r.kbps),
		))
		rep.AtMost(fmt.Sprintf("changes of demand, seed %d: over", r.demands.seed), r.run.SurelyOver(), 0, " tokens")
	}
	rep.Table(head, append(rows, append(append([]string{"all", "", "", ""}, within(all)...), "", "", "", "", "")))
	_, whole := followedParts(all)
	rep.AtLeast("changes of demand: within 3 % from 1 s on", whole, 1, "")
	if quiet := undisturbed(all); len(quiet) > 0 {
		_, whole := followedParts(quiet)
		rep.AtLeast("changes of demand, undisturbed: within 3 % from 1 s on", whole, 1, "")
	}
	slices.SortStableFunc(all, func(a, b followedChange) int { return cmp.Compare(b.whole, a.whole) })
	if len(all) > 0 && all[0].whole > followed {
		fmt.Fprint(rep.Out, "\nNot within 3 % from 1 s on, the worst process of each:\n\n")
	}
	for _, c := range all {
		if c.whole > followed {
			how := ""
			if c.disturbed {
				how = " (disturbed)"
			}
			fmt.Fprintf(rep.Out, "* seed %d, change %d%s: %.3f from 0.5 s on, %.3f from 1 s on: %s\n", c.seed, c.change, how, c.half, c.whole, c.about)
		}
	}
	for _, r := range results {
		writeBreach(rep, fmt.Sprintf("demands of seed %d", r.demands.seed), r.run)
	}
}

// undisturbed are those of the changes that the machine did not disturb.
func undisturbed(changes []followedChange) (quiet []followedChange) {
	for _, c := range changes {
		if !c.disturbed {
			quiet = append(quiet, c)
		}
	}
	return quiet
}

// within is how many changes there were and the parts of them that were followed, of all
// and of the undisturbed ones, as cells of a table.
func within(changes []followedChange) (cells []string) {
	for _, some := range [][]followedChange{changes, undisturbed(changes)} {
		cells = append(cells, strconv.Itoa(len(some)))
		if len(some) == 0 {
			cells = append(cells, "–", "–")
			continue
		}
		half, whole := followedParts(some)
		cells = append(cells, figure(half), figure(whole))
	}
	return cells
}

// followedParts are the parts of changes that were followed from 0.5 s and from 1 s on.
func followedParts(changes []followedChange) (half, whole float64) {
	for _, c := range changes {
		if c.half <= followed {
			half++
		}
		if c.whole <= followed {
			whole++
		}
	}
	return half / float64(len(changes)), whole / float64(len(changes))
}
