package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

const (
	// inFlight is how many calls a consumer has in flight at most, until the broker knows that they are done.
	inFlight = 128
	// inLine is how many messages of a consumer wait for the limit. What a consumer is lent follows who waits.
	inLine = 8
	// fetchers is how many messages are asked for at a time, so that the way to the broker is no limit.
	fetchers = 4
	// heartbeat is how often the broker is told that a message is still in hand.
	heartbeat = ackWait / 3
)

// job is what a consumer is told by who starts it, as a line of JSON.
type job struct {
	Name                          string
	Broker, Coordinator, Provider string // addresses
}

// consumer takes messages from the broker and sends them to the provider, at the part of the limit that it is lent.
type consumer struct {
	job
	limiter *client.Limiter
	http    *http.Client

	mu   sync.Mutex
	held map[jetstream.Msg]bool
}

// consume is a consumer's main. It works until in ends.
func consume(in io.Reader) error {
	decoder := json.NewDecoder(in)
	c := &consumer{held: map[jetstream.Msg]bool{}}
	if err := decoder.Decode(&c.job); err != nil {
		return fmt.Errorf("job: %w", err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // ends with in, for which the process lives
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	leases, err := client.New(client.Options{Address: c.Coordinator, Instance: c.Name})
	if err != nil {
		return err
	}
	if c.limiter, err = leases.Limit(topic, client.LimitOptions{}); err != nil {
		return err
	}
	c.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: inFlight}}
	conn, err := nats.Connect(c.Broker, nats.MaxReconnects(-1))
	if err != nil {
		return err
	}
	defer conn.Close()
	var wg sync.WaitGroup
	wg.Go(func() { _ = leases.Run(ctx) }) // returns when ctx ends
	wg.Go(func() { c.beat(ctx) })
	err = c.run(ctx, conn)
	stop()
	wg.Wait()
	return err
}

// run sends messages until ctx ends.
func (c *consumer) run(ctx context.Context, conn *nats.Conn) error {
	stream, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	group, err := stream.Consumer(ctx, topic, topic)
	if err != nil {
		return err
	}
	var calls sync.WaitGroup
	places, line := make(chan struct{}, inFlight), make(chan struct{}, inLine)
	for range fetchers {
		calls.Go(func() {
			for ctx.Err() == nil {
				places <- struct{}{}
				line <- struct{}{}
				// A message is fetched when it can be held: one that waited in a buffer would be delivered again.
				m, err := group.Next(jetstream.FetchContext(ctx))
				if err != nil { // there is none, or the connection is gone and comes back
					<-line
					<-places
					continue
				}
				c.hold(m, true)
				calls.Add(1)
				c.limiter.WaitFunc(1, limit.Never, func(err error) {
					admitted := time.Now()
					<-line
					go func() {
						defer calls.Done()
						defer func() { <-places }()
						defer c.hold(m, false)
						if err != nil || c.send(ctx, m.Data(), admitted) != nil || m.DoubleAck(ctx) != nil {
							_ = m.Nak() // to be delivered again
						}
					}()
				})
			}
		})
	}
	<-ctx.Done()
	c.limiter.Close() // those in line are not admitted any more
	calls.Wait()
	return nil
}

// send calls the provider with a message that was admitted at a time.
func (c *consumer) send(ctx context.Context, id []byte, admitted time.Time) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Provider, bytes.NewReader(id))
	if err != nil {
		return err
	}
	r.Header.Set("X-Admitted", strconv.FormatInt(admitted.UnixNano(), 10))
	r.Header.Set("X-Consumer", c.Name)
	resp, err := c.http.Do(r)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return errors.New(resp.Status)
	}
	return nil
}

func (c *consumer) hold(m jetstream.Msg, held bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if held {
		c.held[m] = true
	} else {
		delete(c.held, m)
	}
}

// beat has the broker wait for messages that are in hand.
func (c *consumer) beat(ctx context.Context) {
	tick := time.NewTicker(heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		for m := range c.held {
			_ = m.InProgress() // it is done at this moment, or the connection is gone and comes back
		}
		c.mu.Unlock()
	}
}
