package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
)

// fleet is all the processes of a run.
type fleet struct {
	settings
	dir         string
	job         workerJob
	topic       *topic
	subscriber  *subscriber
	coordinator *child
	address     string // of the coordinator
	workers     []*child
	events      []event
}

// event is what was done to the fleet, and when.
type event struct {
	at   time.Duration
	what string
}

func (f *fleet) name(i int) string { return "worker-" + strconv.Itoa(i+1) }

func (f *fleet) startCoordinator() error {
	c, err := spawn(coordinatorArg, coordinatorJob{Dir: f.dir, GRPC: f.address})
	if err != nil {
		return err
	}
	line, err := c.out.ReadString('\n')
	if err != nil {
		c.kill()
		return fmt.Errorf("delivery: the coordinator did not start: %w", err)
	}
	f.coordinator, f.address = c, strings.TrimSpace(line)
	return nil
}

// startWorker starts a worker with its partitions: partition p is of worker p modulo the
// number of workers.
func (f *fleet) startWorker(i int) (err error) {
	job := f.job
	job.Name, job.Coordinator = f.name(i), f.address
	for p := i; p < f.topic.partitions; p += f.Workers {
		job.Mine = append(job.Mine, p)
	}
	f.workers[i], err = spawn(workerArg, job)
	return err
}

func (f *fleet) did(out io.Writer, what string) {
	e := event{time.Since(f.subscriber.begin), what}
	f.events = append(f.events, e)
	fmt.Fprintf(out, "%5.1f s  == %s ==\n", e.at.Seconds(), what)
}

func (f *fleet) close() {
	for _, w := range f.workers {
		if w != nil {
			w.end()
		}
	}
	if f.coordinator != nil {
		f.coordinator.end()
	}
	if f.subscriber != nil {
		f.subscriber.close()
	}
	if f.topic != nil {
		f.topic.conn.Close()
	}
	_ = os.RemoveAll(f.dir)
}

// start starts the subscriber and the coordinator, makes and fills the topic, and starts the
// workers.
func (f *fleet) start(ctx context.Context, url string) (err error) {
	if f.dir, err = os.MkdirTemp("", "delivery-"); err != nil {
		return err
	}
	if err = writeLimits(f.dir, f.settings); err != nil {
		return err
	}
	f.address = "127.0.0.1:0"
	if err = f.startCoordinator(); err != nil {
		return err
	}
	stream := "delivery-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	if f.topic, err = connect(url, stream, 2*f.Workers); err != nil {
		return err
	}
	if err = f.topic.create(ctx); err != nil {
		return err
	}
	if err = f.topic.fill(ctx, f.Messages); err != nil {
		return err
	}
	var names []string
	for i := range f.Workers {
		names = append(names, f.name(i))
	}
	if f.subscriber, err = startSubscriber(names); err != nil {
		return err
	}
	f.job = workerJob{Topic: stream, NATS: url, Subscriber: f.subscriber.url, Partitions: f.topic.partitions, Limit: f.Limit, Demand: f.Demand}
	f.workers = make([]*child, f.Workers)
	for i := range f.workers {
		if err = f.startWorker(i); err != nil {
			return err
		}
	}
	return nil
}

// step is what is done once so many messages were taken, and how long after the step before.
type step struct {
	part  float64       // of the messages
	after time.Duration // at least, since the step before
	what  string
	do    func() error
}

func (f *fleet) steps(r *result) []step {
	now := func() time.Duration { return time.Since(f.subscriber.begin) }
	const killed = 0 // the busiest
	return []step{
		{0.1, 0, "measured from here on: nine in ten messages are in partition 0", func() error { r.from = now(); return nil }},
		{0.45, 0, "the subscriber refuses everything", func() error { r.to = now(); f.subscriber.sick.Store(true); return nil }},
		{0, 1500 * time.Millisecond, "the subscriber is well again", func() error { f.subscriber.sick.Store(false); return nil }},
		{0.6, 0, "kill -9 " + f.name(killed), func() error { f.workers[killed].kill(); f.workers[killed] = nil; return nil }},
		{0, time.Second, f.name(killed) + " starts again", func() error { return f.startWorker(killed) }},
		{0.75, 0, "kill -9 the coordinator", func() error { f.coordinator.kill(); f.coordinator = nil; return nil }},
		{0, time.Second, "the coordinator starts again", f.startCoordinator},
	}
}

// deliver runs it all until each message was taken, and returns what the subscriber saw.
func (s settings) deliver(ctx context.Context, out io.Writer) (*result, error) {
	ctx, cancel := context.WithTimeout(ctx, s.longest())
	defer cancel()
	url := s.NATS
	if url == "" {
		own, stop, err := startBroker()
		if err != nil {
			return nil, err
		}
		defer stop()
		url = own
	}
	f := &fleet{settings: s}
	defer f.close()
	if err := f.start(ctx, url); err != nil {
		return nil, err
	}
	defer func() { _ = f.topic.js.DeleteStream(context.WithoutCancel(ctx), f.topic.name) }()
	fmt.Fprintf(out, "%d messages in %d partitions, %d workers, one number: %d/s (burst %d); limit/N would be %d/s\n",
		s.Messages, f.topic.partitions, s.Workers, s.Limit, s.burst(), s.Limit/s.Workers)
	return f.watch(ctx, out)
}

// watch takes the steps, samples the lag and prints a line each half second.
func (f *fleet) watch(ctx context.Context, out io.Writer) (*result, error) {
	r := &result{settings: f.settings}
	steps, last := f.steps(r), time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	sampled := time.Time{}
	for {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("delivery: %d of %d messages delivered: %w", f.subscriber.taken(), f.Messages, ctx.Err())
		case <-tick.C:
		}
		taken := f.subscriber.taken()
		if len(steps) > 0 && float64(taken) >= steps[0].part*float64(f.Messages) && time.Since(last) >= steps[0].after {
			f.did(out, steps[0].what)
			if err := steps[0].do(); err != nil {
				return nil, err
			}
			steps, last = steps[1:], time.Now()
		}
		done := taken == f.Messages && len(steps) == 0
		if done || time.Since(sampled) >= halfSecond {
			sampled = time.Now()
			lag, err := f.topic.lag(ctx)
			if err != nil {
				return nil, err
			}
			r.lags = append(r.lags, lagSample{time.Since(f.subscriber.begin), lag})
			r.line(out, f.subscriber.all())
		}
		if done {
			r.arrivals, r.events = f.subscriber.all(), f.events
			return r, nil
		}
	}
}
