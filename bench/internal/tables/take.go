package tables

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/stint-io/stint/bench/internal/httpload"
	"github.com/stint-io/stint/bench/internal/measure"
	"github.com/stint-io/stint/bench/internal/process"
)

// taker is one HTTP server under load.
type taker struct {
	name     string
	process  *process.Process
	conns    []*httpload.Conn
	requests [][]byte
	size     int // bytes of an answer's body

	perSecond measure.Series
	cpu       measure.Series // microseconds for a request
	perCPU    measure.Series // requests for a second of the server's processor time
	p50, p99  measure.Series // microseconds
}

func (k *taker) close() {
	for _, c := range k.conns {
		c.Close()
	}
	if k.process != nil {
		k.process.Stop()
	}
}

// takePairs is how many rounds are measured: the figure is the median of ten.
const takePairs = 10

// Take compares POST /v1/take with a bare handler that reads and writes the same JSON.
func Take(cfg Config, rep *Report) (err error) {
	dir, err := os.MkdirTemp("", "stint-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bareBin, stintBin := filepath.Join(dir, "barehttp"), filepath.Join(dir, "stint")
	if cfg.Binary != "" {
		stintBin = cfg.Binary
	} else if err := process.Build(cfg.Root, "./cmd/stint", stintBin); err != nil {
		return err
	}
	if err := process.Build(filepath.Join(cfg.Root, "bench"), "./barehttp", bareBin); err != nil {
		return err
	}
	all := []*taker{{name: "bare handler"}, {name: "stint serve"}, {name: "stint serve, quotas in a file"}}
	defer func() {
		for _, k := range all {
			k.close()
		}
	}()
	if err := startTakers(dir, bareBin, stintBin, all); err != nil {
		return err
	}
	rounds := min(takePairs, max(cfg.Pairs, 3)*2)
	for round := -1; round < rounds; round++ {
		for i := range all {
			k := all[(i+round+len(all))%len(all)]
			if err := k.slice(cfg.Service, round >= 0); err != nil {
				return fmt.Errorf("bench: %s: %w", k.name, err)
			}
		}
	}
	writeTake(cfg, rep, rounds, all)
	return nil
}

// takeLimits is the first limit of the README, for many users, and one of two requests.
const takeLimits = `limits:
  - {name: per-user, key: [user], rate: 100/s, burst: 200}
  - {name: probe, key: [probe], rate: 1/hour, burst: 2}
`

// startTakers starts all servers with two threads each, and asks each once. The last one has a limit
// whose counts outlive the process: what it writes to its file meanwhile is its processor time, too.
func startTakers(dir, bareBin, stintBin string, all []*taker) error {
	const threads = "GOMAXPROCS=2"
	for i, k := range all {
		var addr [3]string
		for j := range addr {
			var err error
			if addr[j], err = process.FreeAddr(); err != nil {
				return err
			}
		}
		if i == 0 {
			if err := k.start(addr[0], []string{threads}, bareBin, "-http", addr[0]); err != nil {
				return err
			}
			continue
		}
		config := filepath.Join(dir, fmt.Sprintf("limits-%d.yaml", i))
		if err := os.WriteFile(config, []byte([]string{takeLimits, serviceLimits}[i-1]), 0o600); err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := k.start(addr[0], []string{threads, "STATE_DIRECTORY=", fmt.Sprintf("XDG_STATE_HOME=%s/state-%d", dir, i)}, stintBin,
			"serve", "--config", config, "--http", addr[0], "--grpc", addr[1], "--admin", addr[2]); err != nil {
			return err
		}
		// It limits: the third request of two is refused.
		probe := httpload.Request(addr[0], "/v1/take", `{"attributes":{"probe":"p"}}`)
		for n, want := range []int{200, 200, 429} {
			if status, body, err := k.conns[0].Ask(probe); err != nil || status != want {
				return fmt.Errorf("bench: stint answered request %d of a limit of 2 with %d %s, %w", n+1, status, body, err)
			}
		}
	}
	return nil
}

func (k *taker) start(addr string, env []string, bin string, args ...string) (err error) {
	if k.process, err = process.Start(env, bin, args...); err != nil {
		return err
	}
	k.requests = make([][]byte, users)
	for i := range k.requests {
		k.requests[i] = httpload.Request(addr, "/v1/take", fmt.Sprintf(`{"attributes":{"user":"user-%d"}}`, i))
	}
	for end := time.Now().Add(10 * time.Second); len(k.conns) < connections; {
		c, err := httpload.Dial(addr)
		switch {
		case err == nil:
			k.conns = append(k.conns, c)
		case time.Now().After(end):
			return fmt.Errorf("bench: %w, from %s", err, k.process)
		default:
			<-time.After(10 * time.Millisecond)
		}
	}
	// On each, since a server ends connections on which nothing comes at first.
	for _, c := range k.conns {
		_, body, err := c.Ask(k.requests[0])
		if err != nil {
			return err
		}
		if !allowed(body) || !json.Valid(body) {
			return fmt.Errorf("bench: %s answered %s", k.name, body)
		}
		k.size = len(body)
	}
	return nil
}

// allowed is looked at in each answer.
func allowed(body []byte) bool {
	return bytes.HasPrefix(body, []byte(`{"allowed":true,"limits":[{"name":"per-user"`))
}

// slice loads the server for d. Without record it only warms up.
func (k *taker) slice(d time.Duration, record bool) error {
	before, err := k.process.CPU()
	if err != nil {
		return err
	}
	r, err := httpload.Run(k.conns, k.requests, d, allowed)
	if err != nil {
		return err
	}
	after, err := k.process.CPU()
	if err != nil {
		return err
	}
	if record {
		used := (after - before).Seconds()
		k.perSecond = append(k.perSecond, r.PerSecond())
		k.cpu = append(k.cpu, used*1e6/float64(r.Answers))
		k.perCPU = append(k.perCPU, float64(r.Answers)/used)
		k.p50 = append(k.p50, float64(r.Latency.Quantile(0.5).Microseconds()))
		k.p99 = append(k.p99, float64(r.Latency.Quantile(0.99).Microseconds()))
	}
	return nil
}

func writeTake(cfg Config, rep *Report, rounds int, all []*taker) {
	bare := all[0]
	rep.Section("POST /v1/take",
		fmt.Sprintf("`stint serve` against a bare net/http handler that reads and writes the same JSON with encoding/json, with the same time-outs and no limit (`bench/barehttp`). All are real processes of two threads, on the same %d cores as the load.", runtime.NumCPU()),
		fmt.Sprintf("%d kept connections, one request at a time on each, random among %d users, one token bucket per user: 100/s with a burst of 200; of the last, 1/hour with a burst of 10,000, which is kept in a file. Bodies of answers have %d, %d and %d bytes; those of stint come with header fields besides.", connections, users, all[0].size, all[1].size, all[2].size),
		fmt.Sprintf("%d rounds of slices of %v, in turn. CPU is the server process's own. Every answer was checked.", rounds, cfg.Service))
	var rows [][]string
	for _, k := range all {
		rows = append(rows, []string{k.name, k.perSecond.Format("%.0f"), k.perCPU.Format("%.0f"), k.cpu.Format("%.1f"), k.p50.Format("%.0f"), k.p99.Format("%.0f")})
	}
	for _, k := range all[1:] {
		rows = append(rows, []string{
			k.name + " / bare", k.perSecond.Over(bare.perSecond).Format("%.3f"), k.perCPU.Over(bare.perCPU).Format("%.3f"), k.cpu.Over(bare.cpu).Format("%.3f"),
			k.p50.Over(bare.p50).Format("%.2f"), k.p99.Over(bare.p99).Format("%.2f"),
		})
	}
	rep.Table([]string{"", "requests/s", "requests for a second of CPU", "CPU per request, µs", "p50, µs", "p99, µs"}, rows)
	rep.AtLeast("take: requests/s / bare handler", all[1].perSecond.Over(bare.perSecond).Median(), 0.80, " ×")
	rep.AtLeast("take: requests for a second of CPU / bare handler", all[1].perCPU.Over(bare.perCPU).Median(), 0.80, " ×")
}
