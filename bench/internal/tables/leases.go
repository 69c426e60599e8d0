package tables

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/bench/internal/contender"
	"github.com/stint-io/stint/bench/internal/fleet"
	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// decisionLimits are a limit that is never reached, one that is used up, and one for
// instances that are idle.
const decisionLimits = `limits:
  - {name: probe, rate: 1000000/s, sharing: leased}
  - {name: plenty, rate: 1000000000/s, burst: 1000000000, sharing: leased}
  - {name: nothing, rate: 1/hour, burst: 1, sharing: leased}
  - {name: idle, rate: 1000/s, burst: 100, sharing: leased}
`

// allower is what both limiters are.
type allower interface{ Allow() bool }

// loop asks one limiter, whatever the key.
type loop[L allower] struct{ limiter L }

func (o loop[L]) Allow(string) bool { return o.limiter.Allow() }

func (o loop[L]) Hot(_ string, n int) (admitted int) {
	for range n {
		if o.limiter.Allow() {
			admitted++
		}
	}
	return admitted
}

func (o loop[L]) Spin(_ *contender.Walk, n int) int { return o.Hot("", n) }

const (
	inProcess = "limit.Limiter"
	leased    = "client.Limiter"
)

// Leases is what a local decision costs, what the coordinator's rounds take, and what
// an idle instance sends.
func Leases(cfg Config, rep *Report) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	bin, dir, remove, err := cfg.stint()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	c, err := startCoordinator(ctx, bin, dir, decisionLimits)
	if err != nil {
		return err
	}
	defer c.close()
	if err := localDecision(ctx, cfg, rep, c); err != nil {
		return err
	}
	if err := idleBytes(ctx, cfg, rep, c); err != nil {
		return err
	}
	return coordinatorRounds(ctx, cfg, rep)
}

// instance is a client that runs in this process.
type instance struct {
	*client.Client
	cancel context.CancelFunc
	ended  chan error
}

func newInstance(ctx context.Context, addr string) (*instance, error) {
	c, err := client.New(client.Options{Address: "passthrough:///" + addr, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	i := &instance{Client: c, cancel: cancel, ended: make(chan error, 1)}
	go func() { i.ended <- c.Run(ctx) }()
	return i, nil
}

func (i *instance) close() {
	i.cancel()
	<-i.ended // it was told to end
}

// eventually looks until what is true.
func eventually(ctx context.Context, what string, is func() bool) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for !is() {
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("bench: %s: not within 15 s", what)
		}
	}
	return nil
}

// localDecision compares Allow on a lease with Allow in one process.
func localDecision(ctx context.Context, cfg Config, rep *Report, c *coordinator) error {
	in, err := newInstance(ctx, c.grpc)
	if err != nil {
		return err
	}
	defer in.close()
	races := make([]*race, 2)
	for i, name := range []string{"plenty", "nothing"} {
		lease, err := in.Limit(name, client.LimitOptions{Estimator: client.Declared})
		if err != nil {
			return err
		}
		if err := lease.Demand(500e6); err != nil {
			return err
		}
		allowed := name == "plenty"
		// As much must be leased as is asked for before the next refill, and nothing
		// must be left of the other.
		if err := eventually(ctx, "the lease of "+name, func() bool {
			if st := lease.Lease(); allowed {
				return st.Rate >= 100e6 && lease.Remaining() > 100e6
			} else if !st.Known {
				return false
			}
			return !lease.Allow()
		}); err != nil {
			return err
		}
		plan := contender.Plan{Count: 1e9, Period: time.Second, Burst: 1e12}
		if !allowed {
			plan = contender.Plan{Count: 1, Period: time.Hour, Burst: 1}
		}
		r, err := newRace(plan, []contender.Contender{
			{Name: inProcess, New: func(p contender.Plan) (contender.Limiter, error) {
				l, err := limit.NewLimiter(p.Policy())
				return loop[*limit.Limiter]{l}, err
			}},
			{Name: leased, New: func(contender.Plan) (contender.Limiter, error) { return loop[*client.Limiter]{lease}, nil }},
		})
		if err != nil {
			return err
		}
		if !allowed {
			r.lane(inProcess, 1).limiter.Allow("") // the one of the hour
		}
		if err := r.run(cfg, allowed, func(l *lane, _, n int) int { return l.limiter.Hot("", n) }); err != nil {
			return err
		}
		races[i] = r
	}
	writeDecision(rep, races)
	return nil
}

func writeDecision(rep *Report, races []*race) {
	rep.Section("A decision on a lease",
		"`client.Limiter.Allow`, with a lease of a `stint serve` that runs beside it and a connection that renews it, and `limit.Limiter.Allow`, which shares its limit with nobody: one limit, no key.",
		"Admitted: 10⁹ per second, never used up. Refused: one an hour, used up; what Allow asks the coordinator meanwhile is in it.")
	head := []string{"ns per request"}
	for _, n := range threads {
		head = append(head, on(n), "× in process", "allocs")
	}
	var rows [][]string
	for i, answer := range []string{"admitted", "refused"} {
		r := races[i]
		for _, name := range []string{inProcess, leased} {
			row := []string{name + ", " + answer}
			for _, n := range threads {
				l := r.lane(name, n)
				row = append(row, l.ns().Format("%.0f"), fmt.Sprintf("%.2f", l.ns().Over(r.lane(inProcess, n).ns()).Median()), fmt.Sprintf("%.4f", l.allocs()))
			}
			rows = append(rows, row)
		}
		for _, n := range threads {
			what := fmt.Sprintf("decision on a lease, %s, %s: ", answer, on(n))
			most := 1.5
			if answer == "refused" && n == 2 {
				most = 1.25
			}
			rep.AtMost(what+"leased / in process", r.ratio(leased, inProcess, n), most, " ×")
			// The connection allocates for itself a few times in a second.
			rep.AtMost(what+"allocations per request", float64(int(r.lane(leased, n).allocs()+0.01)), 0, "")
		}
	}
	rep.Table(head, rows)
}

