package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// consumeArg is the argument with which this program starts itself as a consumer.
const consumeArg = "consume"

// modes are the ways to spread permits.
var modes = map[string]split.Options{
	"even":        {},
	"window":      {Window: time.Second},
	"window-even": {Window: time.Second, Pacing: split.Even},
	"pid":         {Window: time.Second, Pacing: split.PID},
}

// job is what a consumer is told by who starts it.
type job struct {
	settings
	Index int
	Base  string // of the configuration service and the provider
	Grain int64  // times are reported in multiples of this, in nanoseconds; 1 = exactly
}

// consumer is one process of the campaign.
type consumer struct {
	job
	clock   hostClock
	step    atomic.Int64 // how far this host's wall clock has been stepped
	limiter *split.Limiter
	queue   *queue
	http    *http.Client
	gaveUp  int64 // requests of users who did not wait; process counts them

	mu     sync.Mutex
	report []sent // not told to the provider yet
	delays map[int64]int64
	done   int64
}

// sent is how many requests were sent to the provider at a time.
type sent struct{ at, n int64 }

// summary is what a consumer says at its end.
type summary struct {
	Processed, Refused int64
	CPU                time.Duration   // of the whole process
	Delays             map[int64]int64 // from acceptance to processing, in units of 100 µs
}

// consume is the consumer's main: the job is the first line of in, and it works until in
// ends.
func consume(in io.Reader) error {
	decoder := json.NewDecoder(in)
	var j job
	if err := decoder.Decode(&j); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // ends with in, for which the process lives
		_, _ = io.Copy(io.Discard, decoder.Buffered())
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	return newConsumer(j).run(ctx)
}

func newConsumer(j job) *consumer {
	room := int(float64(j.Limit) / float64(j.Processes) * max(1, j.Demand))
	return &consumer{
		job: j, clock: newHostClock(), queue: newQueue(min(max(room, 100), 1<<18)), delays: map[int64]int64{},
		http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2}},
	}
}

// wall is this process's wall clock, which is off, and may be stepped.
func (c *consumer) wall() time.Time {
	off := time.Duration(0)
	if c.Processes > 1 {
		// Neighbours are far apart: 37 is prime to nearly every number of processes.
		off = 2*c.Offset*time.Duration(c.Index*37%c.Processes)/time.Duration(c.Processes-1) - c.Offset
	}
	return time.Now().Add(off + time.Duration(c.step.Load()))
}

