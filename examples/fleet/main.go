// Fleet shows one limit among processes: a service lends it, six processes decide by what they were lent, and the load
// moves from one to the other. It prints what they admitted together, and draws who had which part.
//
//	go run ./examples/fleet -svg fleet.svg
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/server"
)

const (
	workers   = 6
	perSecond = 1000
	burst     = 100
	bin       = 100 * time.Millisecond
	phase     = 2 * time.Second // after it the load moves to the next process
)

func main() {
	var err error
	if len(os.Args) == 4 && os.Args[1] == "worker" {
		err = work(os.Args[2], os.Args[3], os.Stdout)
	} else {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		err = run(ctx, os.Args[1:], os.Stdout)
		stop()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleet:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("fleet", flag.ContinueOnError)
	flags.SetOutput(out)
	svg := flags.String("svg", "", "file to draw the run into")
	length := flags.Duration("for", workers*phase, "how long to measure")
	if err := flags.Parse(args); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	limits := filepath.Join(dir, "stint.yaml")
	text := fmt.Sprintf("limits:\n  - {name: fleet, rate: %d/s, burst: %d, sharing: leased}\n", perSecond, burst)
	if err := os.WriteFile(limits, []byte(text), 0o600); err != nil {
		return err
	}
	s, err := server.New(server.Options{
		HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", ConfigPaths: []string{limits},
		StateDir: filepath.Join(dir, "state"), FirstStart: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	serving, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(serving) }()
	select {
	case <-s.Ready():
		var counts [][]int
		if counts, err = measure(ctx, s.Addrs().GRPC.String(), *length); err == nil {
			err = report(out, counts, *svg)
		}
	case err = <-ended:
		ended <- err
	}
	stop()
	return errors.Join(err, <-ended)
}

// measure runs the workers, and returns what each has admitted in each bin.
func measure(ctx context.Context, address string, length time.Duration) ([][]int, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, length+2*time.Second)
	defer cancel()
	begin := time.Now().Truncate(bin).Add(time.Second) // all have started by then
	bins := int(length / bin)
	counts := make([][]int, workers)
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range workers {
		counts[i] = make([]int, bins)
		cmd := exec.CommandContext(ctx, own, "worker", address, fmt.Sprintf("%d@%d", i, begin.UnixMilli()))
		cmd.Stderr = os.Stderr
		lines, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return nil, err
		}
		all.Go(func() {
			for in := bufio.NewScanner(lines); in.Scan(); {
				at, n, _ := strings.Cut(in.Text(), " ")
				which, err1 := strconv.Atoi(at)
				admitted, err2 := strconv.Atoi(n)
				if mu.Lock(); errors.Join(err1, err2) == nil && which >= 0 && which < bins {
					counts[i][which] += admitted
				}
				mu.Unlock()
			}
			_ = cmd.Wait() // it ends when it is killed
		})
	}
	all.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.DeadlineExceeded) {
		return nil, errors.Join(errors.New("a worker has ended"), err)
	}
	return counts, nil
}

// demand is how much a worker wants at a time since the begin, per second. One has much, its neighbors some, and who
// that is moves on; together it is one and a half times the limit.
func demand(worker int, since time.Duration) float64 {
	busy := int(since/phase) % workers
	switch (worker - busy + workers) % workers {
	case 0:
		return 0.9 * perSecond
	case 1, workers - 1:
		return 0.25 * perSecond
	}
	return 0.1 * perSecond / 3
}

// work asks for its demand and writes what was admitted in each bin, until it is killed.
func work(address, who string, out io.Writer) error {
	name, ms, _ := strings.Cut(who, "@")
	worker, err1 := strconv.Atoi(name)
	unix, err2 := strconv.ParseInt(ms, 10, 64)
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	begin := time.UnixMilli(unix)
	c, err := client.New(client.Options{Address: address, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	go func() { _ = c.Run(context.Background()) }() // it ends with the process
	l, err := c.Limit("fleet", client.LimitOptions{})
	if err != nil {
		return err
	}
	owed, last, counted, count := 0.0, time.Now(), -1, 0
	for now := range time.Tick(2 * time.Millisecond) {
		owed += demand(worker, max(0, now.Sub(begin))) * now.Sub(last).Seconds()
		last = now
		for ; owed >= 1; owed-- {
			if l.Allow() {
				count++
			}
		}
		if which := int(now.Sub(begin) / bin); which != counted {
			if _, err := fmt.Fprintln(out, counted, count); err != nil {
				return nil // the reader has gone
			}
			counted, count = which, 0
		}
	}
	return nil
}

// report says how much was admitted, and draws it.
func report(out io.Writer, counts [][]int, svg string) error {
	bins, total, most := len(counts[0]), 0, 0
	for from := range bins {
		sum := 0
		for _, one := range counts {
			sum += one[from]
		}
		total += sum
		// Of every interval of a second.
		second := 0
		for at := from; at < min(bins, from+int(time.Second/bin)); at++ {
			for _, one := range counts {
				second += one[at]
			}
		}
		most = max(most, second)
	}
	seconds := (time.Duration(bins) * bin).Seconds()
	fmt.Fprintf(out, "%d processes, limit %d/s, burst %d: %.1f %% of the limit used in %.0f s, at most %d in a second (%d may be)\n",
		workers, perSecond, burst, 100*float64(total)/(perSecond*seconds), seconds, most, perSecond+burst)
	if svg == "" {
		return nil
	}
	return os.WriteFile(svg, []byte(draw(counts)), 0o644)
}
