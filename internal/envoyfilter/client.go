package envoyfilter

import (
	"context"
	"sync"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"
)

// Client is a Filter with the clock of the machine and a stream over a connection. Its methods are safe
// for concurrent use. Make it with NewClient, and Run it.
type Client struct {
	conn   grpc.ClientConnInterface
	begin  time.Time
	ctx    context.Context // of Run
	wake   chan struct{}
	stream chan pb.RateLimitQuotaService_StreamRateLimitQuotasClient // one that was opened
	ready  chan struct{}                                             // closed when Run has begun

	mu      sync.Mutex
	filter  *Filter
	current pb.RateLimitQuotaService_StreamRateLimitQuotasClient
	end     context.CancelFunc // of current
	err     error              // of the latest stream
	watch   func(*pb.RateLimitQuotaResponse)
}

// NewClient returns a client of a server. Open and Send of the options are set here. watch is called
// with each response, if it is not nil.
func NewClient(conn grpc.ClientConnInterface, o Options, watch func(*pb.RateLimitQuotaResponse)) *Client {
	c := &Client{
		conn: conn, begin: time.Now(), watch: watch, wake: make(chan struct{}, 1), ready: make(chan struct{}),
		stream: make(chan pb.RateLimitQuotaService_StreamRateLimitQuotasClient, 1),
	}
	o.Open, o.Send = c.open, func(m *pb.RateLimitQuotaUsageReports) {
		_ = c.current.Send(m) // Recv says why
	}
	c.filter = New(o)
	return c
}

// now is the time since the client was made, with an hour before it: Envoy's clock is that of its host.
func (c *Client) now() time.Duration { return time.Hour + time.Since(c.begin) }

func (c *Client) open() bool {
	ctx, cancel := context.WithCancel(c.ctx)
	stream, err := pb.NewRateLimitQuotaServiceClient(c.conn).StreamRateLimitQuotas(ctx)
	if err != nil {
		cancel()
		c.err = err
		return false
	}
	c.current, c.end = stream, cancel
	c.stream <- stream
	return true
}

// Request decides one request of a bucket.
func (c *Client) Request(key string, id map[string]string) (allowed bool) {
	<-c.ready
	c.mu.Lock()
	defer c.mu.Unlock()
	first := !c.filter.Has(key)
	allowed = c.filter.Request(c.now(), key, id)
	if first {
		select {
		case c.wake <- struct{}{}:
		default:
		}
	}
	return allowed
}

// Run keeps the stream and the timers until ctx ends, and returns when all that it started has ended.
func (c *Client) Run(ctx context.Context) {
	c.ctx = ctx
	close(c.ready)
	var reading sync.WaitGroup
	defer reading.Wait()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		c.mu.Lock()
		c.filter.Tick(c.now())
		next := c.filter.Next()
		c.mu.Unlock()
		if next != never {
			timer.Reset(max(0, next-c.now()))
		}
		select {
		case <-ctx.Done():
			return
		case stream := <-c.stream:
			reading.Go(func() { c.read(stream) })
		case <-c.wake:
		case <-timer.C:
		}
	}
}

// read applies what comes, until the stream ends.
func (c *Client) read(stream pb.RateLimitQuotaService_StreamRateLimitQuotasClient) {
	for {
		m, err := stream.Recv()
		c.mu.Lock()
		if c.current != stream {
			c.mu.Unlock()
			return
		}
		if err != nil {
			c.err = err
			c.filter.Closed()
			c.end()
			c.mu.Unlock()
			return
		}
		c.filter.Receive(c.now(), m)
		c.mu.Unlock()
		if c.watch != nil {
			c.watch(m)
		}
		select {
		case c.wake <- struct{}{}: // something may expire sooner
		default:
		}
	}
}

// Break ends the stream, as a connection that breaks. The filter opens another one at its next report.
func (c *Client) Break() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		c.filter.Closed()
		c.current = nil
		c.end()
	}
}

// Err is how the latest stream ended, or why none could be opened.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Stats returns the totals of the filter.
func (c *Client) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.filter.Stats()
}
