package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// samples is how often the bill is read in a run. Not less: lines in the chart would have corners. Not more: the
// chart stays small.
const samples = 80

// budget is one that a tenant has for a month.
type budget struct {
	unit  string
	model string // "" = all
	limit string // its name in limits.yaml
}

func (b budget) String() string {
	if b.model == "" {
		return b.unit
	}
	return b.unit + " of " + b.model
}

var budgets = []budget{
	{unitMoney, "", "money/month"},
	{unitTokens, "large", "tokens/month"},
	{unitTokens, "small", "tokens/month"},
}

// spent is what a tenant has spent of the budget by the provider's bill.
func (b budget) spent(bill []entry, tenant string) int64 {
	var sum int64
	for _, e := range bill {
		switch {
		case e.User != tenant || b.model != "" && b.model != e.Model:
		case b.unit == unitMoney:
			sum += models[e.Model].cost(e.Prompt, e.Cached, e.Completion)
		default:
			sum += e.Prompt + e.Completion
		}
	}
	return sum
}

// sample is the bill at a time.
type sample struct {
	at   time.Duration
	bill []entry
}

// course is what one way has done.
type course struct {
	way      string
	samples  []sample
	outcomes map[string]*outcome
	stands   map[string][]figure // by tenant, for each of budgets: how it stands at the end, by stint
	killed   time.Duration
}

// last is the bill at the end.
func (c *course) last() []entry { return c.samples[len(c.samples)-1].bill }

type result struct {
	settings
	courses []*course
}

// over is what was spent above a budget, as a share of it.
func (c *course) over(tenant string, i int) float64 {
	f := c.stands[tenant][i]
	return max(0, float64(budgets[i].spent(c.last(), tenant)-f.Quota)/float64(f.Quota))
}

// measure has both ways take the same load, each with servers of its own, at the same time.
func (s settings) measure(ctx context.Context, dir string, out io.Writer) (*result, error) {
	r := &result{settings: s}
	var fleets []*fleet
	for _, way := range []string{byReserve, byProbe} {
		home := filepath.Join(dir, way)
		if err := os.Mkdir(home, 0o700); err != nil {
			return nil, err
		}
		f, err := startFleet(ctx, home, way, s)
		if err != nil {
			return nil, err
		}
		defer f.stop()
		fleets = append(fleets, f)
		r.courses = append(r.courses, &course{way: way})
	}
	fmt.Fprintf(out, "for %v, by two ways at a time: %d tenants, a model, stint and two gateways; one is killed after %v\n", s.For, len(demands), s.KillAt)
	failed := make([]error, len(fleets))
	var all sync.WaitGroup
	for i, f := range fleets {
		all.Go(func() { failed[i] = s.follow(ctx, f, r.courses[i]) })
	}
	all.Wait()
	return r, errors.Join(failed...)
}

// follow runs the load of one way from its beginning to the end of the last stream.
func (s settings) follow(ctx context.Context, f *fleet, c *course) error {
	d := newDriver(s, f)
	c.outcomes = d.outcomes
	over, ended := make(chan struct{}), make(chan struct{})
	begun := time.Now()
	go func() {
		defer close(ended)
		d.drive(ctx, over)
	}()
	stop, kill := time.After(s.For), time.After(s.KillAt)
	tick := time.NewTicker(s.For / samples)
	defer tick.Stop()
	var err error
	for err == nil {
		select {
		case <-tick.C:
			err = c.sample(ctx, begun, f)
			continue
		case <-kill:
			f.gateways[1].kill()
			c.killed = time.Since(begun)
			continue
		case <-stop:
			close(over)
			continue
		case <-ended:
		}
		break
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	if err := c.sample(ctx, begun, f); err != nil {
		return err
	}
	return c.ask(ctx, f)
}

func (c *course) sample(ctx context.Context, begun time.Time, f *fleet) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.model.addr+"/bill", nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	s := sample{at: time.Since(begun)}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxBody)).Decode(&s.bill); err != nil {
		return fmt.Errorf("the bill cannot be read: %w", err)
	}
	c.samples = append(c.samples, s)
	return nil
}

// ask reads how all budgets stand at stint. Nothing is taken.
func (c *course) ask(ctx context.Context, f *fleet) error {
	stint := &service{f.stint.addr, http.DefaultClient}
	c.stands = map[string][]figure{}
	for _, w := range demands {
		for _, b := range budgets {
			a, err := stint.post(ctx, "/v1/explain", about(w.tenant, b.model, b.unit, 0))
			if err != nil {
				return err
			}
			for _, l := range a.body.Limits {
				if l.Name == b.limit {
					c.stands[w.tenant] = append(c.stands[w.tenant], l)
				}
			}
		}
		if len(c.stands[w.tenant]) != len(budgets) {
			return fmt.Errorf("stint knows %d of %d budgets of %s", len(c.stands[w.tenant]), len(budgets), w.tenant)
		}
	}
	return nil
}
