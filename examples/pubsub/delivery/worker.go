package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stint-io/stint/client"
)

// senders is how many deliveries of a partition a worker has under way. Not fewer: each waits
// for an answer, and the limit is to be what bounds them. Not more: they are what is sent
// again when the worker is killed.
const senders = 8

// retryAfter is how long a message that the subscriber refused rests.
const retryAfter = 200 * time.Millisecond

// workerJob is what a worker is started with: one line of JSON.
type workerJob struct {
	Name        string // of the process
	Topic       string
	NATS        string
	Coordinator string
	Subscriber  string // URL
	Partitions  int    // of the topic
	Mine        []int
	Limit       int
	Demand      string
}

// The headers of a delivery.
const (
	workerHeader    = "Delivery-Worker"
	partitionHeader = "Delivery-Partition"
	permittedHeader = "Delivery-Permitted" // when the limit let it pass, in ns since the Unix epoch
)

// byLag is the way to know the demand that is only there where the broker tells the lag.
const byLag = "lag"

var estimators = map[string]client.Estimator{byLag: client.Declared, "attempted": client.Attempted, "utilisation": client.Utilisation}

// whileOpen returns a context that ends with in: a child does not outlive its parent.
func whileOpen(ctx context.Context, in io.Reader) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(ctx)
	go func() { // ends with the process at the latest
		_, _ = io.Copy(io.Discard, in)
		stop()
	}()
	return ctx, stop
}

// worker delivers the messages of some partitions.
type worker struct {
	workerJob
	limiter *client.Limiter
	http    *http.Client
}

func runWorker(ctx context.Context, in io.Reader) error {
	decoder := json.NewDecoder(in)
	var job workerJob
	if err := decoder.Decode(&job); err != nil {
		return fmt.Errorf("delivery: job: %w", err)
	}
	ctx, stop := whileOpen(ctx, in)
	defer stop()
	// Each start is an instance of its own: what the former one may still spend ends by itself.
	leases, err := client.New(client.Options{Address: job.Coordinator, Logger: slog.New(slog.DiscardHandler), Instance: job.Name + "-" + strconv.Itoa(os.Getpid())})
	if err != nil {
		return err
	}
	o := client.LimitOptions{Estimator: estimators[job.Demand], Adjust: &client.Adjustment{
		// Fast, so that a short run shows it. A worker with little to do has a dozen outcomes in
		// an interval: one that is refused as a matter of course must not slow it down.
		Interval: 500 * time.Millisecond, Convergence: 0.5, SpeedUp: 0.2, Hold: 0.3, SlowRate: float64(job.Limit) / 20, HeartbeatRate: 2,
	}}
	limiter, err := leases.Limit(limitName, o)
	if err != nil {
		return err
	}
	t, err := connect(job.NATS, job.Topic, job.Partitions)
	if err != nil {
		return err
	}
	defer t.conn.Close()
	w := &worker{job, limiter, &http.Client{Timeout: time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: senders * len(job.Mine)}}}
	var wg sync.WaitGroup
	wg.Go(func() { _ = leases.Run(ctx) }) // it has no error but the end of ctx
	defer wg.Wait()
	defer stop()
	for _, p := range job.Mine {
		c, err := t.js.Consumer(ctx, job.Topic, durable(p))
		if err != nil {
			return err
		}
		messages, err := c.Messages(jetstream.PullMaxMessages(senders))
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, messages.Stop)
		for range senders {
			wg.Go(func() { w.pump(ctx, p, messages) })
		}
	}
	if job.Demand == byLag {
		return w.declare(ctx, t)
	}
	<-ctx.Done()
	return nil
}

// declare says five times a second what the worker wants until ctx ends: to deliver within
// the next second all that its partitions lag. That is why a partition with a long lag gets
// what the others leave at once, and not as its rate rises. Never less than one a second, so
// that the first message after a pause does not wait for the next declaration.
func (w *worker) declare(ctx context.Context, t *topic) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		if lag, err := t.lag(ctx); err == nil { // else the broker is away, and the demand as before
			mine := 0
			for _, p := range w.Mine {
				mine += lag[p]
			}
			if err := w.limiter.Demand(float64(min(max(1, mine), w.Limit))); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// pump delivers one message of a partition after another until ctx ends.
func (w *worker) pump(ctx context.Context, partition int, messages jetstream.MessagesContext) {
	for ctx.Err() == nil {
		m, err := messages.Next()
		if errors.Is(err, jetstream.ErrMsgIteratorClosed) {
			return
		}
		if err != nil {
			continue // the broker is away for a moment
		}
		// While it waits the message is being worked on, however long that takes.
		if w.await(ctx, m) != nil {
			return
		}
		if w.post(ctx, partition, m) {
			w.limiter.Succeeded()
			_ = m.Ack() // where that is lost it is delivered again
		} else {
			w.limiter.Failed()
			_ = m.NakWithDelay(retryAfter)
		}
	}
}

// await waits for a permit, and tells the broker meanwhile that the message is not lost.
func (w *worker) await(ctx context.Context, m jetstream.Msg) error {
	for {
		until, cancel := context.WithTimeout(ctx, ackWait/2)
		err := w.limiter.Wait(until)
		cancel()
		if err == nil || ctx.Err() != nil || errors.Is(err, client.ErrClosed) {
			return err
		}
		_ = m.InProgress()
	}
}

// post is one delivery attempt.
func (w *worker) post(ctx context.Context, partition int, m jetstream.Msg) bool {
	permitted := time.Now()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.Subscriber, strings.NewReader(string(m.Data())))
	if err != nil {
		return false
	}
	req.Header.Set(workerHeader, w.Name)
	req.Header.Set(partitionHeader, strconv.Itoa(partition))
	req.Header.Set(permittedHeader, strconv.FormatInt(permitted.UnixNano(), 10))
	resp, err := w.http.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusNoContent
}
