package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	loudAccount      = "loud"
	neighbourAccount = "neighbour"
	// loudLimit is messages.maxRate of the loud account in limits.yaml, in messages: with one
	// subscriber on each of its channels that is half as many publishes.
	loudLimit    = 100
	loudBurst    = 5
	loudChannels = 200
	// The neighbour publishes as many per second as make a p99 of a phase mean something.
	neighbourChannels  = 10
	neighbourPerSecond = 300
)

// demoOptions are how long a demonstration takes.
type demoOptions struct {
	nodes  int
	limits string
	rounds int           // of three phases
	phase  time.Duration // of each
	times  float64       // the breach, in limits
	limit  int           // messages.maxRate of the loud account; 0 = loudLimit
}

// limitsFile returns a limits file in which the loud account has its limit, and what
// removes it.
func (o *demoOptions) limitsFile() (name string, remove func(), err error) {
	if o.limit == loudLimit {
		return o.limits, func() {}, nil
	}
	text, err := os.ReadFile(o.limits)
	if err != nil {
		return "", nil, err
	}
	was := fmt.Sprintf("{account: %s}, rate: %d/s", loudAccount, loudLimit)
	if o.limit < 1 || strings.Count(string(text), was) != 1 {
		return "", nil, fmt.Errorf("pubsub: %s has no %q to put a limit of %d in its place", o.limits, was, o.limit)
	}
	dir, err := os.MkdirTemp("", "pubsub-")
	if err != nil {
		return "", nil, err
	}
	name = filepath.Join(dir, "limits.yaml")
	is := fmt.Sprintf("{account: %s}, rate: %d/s", loudAccount, o.limit)
	err = os.WriteFile(name, []byte(strings.Replace(string(text), was, is, 1)), 0o600)
	return name, func() { _ = os.RemoveAll(dir) }, err
}

// The phases. In the second one the same load goes to another process, which refuses at once
// and has nothing to do with the service: what the neighbour notices of that is the machine,
// which all of them share here.
const (
	phaseIdle      = "idle"
	phaseElsewhere = "elsewhere"
	phaseBreach    = "breach"
)

// sample is the neighbour's latencies in one phase.
type sample struct {
	mu   sync.Mutex
	took []time.Duration
}

func (s *sample) add(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.took = append(s.took, d)
}

// reset returns what has been added, in ascending order, and begins anew.
func (s *sample) reset() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	took := s.took
	s.took = nil
	slices.Sort(took)
	return took
}

// quantile of durations in ascending order; 0 if there are none.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, max(0, int(math.Ceil(q*float64(len(sorted))))-1))]
}

// runDemo shows an account at a hundred times its limit, and what its neighbour notices of
// it. Service, load and neighbour are processes of their own.
func runDemo(ctx context.Context, o demoOptions, out io.Writer) (err error) {
	o.limit = cmp.Or(o.limit, loudLimit)
	limits, remove, err := o.limitsFile()
	if err != nil {
		return err
	}
	defer remove()
	service, err := startChild(ctx, "serve", "-nodes", strconv.Itoa(o.nodes), "-limits", limits, "-child")
	if err != nil {
		return err
	}
	defer func() {
		if ended := service.end(nil); err == nil {
			err = ended
		}
	}()
	var urls []string
	line, err := service.hear()
	if err == nil {
		err = json.Unmarshal([]byte(line), &urls)
	}
	if err != nil {
		return err
	}
	bystander, err := startChild(ctx, "bystander")
	if err != nil {
		return err
	}
	defer func() { _ = bystander.end(nil) }()
	elsewhere, err := bystander.hear()
	if err != nil {
		return err
	}
	load, err := startChild(ctx, "load")
	if err != nil {
		return err
	}
	var report loadReport
	ended := false
	defer func() {
		if !ended {
			_ = load.end(nil)
		}
	}()
	plan, err := json.Marshal(loadPlan{URLs: urls, Account: loudAccount, Channels: loudChannels, Bystander: elsewhere})
	if err != nil {
		return err
	}
	if err = load.say(string(plan)); err != nil {
		return err
	}
	if _, err = load.hear(); err != nil {
		return err
	}
	second, phase := &sample{}, &sample{}
	t := newTasks(ctx)
	for i := range neighbourChannels {
		t.start(func(ctx context.Context) error { return neighbour(ctx, urls, i, second, phase) })
	}
	fmt.Fprintf(out, "%d nodes. Account %q may have %d messages/s, and steps to %g x that; %q publishes %d/s all the time.\n",
		o.nodes, loudAccount, o.limit, o.times, neighbourAccount, neighbourPerSecond)
	took, err := phases(t, o, load, urls[0], second, phase, out)
	t.cancel()
	if failed := t.wait(); err == nil {
		err = failed
	}
	if err != nil {
		return err
	}
	ended = true
	if err := load.end(&report); err != nil {
		return err
	}
	summarise(out, o.limit, report, took)
	return nil
}

// neighbour publishes evenly to a channel at one node and reads it at another.
func neighbour(ctx context.Context, urls []string, i int, samples ...*sample) error {
	name := channelName{neighbourAccount, "n" + strconv.Itoa(i)}
	l, err := listen(ctx, urls[(i+1)%len(urls)], name, "")
	if err != nil {
		return err
	}
	c, err := dial(ctx, urls[i%len(urls)])
	if err != nil {
		l.close()
		return err
	}
	defer func() { _ = c.conn.Close() }()
	var reader sync.WaitGroup
	defer reader.Wait()
	defer l.close()
	reader.Go(func() {
		for {
			e, err := l.next()
			if err != nil {
				return // it is closed
			}
			now := time.Now()
			var m message
			if e.kind != "message" || json.Unmarshal([]byte(e.data), &m) != nil {
				continue
			}
			if sent, err := strconv.ParseInt(m.Data, 10, 64); err == nil {
				for _, s := range samples {
					s.add(time.Duration(now.UnixNano() - sent))
				}
			}
		}
	})
	return pace(ctx, func() float64 { return neighbourPerSecond / neighbourChannels }, float64(i)/neighbourChannels, func() error {
		a, err := c.publish(name, strconv.FormatInt(time.Now().UnixNano(), 10))
		if err == nil && a.status != http.StatusOK {
			err = fmt.Errorf("pubsub: the neighbour is refused by %v", a.limits)
		}
		return err
	})
}

