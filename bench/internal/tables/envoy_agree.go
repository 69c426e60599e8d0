package tables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/stint-io/stint/bench/internal/agree"
	"github.com/stint-io/stint/bench/internal/redisserver"
)

// EnvoyAgree asks envoyproxy/ratelimit and stint the same requests under the
// configurations that come with the former, by file and by xDS. An answer that
// differs in a way that has no name is an error.
func EnvoyAgree(cfg Config, rep *Report) (err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stint-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs := agree.Programs{Stint: filepath.Join(dir, "stint"), Envoy: filepath.Join(dir, "service_cmd")}
	versions, err := buildServices(cfg, programs.Stint, programs.Envoy)
	if err != nil {
		return err
	}
	if cfg.Binary != "" {
		if programs.Stint, err = filepath.Abs(cfg.Binary); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
	}
	module, err := envoyModule(cfg)
	if err != nil {
		return err
	}
	sets, err := agree.Published(module)
	if err != nil {
		return err
	}
	server, err := redisserver.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	rep.Section("The answers of envoyproxy/ratelimit",
		fmt.Sprintf("`stint serve` and envoyproxy/ratelimit %s, real processes with the same variables and one redis-server %s, are asked the same %d random requests under each configuration that comes with the latter (seed %d): by file, and from go-control-plane.", versions.envoy, server.Version, cfg.Agree, cfg.AgreeSeed),
		"Compared are the codes, the limits, what is left, the time until the reset (to a second), the headers and the metadata.")
	total, rows := agree.Outcome{Known: map[agree.Deviation]int{}}, [][]string(nil)
	for i, set := range sets {
		for _, xds := range []bool{false, true} {
			w := agree.Walk{Set: set, XDS: xds, Redis: server.Addr, Requests: cfg.Agree, Seed: cfg.AgreeSeed + uint64(i)}
			o, err := w.Run(ctx, programs)
			if err != nil {
				return fmt.Errorf("bench: %s: %w", set.Name, err)
			}
			rows = append(rows, outcomeRow(set.Name+map[bool]string{false: ", by file", true: ", by xDS"}[xds], o))
			total.Add(o)
		}
	}
	writeAgreement(rep, append(rows, outcomeRow("all", total)), total)
	if err := envoySuite(ctx, rep, sets, server.Addr, programs); err != nil {
		return err
	}
	rep.AtMost("answers that differ from those of envoyproxy/ratelimit without a reason", float64(total.Unexplained), 0, "")
	if total.Unexplained > 0 {
		return fmt.Errorf("bench: %d answers differ without a reason:\n%s", total.Unexplained, strings.Join(total.Examples[:min(10, len(total.Examples))], "\n"))
	}
	return nil
}

// envoyModule returns the folder of envoyproxy/ratelimit's module.
func envoyModule(cfg Config) (string, error) {
	cmd := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/ratelimit")
	cmd.Dir = filepath.Join(cfg.Root, "bench", "envoyratelimit")
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("bench: where is the module of envoyproxy/ratelimit: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

func outcomeRow(name string, o agree.Outcome) []string {
	row := []string{name, fmt.Sprint(o.Requests), fmt.Sprint(o.Statuses), fmt.Sprint(o.Refused), fmt.Sprint(o.Same)}
	for _, d := range agree.Deviations() {
		if !d.Added() {
			row = append(row, fmt.Sprint(o.Known[d]))
		}
	}
	return append(row, fmt.Sprint(o.Unexplained))
}

func writeAgreement(rep *Report, rows [][]string, total agree.Outcome) {
	head := []string{"", "requests", "descriptors", "refused", "the same"}
	for _, d := range agree.Deviations() {
		if !d.Added() {
			head = append(head, d.Name)
		}
	}
	rep.Table(append(head, "unexplained"), rows)
	fmt.Fprintln(rep.Out)
	for _, d := range agree.Deviations() {
		fmt.Fprintf(rep.Out, "* %s, %d answers: %s.\n", d.Name, total.Known[d], d.Reason)
	}
}

// envoySuite runs the requests of envoyproxy/ratelimit's integration suite. An answer
// of stint's that the suite does not expect is an error.
func envoySuite(ctx context.Context, rep *Report, sets []agree.Set, redis string, programs agree.Programs) error {
	plain := agree.Suite{Redis: redis}
	for _, s := range sets {
		switch s.Name {
		case agree.SuiteSet:
			plain.Set = s
		case agree.SuiteReload:
			plain.Reload = s
		}
	}
	local, stopping, both, xds := plain, plain, plain, plain
	local.Env, local.Local = []string{"LOCAL_CACHE_SIZE_IN_BYTES=1000"}, "_local"
	stopping.Env, stopping.Stop = []string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}, true
	both.Env, both.Local, both.Stop = append(local.Env, stopping.Env...), "_local", true
	xds.XDS = true
	var rows [][]string
	var faults []string
	missed := 0
	for _, v := range []struct {
		name  string
		suite agree.Suite
	}{{"by file", plain}, {"with the local cache", local}, {"refusals stop the counting", stopping}, {"both of these", both}, {"by xDS", xds}} {
		f, err := v.suite.Run(ctx, programs)
		if err != nil {
			return fmt.Errorf("bench: integration suite, %s: %w", v.name, err)
		}
		rows = append(rows, []string{v.name, fmt.Sprint(f.Steps), fmt.Sprint(f.There), fmt.Sprint(f.Here)})
		missed += f.Steps - f.Here
		faults = append(faults, f.Faults...)
	}
	rep.Section("The integration suite of envoyproxy/ratelimit",
		"The requests of its tests of the configuration, of a file or resource that is added and taken away, and of shared thresholds, with what they expect. It starts the service in its own process, so that it cannot be pointed at another.")
	rep.Table([]string{"", "requests", "as expected there", "as expected here"}, rows)
	rep.AtMost("requests of envoyproxy/ratelimit's integration suite that are not answered as it expects", float64(missed), 0, "")
	if missed > 0 {
		return fmt.Errorf("bench: %d requests of the integration suite are not answered as it expects:\n%s", missed, strings.Join(faults, "\n"))
	}
	return nil
}
