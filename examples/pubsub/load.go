package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
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
	// Bystander is a server that has nothing to do with the service.
	Bystander string `json:"bystander"`
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

// aim is what is published, and where to, at this moment.
type aim struct {
	perSecond float64 // of the whole account
	bystander bool
}

// runLoad is the load generator. It reads a plan, and then a rate per line, in publishes per
// second of the whole account, with the word "bystander" behind it if they go there; it ends
// when its input does.
func runLoad(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	var plan loadPlan
	if !lines.Scan() {
		return fmt.Errorf("pubsub: no plan for the load: %w", lines.Err())
	}
	if err := json.Unmarshal(lines.Bytes(), &plan); err != nil {
		return err
	}
	var now atomic.Pointer[aim]
	now.Store(&aim{})
	t, b := newTasks(ctx), newBook()
	var ready sync.WaitGroup
	for i := range plan.Channels {
		ready.Add(1)
		t.start(func(ctx context.Context) error {
			return loadChannel(ctx, plan, i, b, ready.Done, now.Load)
		})
	}
	ready.Wait()
	if _, err := fmt.Fprintln(out, "ready"); err != nil {
		return err
	}
	for t.ctx.Err() == nil && lines.Scan() {
		text, bystander := strings.CutSuffix(lines.Text(), " bystander")
		perSecond, err := strconv.ParseFloat(text, 64)
		if err != nil {
			break
		}
		now.Store(&aim{perSecond, bystander})
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
func loadChannel(ctx context.Context, plan loadPlan, i int, b *book, ready func(), now func() *aim) error {
	once := sync.OnceFunc(ready)
	defer once()
	name := channelName{plan.Account, "c" + strconv.Itoa(i)}
	l, err := listen(ctx, plan.URLs[(i+1)%len(plan.URLs)], name, "")
	if err != nil {
		return err
	}
	defer l.close()
	var here, there *caller
	defer func() {
		for _, c := range []*caller{here, there} {
			if c != nil {
				_ = c.conn.Close()
			}
		}
	}()
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
	rate := func() float64 { return now().perSecond / float64(plan.Channels) }
	return pace(ctx, rate, float64(i)/float64(plan.Channels), func() (err error) {
		c, url := &here, plan.URLs[i%len(plan.URLs)]
		bystander := now().bystander
		if bystander {
			c, url = &there, plan.Bystander
		}
		// Not before: a server closes a connection that asks nothing.
		if *c == nil {
			if *c, err = dial(ctx, url); err != nil {
				return err
			}
		}
		a, err := (*c).publish(name, "x")
		if !bystander {
			b.note(a, err)
		}
		return err
	})
}
