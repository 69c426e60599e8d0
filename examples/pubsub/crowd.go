package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/stint-io/stint/fanout"
)

const (
	crowdAccount = "fanout"
	crowdLimit   = 125_000 // messages.maxRate of the account, in messages
	crowdSize    = 1000    // subscribers of a channel
	crowdQueue   = 64
	// Publishes per second, of both kinds: those to the crowds are twice the limit. A
	// channel may have 50.
	crowdPerSecond, crowdChannels = 250, 6
	quietPerSecond, quietChannels = 500, 50
)

// runCrowd publishes to a channel of a thousand subscribers, which costs 1,001, among
// publishes that cost 1. The subscribers are those of the service but for their sockets:
// they share this process with it.
func runCrowd(ctx context.Context, nodes int, limits string, span time.Duration) (*crowd, error) {
	s, err := NewService(Options{Nodes: nodes, Limits: limits})
	if err != nil {
		return nil, err
	}
	t := newTasks(ctx)
	t.start(s.Run)
	c := &crowd{big: newBook(), small: newBook()}
	select {
	case <-s.Ready():
		err = c.run(t, s, span)
	case <-t.ctx.Done():
	}
	t.cancel()
	if ended := t.wait(); err == nil {
		err = ended
	}
	return c, err
}

// crowd is what became of it.
type crowd struct {
	big, small *book // publishes to a crowd, and to nobody
	readers    []*reader
}

func (c *crowd) run(t *tasks, s *Service, span time.Duration) (err error) {
	if c.readers, err = gather(t, s); err != nil {
		return err
	}
	callers := newTasks(t.ctx)
	for i := range crowdChannels {
		callTo(callers, s, crowdChannel(i), i, c.big, float64(crowdPerSecond)/crowdChannels)
	}
	for i := range quietChannels {
		callTo(callers, s, channelName{crowdAccount, "quiet-" + strconv.Itoa(i)}, i, c.small, float64(quietPerSecond)/quietChannels)
	}
	timer := time.NewTimer(span)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.ctx.Done():
	}
	callers.cancel()
	return callers.wait()
}

func crowdChannel(i int) channelName {
	return channelName{crowdAccount, "crowd-" + strconv.Itoa(i)}
}

// gather lets a crowd subscribe to each of its channels, at all nodes.
func gather(t *tasks, s *Service) ([]*reader, error) {
	var readers []*reader
	for i := range crowdSize * crowdChannels {
		n := s.Nodes()[i%len(s.Nodes())]
		limiter, err := n.takers.subscriber()
		if err != nil {
			return nil, err
		}
		stream, err := n.hubs.join(crowdChannel(i%crowdChannels), fanout.StreamOptions{Limit: limiter, Queue: crowdQueue})
		if err != nil {
			return nil, err
		}
		r := &reader{channel: i % crowdChannels}
		readers = append(readers, r)
		t.start(func(ctx context.Context) error { return r.read(ctx, stream) })
	}
	return readers, nil
}

// callTo publishes to a channel, over a connection of its own.
func callTo(t *tasks, s *Service, name channelName, i int, b *book, perSecond float64) {
	t.start(func(ctx context.Context) error {
		c, err := dial(ctx, s.Nodes()[i%len(s.Nodes())].URL())
		if err != nil {
			return err
		}
		defer func() { _ = c.conn.Close() }()
		return pace(ctx, func() float64 { return perSecond }, float64(i%7)/7, func() error {
			a, err := c.publish(name, "x")
			b.note(a, err)
			return err
		})
	})
}

// reader is one subscriber of a crowd.
type reader struct {
	channel           int
	messages, dropped int64
}

func (r *reader) read(ctx context.Context, s *subscription) error {
	for {
		e, err := s.Next(ctx)
		if err != nil {
			return ctx.Err()
		}
		if r.dropped += int64(e.Gap.Dropped); e.Message {
			r.messages++
		}
	}
}

// worstSecond is the largest cost that was admitted in any second.
func (c *crowd) worstSecond() int64 { return worst(slices.Concat(c.big.times, c.small.times)) }

// refused are the refusals by limit and code, and those that lacked either.
func (c *crowd) refused() (by map[string]int64, nameless int64) {
	by = maps.Clone(c.big.refused)
	for name, n := range c.small.refused {
		by[name] += n
	}
	return by, c.big.nameless + c.small.nameless
}

func (c *crowd) print(out io.Writer) {
	costs := map[int64]int{}
	for _, a := range slices.Concat(c.big.times, c.small.times) {
		costs[a.cost]++
	}
	sent, told := int64(0), int64(0)
	for _, r := range c.readers {
		sent, told = sent+r.messages, told+r.dropped
	}
	refused, nameless := c.refused()
	most := c.worstSecond()
	fmt.Fprintf(out, "\naccount %q: publishes to %d subscribers among publishes to none, limit %d messages/s\n", crowdAccount, crowdSize, crowdLimit)
	fmt.Fprintf(out, "attempted %d and %d, admitted %d and %d; by cost %v\n", c.big.attempted, c.small.attempted, len(c.big.times), len(c.small.times), costs)
	fmt.Fprintf(out, "at most %d messages in any second, %.3f x the limit (must be at most 1.05)\n", most, float64(most)/crowdLimit)
	fmt.Fprintf(out, "refusals by limit and code: %v; without a limit, a code or a time to try again: %d; failed: %d\n", refused, nameless, c.big.failed+c.small.failed)
	fmt.Fprintf(out, "the %d subscribers were sent %d messages and told of %d that they were not, of %d x %d\n",
		len(c.readers), sent, told, len(c.big.times), crowdSize)
}