// run works until ctx ends.
func (c *consumer) run(ctx context.Context) error {
	client := configClient{c.http, c.Base}
	cfg, err := client.next(ctx, 0)
	if ctx.Err() != nil {
		return nil // stopped before it began
	}
	if err != nil {
		return err
	}
	terms, err := c.terms(cfg)
	if err != nil {
		return err
	}
	options := modes[c.Mode]
	options.Name, options.Wall = "provider", c.wall
	if c.limiter, err = split.New(terms, options); err != nil {
		return err
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var wg sync.WaitGroup
	for _, part := range []func(context.Context) error{
		func(ctx context.Context) error { return c.follow(ctx, client, cfg.Version) },
		c.accept, c.process, c.tell,
	} {
		wg.Go(func() {
			if err := part(ctx); err != nil && ctx.Err() == nil {
				stop(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return c.finish()
}

// terms are this process's, by the configuration. One that has no part any more has
// weight 0.
func (c *consumer) terms(cfg config) (split.Terms, error) {
	total, err := limit.ParseRate(cfg.Total)
	if err != nil {
		return split.Terms{}, err
	}
	t := split.Terms{Total: total, Part: split.Instance(c.Index, cfg.Instances), Burst: c.Burst, From: cfg.From}
	if c.Index >= cfg.Instances {
		t.Part = split.Part{Of: int64(cfg.Instances)}
	}
	return t, nil
}

// follow puts in force what the configuration service says.
func (c *consumer) follow(ctx context.Context, client configClient, version int64) error {
	for {
		cfg, err := client.next(ctx, version)
		if err != nil {
			return err
		}
		version = cfg.Version
		c.step.Store(int64(cfg.Step))
		terms, err := c.terms(cfg)
		if err == nil {
			err = c.limiter.Set(terms)
		}
		if err != nil {
			return err
		}
	}
}

// accept queues the requests that users send, and acknowledges them.
func (c *consumer) accept(ctx context.Context) error {
	rate := c.Demand * float64(c.Limit) / float64(c.Processes) / 1e9 // per nanosecond
	rng := rand.New(rand.NewPCG(uint64(c.Index), 1))
	if c.Demand < 1 && !c.Bursts {
		for at := float64(c.clock.now()); ; {
			at += rng.ExpFloat64() / rate
			if err := c.sleepUntil(ctx, int64(at)); err != nil {
				return err
			}
			c.queue.accept(1, c.clock.now())
		}
	}
	// More than can be processed: it does not matter when within 10 ms they come. One is
	// there from the beginning on, so that the queue is never empty.
	due := 1 + rng.Float64()
	for last := c.clock.now(); ; {
		now := c.clock.now()
		due += rate * float64(c.active(last, now))
		last = now
		k := int(due)
		c.queue.accept(k, now)
		due -= float64(k)
		if err := c.sleepUntil(ctx, now+int64(10*time.Millisecond)); err != nil {
			return err
		}
	}
}

// active is for how long requests come within a time: always, or in bursts of 600 ms around
// every even second.
func (c *consumer) active(from, to int64) int64 {
	if !c.Bursts {
		return to - from
	}
	const period, half = int64(2 * time.Second), int64(300 * time.Millisecond)
	until := func(t int64) int64 { // since the epoch
		in := (t + half) % period
		return (t+half)/period*2*half + min(in, 2*half)
	}
	return until(to) - until(from)
}

func (c *consumer) sleepUntil(ctx context.Context, at int64) error {
	d := time.Duration(at - c.clock.now())
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// patience is how long the users of a burst wait.
const patience = time.Millisecond

// process sends what is queued to the provider, as fast as the limit lets it.
func (c *consumer) process(ctx context.Context) error {
	for {
		came, ok := c.queue.next()
		if !ok {
			select {
			case <-c.queue.more:
			case <-ctx.Done():
				return ctx.Err()
			}
			continue
		}
		// A burst is of users who want an answer now; what has been queued can wait.
		longest := limit.Never
		if c.Bursts {
			longest = patience
		}
		switch err := c.limiter.WaitMax(ctx, longest); {
		case err == nil:
			c.send(came)
		case errors.Is(err, limit.ErrWaitTooLong):
			c.gaveUp++
		default:
			return err
		}
	}
}

// send is the call of the provider's API. So that millions fit on one machine, calls are
// told to the provider in bundles, each with its time.
func (c *consumer) send(came int64) {
	now := c.clock.now()
	at := now - now%c.Grain
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.report); n > 0 && c.report[n-1].at == at {
		c.report[n-1].n++
	} else {
		c.report = append(c.report, sent{at, 1})
	}
	c.done++
	if c.Demand < 1 {
		c.delays[max(0, now-came)/int64(100*time.Microsecond)]++
	}
}

// tell tells the provider every half second what was sent.
func (c *consumer) tell(ctx context.Context) error {
	for {
		next := c.clock.now() + int64(500*time.Millisecond)
		if err := c.flush(ctx); err != nil {
			return err
		}
		if err := c.sleepUntil(ctx, next); err != nil {
			return err
		}
	}
}

func (c *consumer) flush(ctx context.Context) error {
	c.mu.Lock()
	report := c.report
	c.report = make([]sent, 0, cap(report))
	c.mu.Unlock()
	return c.post(ctx, "/sent", encode(report))
}

// finish tells the provider the rest.
func (c *consumer) finish() error {
	ctx, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	if err := c.flush(ctx); err != nil {
		return err
	}
	body, err := json.Marshal(summary{Processed: c.done, Refused: c.queue.turnedAway() + c.gaveUp, CPU: processorTime(), Delays: c.delays})
	if err != nil {
		return err
	}
	return c.post(ctx, "/ended", body)
}

func (c *consumer) post(ctx context.Context, path string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Base+path+"?process="+strconv.Itoa(c.Index), bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("%s: %s", path, resp.Status)
	}
	return nil
}

// encode writes times as differences, which are small.
func encode(report []sent) []byte {
	body, last := []byte{}, int64(0)
	for _, s := range report {
		body = binary.AppendVarint(body, s.at-last)
		body = binary.AppendVarint(body, s.n)
		last = s.at
	}
	return body
}

func decode(body []byte) ([]sent, error) {
	var report []sent
	last := int64(0)
	for len(body) > 0 {
		d, i := binary.Varint(body)
		n, j := binary.Varint(body[max(0, i):])
		if i <= 0 || j <= 0 || n < 1 {
			return nil, errors.New("a report is cut off")
		}
		last += d
		report = append(report, sent{last, n})
		body = body[i+j:]
	}
	return slices.Clip(report), nil
}
