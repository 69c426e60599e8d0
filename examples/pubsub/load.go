package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// loadPlan is what a load generator does, as its first line of input says.
type loadPlan struct {
	URLs     []string `json:"urls"`
	Account  string   `json:"account"`
	Channels int      `json:"channels"` // one subscriber and one publishing connection each
}

// loadReport is what it says when its input ends.
type loadReport struct {
	Attempted   int64            `json:"attempted"`
	Admitted    int              `json:"admitted"`
	Cost        int64            `json:"cost"`
	Failed      int64            `json:"failed"`
	Nameless    int64            `json:"nameless"`
	WorstSecond int64            `json:"worst_second"`
	Refused     map[string]int64 `json:"refused"`
}

// runLoad is the load generator. It reads a plan, and then one rate per line, in publishes
// per second of the whole account; it ends when its input does.
func runLoad(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	var plan loadPlan
	if !lines.Scan() {
		return fmt.Errorf("pubsub: no plan for the load: %w", lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &plan); err != nil {
		return err
	}
	var rate atomic.Uint64 // bits of a float64
	t, b := newTasks(ctx), newBook()
	var ready sync.WaitGroup
	for i := range plan.Channels {
		ready.Add(1)
		t.start(func(ctx context.Context) error {
			return loadChannel(ctx, plan, i, b, ready.Done, func() float64 {
				return math.Float64frombits(rate.Load()) / float64(plan.Channels)
			})
		})
	}
	ready.Wait()
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	for lines.Scan() {
		perSecond, err := strconv.ParseFloat(strings.TrimSpace(lines.Text()), 64)
		if err != nil {
			break
		}
		rate.Store(math.Float64bits(perSecond))
	}
	t.cancel()
	if err := t.wait(); err != nil {
		return err
	}
	r := loadReport{Attempted: b.attempted, Admitted: len(b.times), Failed: b.failed, Nameless: b.nameless, WorstSecond: b.worstSecond(), Refused: b.refused}
	for _, a := range b.times {
		r.Cost += a.cost
	}
	return json.NewEncoder(out).Encode(r)
}

// loadChannel publishes to one channel at one node, and subscribes to it at another.
func loadChannel(ctx context.Context, plan loadPlan, i int, b *book, ready func(), rate func() float64) error {
	once := sync.OnceFunc(ready)
	defer once()
	name := channelName{plan.Account, "c" + strconv.Itoa(i)}
	l, err := listen(ctx, plan.URLs[(i+1)%len(plan.URLs)], name, "")
	if err != nil {
		return err
	}
	defer l.close()
	c, err := dial(ctx, plan.URLs[i%len(plan.URLs)])
	if err != nil {
		return err
	}
	defer func() { _ = c.conn.Close() }()
	var reader sync.WaitGroup
	defer reader.Wait()
	defer l.close()
	reader.Go(func() {
		for {
			if _, err := l.next(); err != nil {
				return // it is closed
			}
		}
	})
	once()
	return pace(ctx, rate, float64(i)/float64(plan.Channels), func() error {
		a, err := c.publish(name, "x")
		b.note(a, err)
		return err
	})
}
