package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// demand is what a tenant wants: so many streams at a time, and of which model first.
type demand struct {
	tenant  string
	model   string  // "" = one after the other
	streams float64 // of settings.Streams
	follows bool    // it takes the model that a refusal names
}

var demands = []demand{
	{tenant: "acme", model: "large", streams: 1},
	{tenant: "bolt", model: "small", streams: 1, follows: true},
	{tenant: "cedar", streams: 0.5},
}

// outcome is what became of the requests of a tenant.
type outcome struct {
	Done, Refused, Cut, Failed atomic.Int64
	Suggested                  atomic.Int64 // refusals that named another model
	Bad                        atomic.Int64 // answers without the header fields that they should have
	Sent                       atomic.Int64 // tokens of answers that have reached the client
}

// driver sends the requests of one way.
type driver struct {
	settings
	fleet    *fleet
	http     *http.Client
	outcomes map[string]*outcome
}

func newDriver(s settings, f *fleet) *driver {
	d := &driver{settings: s, fleet: f, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100}}, outcomes: map[string]*outcome{}}
	for _, w := range demands {
		d.outcomes[w.tenant] = new(outcome)
	}
	return d
}

// drive sends requests until begun is over, and returns when all streams have ended.
func (d *driver) drive(ctx context.Context, over <-chan struct{}) {
	var all sync.WaitGroup
	for _, w := range demands {
		for i := range max(1, int(w.streams*float64(d.Streams))) {
			all.Go(func() { d.client(ctx, over, w, i) })
		}
	}
	all.Wait()
}

// client sends one request after the other. The same client of another way sends the same.
func (d *driver) client(ctx context.Context, over <-chan struct{}, w demand, number int) {
	name := fnv.New64a()
	fmt.Fprint(name, w.tenant, number)
	rnd := rand.New(rand.NewPCG(d.Seed, name.Sum64()))
	for n := 0; ; n++ {
		ask := &chatRequest{
			Model: w.model, MaxTokens: defaultMaxTokens, Stream: true, Seed: rnd.Uint64(),
			Messages: []message{{"system", "You are terse."}, {"user", strings.Repeat("why? ", 20+rnd.IntN(100))}},
		}
		if w.model == "" {
			ask.Model = []string{"large", "small"}[(n+number)%2]
		}
		other := d.request(ctx, w, number, ask)
		if w.follows && other != "" {
			ask.Model = other
			other = d.request(ctx, w, number, ask)
		}
		wait := time.Duration(rnd.IntN(50)) * time.Millisecond
		if other != "" || d.outcomes[w.tenant].Refused.Load() > 0 {
			wait *= 5
		}
		select {
		case <-over:
			return
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// request sends one, to the gateway that is its client's, or to the other one when that is gone. It returns the model
// that a refusal names.
func (d *driver) request(ctx context.Context, w demand, number int, ask *chatRequest) (other string) {
	o := d.outcomes[w.tenant]
	for try := range d.fleet.gateways {
		res, err := d.post(ctx, d.fleet.gateways[(number+try)%2].addr, w.tenant, ask)
		if err != nil {
			continue
		}
		defer res.Body.Close()
		switch res.StatusCode {
		case http.StatusOK:
			if res.Header.Get("X-Ratelimit-Limit-Tokens") == "" || res.Header.Get("X-Ratelimit-Remaining-Tokens") == "" || res.Header.Get("X-Ratelimit-Reset-Tokens") == "" {
				o.Bad.Add(1)
			}
			sent, whole := readStream(bufio.NewReader(res.Body))
			o.Sent.Add(sent)
			if whole {
				o.Done.Add(1)
			} else {
				o.Cut.Add(1)
			}
			return ""
		case http.StatusTooManyRequests:
			var e chatError
			if json.NewDecoder(res.Body).Decode(&e) != nil || e.Error.Message == "" || res.Header.Get("Retry-After") == "" {
				o.Bad.Add(1)
			}
			o.Refused.Add(1)
			if e.Error.TryModel != "" {
				o.Suggested.Add(1)
			}
			return e.Error.TryModel
		}
		break
	}
	if ctx.Err() == nil {
		o.Failed.Add(1)
	}
	return ""
}

func (d *driver) post(ctx context.Context, gateway, tenant string, ask *chatRequest) (*http.Response, error) {
	data, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, gateway+"/v1/chat/completions", bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer sk-"+tenant)
	return d.http.Do(req)
}

// readStream reads the events of a stream: how many tokens have come, and whether it came to its end.
func readStream(in *bufio.Reader) (sent int64, whole bool) {
	for {
		line, err := in.ReadString('\n')
		data, isData := strings.CutPrefix(strings.TrimSpace(line), "data: ")
		var c chunk
		switch {
		case isData && data == "[DONE]":
			return sent, true
		case isData && json.Unmarshal([]byte(data), &c) == nil && c.Usage != nil:
			sent = c.Usage.CompletionTokens
		}
		if err != nil {
			return sent, false
		}
	}
}
