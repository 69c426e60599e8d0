package client

import (
	"context"
	"errors"
	"fmt"
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
	sentOn  bool               // to another coordinator; set before the loop is told that it is lost
	heard   bool               // a coordinator, or a member, has answered; set before the loop is told that it is lost
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
	// longestRedirectPause bounds the pause after a coordinator that another one named does not
	// answer: it has gone, and who named it will name its successor within about a second.
	longestRedirectPause = 4 * firstPause
	// silence is how long a stream may bring nothing before the client tries another address, if
	// it knows one. Not shorter: a grant comes each second at least, and a member of a cluster
	// that does not lead yet may wait that long for an election. Not longer: the coordinator may
	// stand still with its connections open, and leases last five seconds.
	silence = 2500 * time.Millisecond
	// outbox is how many reports may wait for a slow stream. What does not fit is
	// lost, as on a network: it is reported again.
	outbox = 16
)

// errSilent ends a stream that brought nothing for that long.
var errSilent = fmt.Errorf("client: the coordinator is connected and has said nothing for %v", silence)

// connect keeps a stream to the coordinator, until ctx ends. A stream that is there
// then lasts until its reports are closed and sent, or until hard ends.
func (a *lane) connect(ctx, hard context.Context) {
	pause, next, redirects, sentOn := firstPause, 0, 0, false
	address := a.client.addresses[0]
	for ctx.Err() == nil {
		master, answered, err := a.hold(ctx, hard, address)
		if answered {
			pause, redirects, sentOn = firstPause, 0, false
		}
		if ctx.Err() != nil {
			return
		}
		if master != "" && redirects < maxRedirects {
			redirects++
			address, sentOn = master, true
			continue
		}
		if silent := errors.Is(err, errSilent); silent || !answered {
			next++
			if silent && a.client.addresses[next%len(a.client.addresses)] == address {
				next++ // a second silence there would outlast the leases
			}
		}
		redirects = 0
		a.cause.Store(&err)
		a.logOutage(ctx, address, err, pause)
		address = a.client.addresses[next%len(a.client.addresses)]
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause - time.Duration(rand.Int64N(int64(pause)/2))):
		}
		most := longestPause
		if sentOn && master == "" {
			most = longestRedirectPause
		}
		sentOn = false
		pause = min(2*pause, most)
	}
}

// hold opens one stream and passes on what comes, until it ends. answered says whether a
// grant came; master is where the coordinator is, if it is elsewhere.
func (a *lane) hold(ctx, hard context.Context, address string) (master string, answered bool, err error) {
	life, end := context.WithCancelCause(hard)
	cancel := func() { end(nil) }
	defer cancel()
	heard := func() {}
	stop := context.AfterFunc(ctx, cancel)
	if len(a.client.addresses) > 1 || address != a.client.addresses[0] {
		silent := time.AfterFunc(silence, func() { end(errSilent) })
		defer silent.Stop()
		heard = func() { silent.Reset(silence) }
	}
	stream, err := a.client.opts.Transport.Connect(withShard(life, a.shard), address)
	if err == nil && !stop() {
		stream.Close()
		return "", false, ctx.Err()
	}
	if err != nil {
		if a.link.CompareAndSwap(linkNew, linkDown) {
			a.failed.Store(true)
			a.nudge()
		}
		return "", false, err
	}
	k := &link{stream: stream, reports: make(chan *lease.Report, outbox)}
	select {
	case a.loop.links <- k:
	case <-ctx.Done():
		stream.Close()
		return "", false, ctx.Err()
	}
	sent := make(chan struct{})
	go func() { // ends when the loop closes the reports, which lost makes it do
		defer close(sent)
		a.write(k, cancel)
	}()
	defer func() {
		cancel()
		defer stream.Close()
		select {
		case a.loop.lost <- k:
		case <-hard.Done():
		}
		<-sent
	}()
	for {
		g, err := stream.Receive()
		switch {
		case err != nil:
			if context.Cause(life) == errSilent {
				err = errSilent
			}
			return "", answered, err
		case g.NotMaster:
			k.sentOn = g.Master != ""
			k.heard = k.heard || k.sentOn
			return g.Master, answered, errNotMaster
		case g.Status == lease.StatusDuplicate:
			err := fmt.Errorf("%w: set Options.Instance to a name that is not %q, or leave it empty", ErrDuplicate, a.client.member.Instance)
			a.cause.Store(&err) // before the waiters are checked
			return "", false, err
		}
		answered, k.heard = true, true
		heard()
		a.cause.Store(nil)
		a.logAnswer(ctx, address)
		select {
		case a.loop.granted <- granted{k, g}:
		case <-hard.Done():
			return "", answered, hard.Err()
		}
	}
}

// write sends reports until there are no more.
func (a *lane) write(k *link, cancel context.CancelFunc) {
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
