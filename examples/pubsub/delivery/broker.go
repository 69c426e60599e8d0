package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ackWait is after how long the broker hands a message out again that was neither
// acknowledged nor refused. Not longer: the messages of a killed worker wait for it. Not
// shorter: a message waits for its permit within it.
const ackWait = 3 * time.Second

// startBroker starts a NATS server with JetStream, which keeps its messages in a file.
func startBroker() (url string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "delivery-")
	if err != nil {
		return "", nil, err
	}
	s, err := natsserver.NewServer(&natsserver.Options{Host: "127.0.0.1", Port: natsserver.RANDOM_PORT, JetStream: true, StoreDir: dir, NoLog: true, NoSigs: true})
	if err != nil {
		_ = os.RemoveAll(dir)
		return "", nil, err
	}
	s.Start()
	stop = func() {
		s.Shutdown()
		s.WaitForShutdown()
		_ = os.RemoveAll(dir)
	}
	if !s.ReadyForConnections(10 * time.Second) {
		stop()
		return "", nil, fmt.Errorf("delivery: the broker was not ready after 10 s")
	}
	return s.ClientURL(), stop, nil
}

// topic is a stream of several partitions, with one durable consumer for each: any worker
// that is given a partition goes on where the one before it was.
type topic struct {
	conn       *nats.Conn
	js         jetstream.JetStream
	name       string
	partitions int
}

func connect(url, name string, partitions int) (*topic, error) {
	conn, err := nats.Connect(url, nats.MaxReconnects(-1))
	if err != nil {
		return nil, err
	}
	js, err := jetstream.New(conn)
	return &topic{conn, js, name, partitions}, err
}

func (t *topic) subject(partition int) string { return t.name + "." + strconv.Itoa(partition) }

func durable(partition int) string { return "partition-" + strconv.Itoa(partition) }

// create makes the stream and its consumers.
func (t *topic) create(ctx context.Context) error {
	_, err := t.js.CreateStream(ctx, jetstream.StreamConfig{Name: t.name, Subjects: []string{t.name + ".*"}})
	for p := 0; err == nil && p < t.partitions; p++ {
		_, err = t.js.CreateConsumer(ctx, t.name, jetstream.ConsumerConfig{
			Durable: durable(p), FilterSubject: t.subject(p), AckPolicy: jetstream.AckExplicitPolicy, AckWait: ackWait, MaxAckPending: 4 * senders,
		})
	}
	return err
}

// fill publishes n messages, numbered from 0. Nine in ten go to partition 0, which lags: its
// worker was away for a while. The others have the rest, the first of them the most.
func (t *topic) fill(ctx context.Context, n int) error {
	rng := rand.New(rand.NewPCG(1, 2))
	for id := range n {
		p := 0
		if rng.IntN(10) == 0 {
			for p = 1; p < t.partitions-1 && rng.IntN(2) == 0; p++ {
			}
		}
		if _, err := t.js.PublishAsync(t.subject(p), []byte(strconv.Itoa(id))); err != nil {
			return err
		}
	}
	select {
	case <-t.js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lag is how many messages of each partition are not acknowledged.
func (t *topic) lag(ctx context.Context) ([]int, error) {
	lag := make([]int, t.partitions)
	for p := range lag {
		c, err := t.js.Consumer(ctx, t.name, durable(p))
		if err != nil {
			return nil, err
		}
		info := c.CachedInfo()
		lag[p] = int(info.NumPending) + info.NumAckPending
	}
	return lag, nil
}