// idleInstances are enough for an average.
const idleInstances = 10

// idleBytes counts what instances send and get that have leased something and ask for
// nothing any more.
func idleBytes(ctx context.Context, cfg Config, rep *Report, c *coordinator) error {
	proxy, err := fleet.StartProxy(c.grpc, 0)
	if err != nil {
		return err
	}
	defer proxy.Close()
	for range idleInstances {
		in, err := newInstance(ctx, proxy.Addr())
		if err != nil {
			return err
		}
		defer in.close()
		l, err := in.Limit("idle", client.LimitOptions{})
		if err != nil {
			return err
		}
		if err := eventually(ctx, "the first request", l.Allow); err != nil {
			return err
		}
	}
	pause := time.NewTimer(4 * time.Second) // what they have of it comes back
	defer pause.Stop()
	<-pause.C
	up, down := proxy.Bytes()
	start := time.Now()
	pause.Reset(cfg.LeaseIdle)
	<-pause.C
	up2, down2 := proxy.Bytes()
	each := time.Since(start).Seconds() * idleInstances
	sent, got := float64(up2-up)/each, float64(down2-down)/each
	rep.Section("An idle instance",
		fmt.Sprintf("%d instances in one process, each with its own connection to a `stint serve`, that took one token each and ask for nothing any more. Counted on the way for %v: HTTP/2 with all its frames, without TCP.", idleInstances, cfg.LeaseIdle))
	rep.Table([]string{"bytes of one instance in a second", "sent", "got", "both"},
		[][]string{{"idle", fmt.Sprintf("%.0f", sent), fmt.Sprintf("%.0f", got), fmt.Sprintf("%.0f", sent+got)}})
	if sent == 0 {
		return errors.New("bench: idle instances sent nothing: they do not renew their leases")
	}
	return nil
}

// coordinatorRounds runs the benchmark of internal/lease/coordinator, which is internal, and shows its
// figures.
func coordinatorRounds(ctx context.Context, cfg Config, rep *Report) error {
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-run", "^$", "-bench", "^BenchmarkRound$", "-benchtime", strconv.Itoa(cfg.LeaseRounds)+"x", "./internal/lease/coordinator")
	cmd.Dir = cfg.Root
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("bench: %v in %s: %w\n%s", cmd, cfg.Root, err, out)
	}
	rows, err := readRounds(string(out))
	if err != nil {
		return err
	}
	rep.Section("A round of the coordinator",
		"One limit, so many instances, all of which want half as much again as there is. Then the demand of some or all of them changes, each reports, and the coordinator divides the limit anew: that is a round, with the grants that come of it and without the network. The coordinator is driven directly, by the holders that ship. Longest of the rounds, and of the steps without one.")
	head := []string{"instances", "changed", "rounds", "ms, median", "ms, mean", "ms, longest", "ms, longest other step", "grants in a round", "ns for a report"}
	var lines [][]string
	for _, r := range rows {
		lines = append(lines, []string{
			r.instances, r.changed, fmt.Sprintf("%.0f", r.figures["rounds"]), fmt.Sprintf("%.2f", r.figures["ms/median"]), fmt.Sprintf("%.2f", r.figures["ms/round"]),
			fmt.Sprintf("%.2f", r.figures["ms/longest"]), fmt.Sprintf("%.2f", r.figures["ms/longest-other"]), fmt.Sprintf("%.0f", r.figures["grants/round"]), fmt.Sprintf("%.0f", r.figures["ns/report"]),
		})
		if r.instances == "10000" {
			rep.AtMost(fmt.Sprintf("round of 10000 instances, %s changed: median", r.changed), r.figures["ms/median"], 20, " ms")
			rep.AtMost(fmt.Sprintf("round of 10000 instances, %s changed: longest", r.changed), r.figures["ms/longest"], 20, " ms")
		}
	}
	rep.Table(head, lines)
	return nil
}

// round is a line of BenchmarkRound.
type round struct {
	instances, changed string
	figures            map[string]float64 // by unit
}

// readRounds reads what go test printed.
func readRounds(out string) (rows []round, err error) {
	lines := bufio.NewScanner(strings.NewReader(out))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) == 0 || !strings.HasPrefix(f[0], "BenchmarkRound/") {
			continue
		}
		name := f[0]
		if i := strings.LastIndexByte(name, '-'); i > 0 {
			name = name[:i] // GOMAXPROCS
		}
		r := round{figures: map[string]float64{}}
		for part := range strings.SplitSeq(name, "/") {
			switch k, v, _ := strings.Cut(part, "="); k {
			case "instances":
				r.instances = v
			case "changed":
				r.changed = v
			}
		}
		for i := 2; i+1 < len(f); i += 2 {
			if r.figures[f[i+1]], err = strconv.ParseFloat(f[i], 64); err != nil {
				return nil, fmt.Errorf("bench: %q: %w", lines.Text(), err)
			}
		}
		if r.instances == "" || r.changed == "" || r.figures["rounds"] == 0 {
			return nil, fmt.Errorf("bench: %q is not a line of BenchmarkRound", lines.Text())
		}
		rows = append(rows, r)
	}
	if len(rows) == 0 {
		return nil, fmt.Errorf("bench: there is no BenchmarkRound in:\n%s", out)
	}
	return rows, nil
}
