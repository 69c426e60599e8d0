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
