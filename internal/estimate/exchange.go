package estimate

import (
	"context"
	"encoding/json"
	"math"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/quantile"
	"github.com/stint-io/stint/limit"
)

const (
	// exchangeEvery is how often what is learned is written, and what others have learned is read. Not longer: a kill
	// forgets so much. Not shorter: it reads all that there is.
	exchangeEvery = 30 * time.Second
	answerWithin  = 5 * time.Second
	page          = 256

	// The tables of the records. The keys are those of the entries.
	ownTable   = "estimates"
	modelTable = "modelestimates"

	// kept is how long a record is kept that nobody writes again, and rewritten after what time one is that has hardly
	// changed.
	kept      = 7 * 24 * time.Hour
	rewritten = 24 * time.Hour

	// moved is by how much an estimate, or a debt, has to have changed to be written again.
	moved = 1.0 / 16
)

func (r *record) good(c *Config) bool {
	return r.By == strings.Join(c.By, " ") && r.Quantile == c.Quantile && r.Estimate > 0 && r.Estimate <= limit.MaxCount && r.Settled > 0 && r.Owed >= 0 && r.Owed <= 1
}

// Run keeps what is learned in the records, and learns from them what other processes have, until ctx ends.
func (e *Estimator) Run(ctx context.Context) {
	if e.options.Records == nil {
		<-ctx.Done()
		return
	}
	tick := time.NewTicker(exchangeEvery)
	defer tick.Stop()
	failing := false
	exchange := func(ctx context.Context) {
		err := e.Exchange(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			e.options.Logger.Warn("what is learned of costs cannot be kept yet", "error", err)
		}
		failing = err != nil
	}
	for {
		exchange(ctx)
		select {
		case <-ctx.Done():
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
			defer cancel()
			exchange(last)
			return
		case <-tick.C:
		}
	}
}

// Exchange writes what was learned since the last time, and takes over what others have written of that of which
// nothing was settled here since. What is in the records and cannot be is passed over.
func (e *Estimator) Exchange(ctx context.Context) error {
	e.mu.Lock()
	on := len(e.conf.By) > 0
	e.mu.Unlock()
	if !on || e.options.Records == nil {
		return nil
	}
	for _, name := range []string{ownTable, modelTable} {
		if err := e.exchange(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func (e *Estimator) exchange(ctx context.Context, name string) error {
	there := map[string][]byte{}
	for after := ""; len(there) < 4*e.options.MaxKeys; {
		list, err := e.options.Records.Range(ctx, name, "", after, page)
		if err != nil {
			return err
		}
		for _, r := range list {
			there[r.Key] = r.Value
			after = r.Key
		}
		if len(list) < page {
			break
		}
	}
	for key, value := range e.compare(name, there) {
		// Another process that writes at the same moment is as right.
		if _, _, err := e.options.Records.Swap(ctx, name, key, there[key], value, kept); err != nil {
			return err
		}
	}
	return nil
}

// compare takes over what is in the records of a table, and returns what to write.
func (e *Estimator) compare(name string, there map[string][]byte) (write map[string][]byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	of := &e.table.own
	if name == modelTable {
		of = &e.table.model
	}
	now, is := e.options.Now(), map[string]record{}
	for key, value := range there {
		var r record
		if json.Unmarshal(value, &r) != nil || !r.good(&e.conf) {
			continue
		}
		is[key] = r
		n := of.entries[key]
		switch {
		case n == nil && len(of.entries) < of.most && len(key) <= maxKey:
			n = new(entry)
			of.entries[key] = n
		case n == nil || n.dirty || n.noted == r:
			continue
		}
		n.takeOver(now, &r)
	}
	write = map[string][]byte{}
	for key, n := range of.entries {
		was := n.dirty
		n.dirty = false
		if !was || n.settled < established {
			continue
		}
		r := record{strings.Join(e.conf.By, " "), e.conf.Quantile, n.value(), n.settled, min(n.owed(), 1), time.Now().Unix()}
		if stands, ok := is[key]; ok && !r.news(&stands) {
			continue
		}
		if value, err := json.Marshal(&r); err == nil { // no number of it is one that JSON lacks
			n.noted = r
			write[key] = value
		}
	}
	return write
}

// news reports whether r is worth writing where was stands.
func (r *record) news(was *record) bool {
	return math.Abs(float64(r.Estimate-was.Estimate)) > moved*float64(was.Estimate) || math.Abs(r.Owed-was.Owed) > moved ||
		r.At-was.At > int64(rewritten/time.Second) || r.At < was.At
}

// takeOver makes an entry what another process, or one before, has learned.
func (n *entry) takeOver(now time.Duration, r *record) {
	n.costs = quantile.Histogram{}
	n.begin(r.Estimate, min(weightOfRecorded, float64(r.Settled)), r.Owed, weightOfOwed*float64(r.Estimate)*float64(r.Estimate), r.Quantile)
	n.settled, n.last, n.noted = r.Settled, now, *r
}
