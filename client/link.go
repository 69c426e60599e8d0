package client

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/internal/lease"
)

// Transport connects to coordinators. Its types are of this module: others use gRPC,
// which is the default.
type Transport interface {
	// Connect opens a stream to the coordinator at address. The stream lives until
	// ctx ends.
	Connect(ctx context.Context, address string) (Stream, error)
}

// Stream carries the messages of one instance. Send and Receive are called by one
// goroutine each, and may block.
type Stream interface {
	// Send sends a report, which it may keep.
	Send(r *lease.Report) error
	// CloseSend says that no more reports come.
	CloseSend() error
	// Receive waits for a grant. An error ends the stream.
	Receive() (*lease.Grant, error)
	// Close ends what belongs to the stream. It is the last call.
	Close()
}

// link is one stream while it lasts.
type link struct {
	stream  Stream
	reports chan *lease.Report // closed by the loop, which alone sends
}

type granted struct {
	from  *link
	grant *lease.Grant
}

// The pauses between tries to connect, of which a random part of a half is left out.
const (
	// Not shorter: a fleet that lost its coordinator would hammer the next one. Not
	// longer: leases run meanwhile.
	firstPause = 50 * time.Millisecond
	// Not longer: an instance whose link was cut has its share back within two seconds
	// of the mending. Not shorter: instances renew as often, so a coordinator that
	// serves a fleet can answer its tries as well.
	longestPause = lease.DefaultRefresh
	// maxRedirects is how often in a row one coordinator may send the client to
	// another, without a pause.
	maxRedirects = 5
	// outbox is how many reports may wait for a slow stream. What does not fit is
	// lost, as on a network: it is told again.
	outbox = 16
)

// connect keeps a stream to the coordinator, until ctx ends. A stream that is there
// then lasts until its reports are closed and sent, or until hard ends.
func (c *Client) connect(ctx, hard context.Context) {
	pause, next, redirects := firstPause, 0, 0
	address := c.addresses[0]
	for ctx.Err() == nil {
		master, heard, err := c.hold(ctx, hard, address)
		if heard {
			pause, redirects = firstPause, 0
		}
		if ctx.Err() != nil {
			return
		}
		if master != "" && redirects < maxRedirects {
			redirects++
			address = master
			continue
		}
		if !heard {
			next++
		}
		redirects = 0
		c.cause.Store(&err)
		c.log.LogAttrs(ctx, slog.LevelWarn, "no connection to the coordinator", slog.String("address", address), slog.Any("error", err), slog.Duration("next_try_in", pause))
		address = c.addresses[next%len(c.addresses)]
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause - time.Duration(rand.Int64N(int64(pause)/2))):
		}
		pause = min(2*pause, longestPause)
	}
}

// hold opens one stream and passes on what comes, until it ends. heard says whether a
// grant came; master is where the coordinator is, if it is elsewhere.
func (c *Client) hold(ctx, hard context.Context, address string) (master string, heard bool, err error) {
	life, cancel := context.WithCancel(hard)
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	stream, err := c.opts.Transport.Connect(life, address)
	if err == nil && !stop() {
		stream.Close()
		return "", false, ctx.Err()
	}
	if err != nil {
		if c.link.CompareAndSwap(linkNew, linkDown) {
			c.failed.Store(true)
			c.nudge()
		}
		return "", false, err
	}
	k := &link{stream: stream, reports: make(chan *lease.Report, outbox)}
	select {
	case c.loop.links <- k:
	case <-ctx.Done():
		stream.Close()
		return "", false, ctx.Err()
	}
	sent := make(chan struct{})
	go func() { // ends when the loop closes the reports, which lost makes it do
		defer close(sent)
		c.write(k, cancel)
	}()
	defer func() {
		cancel()
		defer stream.Close()
		select {
		case c.loop.lost <- k:
		case <-hard.Done():
		}
		<-sent
	}()
	for {
		g, err := stream.Receive()
		switch {
		case err != nil:
			return "", heard, err
		case g.NotMaster:
			return g.Master, heard, errNotMaster
		case g.Status == lease.StatusDuplicate:
			err := fmt.Errorf("%w: set Options.Instance to a name that is not %q, or leave it empty", ErrDuplicate, c.member.Instance)
			c.cause.Store(&err) // before those who wait are looked at
			return "", false, err
		}
		heard = true
		c.cause.Store(nil)
		select {
		case c.loop.granted <- granted{k, g}:
		case <-hard.Done():
			return "", heard, hard.Err()
		}
	}
}

// write sends reports until there are no more.
func (c *Client) write(k *link, cancel context.CancelFunc) {
	failed := false
	for r := range k.reports {
		if !failed && k.stream.Send(r) != nil {
			failed = true
			cancel() // Receive says why
		}
	}
	if failed || k.stream.CloseSend() != nil {
		cancel()
	}
}