// phases alternates, and prints a line each second.
func phases(t *tasks, o demoOptions, load *child, url string, second, phase *sample, out io.Writer) (map[string][][]time.Duration, error) {
	fmt.Fprintln(out, "\n  s phase    | loud: attempted/s  admitted/s  messages/s  refused by                          | neighbour:    /s   p50 ms   p99 ms")
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	before, begin := map[string]*tally{}, time.Now()
	all := map[string][][]time.Duration{}
	breach := strconv.FormatFloat(o.times*float64(o.limit)/2, 'f', -1, 64)
	orders := []string{strconv.Itoa(o.limit / 4)}
	names := []string{"warm-up"}
	for range o.rounds {
		names = append(names, phaseIdle, phaseElsewhere, phaseBreach)
		orders = append(orders, "0", breach+" bystander", breach)
	}
	for i, name := range names {
		if err := load.say(orders[i]); err != nil {
			return nil, err
		}
		for until := time.Now().Add(o.phase); time.Now().Before(until); {
			select {
			case <-t.ctx.Done():
				return nil, nil
			case <-tick.C:
			}
			now, err := fetchLive(t.ctx, url)
			if err != nil {
				return nil, err
			}
			row(out, time.Since(begin), name, now, before, second.reset())
			before = now
		}
		all[name] = append(all[name], phase.reset())
	}
	return all, nil
}

func fetchLive(ctx context.Context, url string) (map[string]*tally, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/live", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var all map[string]*tally
	return all, json.NewDecoder(resp.Body).Decode(&all)
}

func row(out io.Writer, at time.Duration, phase string, now, before map[string]*tally, took []time.Duration) {
	loud, was := now[loudAccount], before[loudAccount]
	if loud == nil {
		loud = newTally()
	}
	if was == nil {
		was = newTally()
	}
	var refused []string
	for _, name := range slices.Sorted(maps.Keys(loud.Refused)) {
		if n := loud.Refused[name] - was.Refused[name]; n > 0 {
			refused = append(refused, fmt.Sprintf("%s %d", name, n))
		}
	}
	fmt.Fprintf(out, "%3.0f %-9s| %17d %11d %11d  %-35s |            %5d %8.2f %8.2f\n",
		at.Seconds(), phase, loud.Attempted-was.Attempted, loud.Admitted-was.Admitted, loud.Cost-was.Cost, strings.Join(refused, ", "),
		len(took), milliseconds(quantile(took, 0.5)), milliseconds(quantile(took, 0.99)))
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }

// summarise prints what was to be shown.
func summarise(out io.Writer, loudLimit int, r loadReport, took map[string][][]time.Duration) {
	over := float64(r.WorstSecond) / float64(loudLimit)
	fmt.Fprintf(out, "\naccount %q: %d publishes attempted, %d admitted (%d messages); at most %d messages in any second, %.3f x the limit (must be at most %.2f: the burst is %d)\n",
		loudAccount, r.Attempted, r.Admitted, r.Cost, r.WorstSecond, over, 1+loudBurst/float64(loudLimit), loudBurst)
	fmt.Fprintf(out, "refusals by limit and code: %v; without a limit, a code or a time to try again: %d; failed: %d\n\n", r.Refused, r.Nameless, r.Failed)
	fmt.Fprintf(out, "neighbour, medians of %d phases each | p50 ms   p99 ms | p99 of all messages\n", len(took[phaseIdle]))
	for _, name := range []string{phaseIdle, phaseElsewhere, phaseBreach} {
		all := slices.Concat(took[name]...)
		slices.Sort(all)
		fmt.Fprintf(out, "%-36s | %6.2f %8.2f | %.2f of %d\n", name,
			milliseconds(medianOf(took[name], 0.5)), milliseconds(medianOf(took[name], 0.99)), milliseconds(quantile(all, 0.99)), len(all))
	}
	breach := float64(medianOf(took[phaseBreach], 0.99))
	fmt.Fprintf(out, "p99 during the breach: %+.0f %% of idle (must be within 10 %%); %+.0f %% of when the same load goes elsewhere on this machine\n",
		100*(breach/float64(medianOf(took[phaseIdle], 0.99))-1), 100*(breach/float64(medianOf(took[phaseElsewhere], 0.99))-1))
	for _, name := range []string{phaseIdle, phaseElsewhere, phaseBreach} {
		fmt.Fprintf(out, "p99 of each phase, %s: %s\n", name, list(took[name], 0.99))
	}
}

func medianOf(samples [][]time.Duration, q float64) time.Duration {
	var each []time.Duration
	for _, s := range samples {
		each = append(each, quantile(s, q))
	}
	slices.Sort(each)
	return quantile(each, 0.5)
}

func list(samples [][]time.Duration, q float64) string {
	var text []string
	for _, s := range samples {
		text = append(text, fmt.Sprintf("%.2f", milliseconds(quantile(s, q))))
	}
	return strings.Join(text, " ")
}
