// Package rlsload puts a rate limit service under a light, bounded load over
// gRPC and measures what it answers and what CPU time that takes it.
//
// The generator is light: requests are encoded beforehand, answers are read as
// bytes, and each is checked.
package rlsload

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/bench/internal/measure"
	"github.com/stint-io/stint/bench/internal/process"
)

// Method is the one that is called.
const Method = rls.RateLimitService_ShouldRateLimit_FullMethodName

// Request encodes a request with one descriptor of one entry. Peek asks without
// taking.
func Request(name, value string, peek bool) []byte {
	d := &common.RateLimitDescriptor{Entries: []*common.RateLimitDescriptor_Entry{{Key: name, Value: value}}}
	if peek {
		d.HitsAddend = wrapperspb.UInt64(0)
	}
	b, err := proto.Marshal(&rls.RateLimitRequest{Domain: "bench", Descriptors: []*common.RateLimitDescriptor{d}})
	if err != nil {
		panic(err) // ASCII strings always encode
	}
	return b
}

// encoded passes bytes through, in place of the protobuf codec.
type encoded struct{}

func (encoded) Name() string { return "proto" }

func (encoded) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (encoded) Unmarshal(data mem.BufferSlice, v any) error {
	b := v.(*[]byte)
	*b = append((*b)[:0], make([]byte, data.Len())...)
	data.CopyTo(*b)
	return nil
}

// Client is a set of connections to one server. Safe for concurrent use.
type Client struct {
	conns []*grpc.ClientConn
}

// Security is how a client proves who it is. The zero value is plain text.
type Security struct {
	Transport credentials.TransportCredentials // nil = plain text
	Token     string                           // sent with each request; "" = none
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (s Security) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + s.Token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (s Security) RequireTransportSecurity() bool { return true }

// Dial makes a client with the given number of connections to addr.
func Dial(addr string, conns int, s Security) (*Client, error) {
	c := &Client{}
	options := []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(encoded{}))}
	if s.Transport != nil {
		options[0] = grpc.WithTransportCredentials(s.Transport)
	}
	if s.Token != "" {
		options = append(options, grpc.WithPerRPCCredentials(s))
	}
	for range conns {
		cc, err := grpc.NewClient("passthrough:///"+addr, options...)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("rlsload: %w", err)
		}
		c.conns = append(c.conns, cc)
	}
	return c, nil
}

// Close closes all connections.
func (c *Client) Close() {
	for _, cc := range c.conns {
		_ = cc.Close()
	}
}

// Ask sends one request on the i-th connection, modulo their number. The answer
// is read into buf, which is grown as needed and returned.
func (c *Client) Ask(ctx context.Context, i int, request, buf []byte, opts ...grpc.CallOption) (Answer, []byte, error) {
	if err := c.conns[i%len(c.conns)].Invoke(ctx, Method, request, &buf, opts...); err != nil {
		return Answer{}, buf, fmt.Errorf("rlsload: %w", err)
	}
	a, ok := ReadAnswer(buf)
	if !ok {
		return a, buf, fmt.Errorf("rlsload: the answer %x is not a RateLimitResponse", buf)
	}
	return a, buf, nil
}

// Ready waits until the server, which is p, answers request, at most 10 seconds.
func (c *Client) Ready(ctx context.Context, p *process.Process, request []byte) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, errors.New("no answer within 10 s"))
	defer cancel()
	asked := make(chan error, 1)
	go func() { // ends at the latest with ctx, which is cancelled on return
		_, _, err := c.Ask(ctx, 0, request, nil, grpc.WaitForReady(true))
		asked <- err
	}()
	select {
	case err := <-asked:
		if err != nil {
			return fmt.Errorf("rlsload: %w, from %s", err, p)
		}
		return nil
	case <-p.Ended():
		cancel()
		<-asked // the end of the server is what it saw
		return fmt.Errorf("rlsload: the server has ended, %s", p)
	}
}

// Result is what one run of the load got.
type Result struct {
	Answers int64 // all of them OK, with a status of OK and a limit
	Elapsed time.Duration
	Latency measure.Latency
}

// PerSecond is the throughput.
func (r *Result) PerSecond() float64 { return float64(r.Answers) / r.Elapsed.Seconds() }

// Run keeps inFlight requests under way for d, each a random one of requests. An
// answer that is not OK ends it with an error.
func (c *Client) Run(ctx context.Context, requests [][]byte, inFlight int, d time.Duration) (*Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	results := make([]Result, inFlight)
	var all sync.WaitGroup
	start := time.Now()
	for w := range inFlight {
		all.Go(func() {
			r := &results[w]
			random := rand.New(rand.NewPCG(uint64(start.UnixNano()), uint64(w)))
			buf := make([]byte, 0, 256)
			for t := start; t.Sub(start) < d; {
				a, b, err := c.Ask(ctx, w, requests[random.IntN(len(requests))], buf)
				if err == nil && (a.Code != rls.RateLimitResponse_OK || a.Statuses != 1 || a.OK != 1) {
					err = fmt.Errorf("rlsload: got %+v, want OK with one status of OK and its limit", a)
				}
				if err != nil {
					cancel(err)
					return
				}
				buf = b
				now := time.Now()
				r.Latency.Add(now.Sub(t))
				r.Answers++
				t = now
			}
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	sum := &Result{Elapsed: time.Since(start)}
	for i := range results {
		sum.Answers += results[i].Answers
		sum.Latency.Merge(&results[i].Latency)
	}
	return sum, nil
}

// Each sends every request once, inFlight at a time, and passes each answer to
// see, which is called from several goroutines.
func (c *Client) Each(ctx context.Context, requests [][]byte, inFlight int, see func(i int, a Answer)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for w := range inFlight {
		all.Go(func() {
			var buf []byte
			for i := w; i < len(requests); i += inFlight {
				a, b, err := c.Ask(ctx, w, requests[i], buf)
				if err != nil {
					cancel(err)
					return
				}
				buf = b
				see(i, a)
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}
