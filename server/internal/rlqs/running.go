package rlqs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"

	"google.golang.org/grpc/peer"

	"github.com/stint-io/stint/internal/lease"
)

// running is a session with its goroutines: one steps it, one for each link reads grants and one writes
// reports. It outlives its stream, for as long as assignments may be in use.
type running struct {
	service *Service
	ctx     context.Context // of the links; it ends when the session is over
	cancel  context.CancelFunc
	events  chan event
	rematch chan struct{}
	lost    chan struct{} // the stream has ended
	once    sync.Once
	over    chan struct{} // the session has ended
	outbox  outbox

	stats   atomic.Pointer[SessionStats]
	buckets atomic.Int64

	// Of the goroutine that steps.
	session *Session
	links   map[Peer]*link
	linking sync.WaitGroup
}

// event is what the session is woken by.
type event struct {
	usages    []Usage
	taken     chan struct{} // closed when the usages were reported
	peer      Peer
	grant     *lease.Grant
	connected bool
	drain     chan struct{} // closed when what is to be sent last has been put
}

// instanceName is what operators find an Envoy by. Envoy does not send the name of its node.
func instanceName(ctx context.Context) string {
	name := fmt.Sprintf("%08x", rand.Uint32())
	if p, ok := peer.FromContext(ctx); ok && p.Addr.Network() != "unix" {
		name = p.Addr.String() + "-" + name
	}
	return "rlqs-" + name
}

// post hands an event to the session. It reports false when that has ended.
func (r *running) post(e event) bool {
	select {
	case r.events <- e:
		return true
	case <-r.over:
		return false
	}
}

// lose says that the stream has ended.
func (r *running) lose() { r.once.Do(func() { close(r.lost) }) }

// drain ends all assignments, and returns when Envoy has had the time to read that.
func (r *running) drain() {
	done := make(chan struct{})
	if !r.post(event{drain: done}) {
		return
	}
	select {
	case <-done:
	case <-r.over:
		return
	}
	<-time.After(Delivery)
}

// run steps the session until nothing of it is in use.
func (r *running) run() {
	defer r.linking.Wait()
	defer r.cancel()
	defer close(r.over)
	timer := time.NewTimer(0)
	defer timer.Stop()
	ended, end := r.lost, r.ctx.Done()
	r.note()
	for {
		now := r.service.now()
		if actions := r.session.Advance(now); len(actions) > 0 {
			r.outbox.put(actions)
		}
		if r.outbox.stalled() > Delivery {
			r.lose()
		}
		r.note()
		if r.session.Done() {
			break
		}
		timer.Reset(max(0, time.Duration(r.session.Next()-r.service.now())))
		select {
		case e := <-r.events:
			r.take(e)
		case <-r.rematch:
			r.session.Rematch(r.service.now())
		case <-ended:
			r.session.Lost(r.service.now())
			ended = nil
		case <-end:
			// The server is at its end, and the streams are: what is assigned may be in use, so the
			// leases are not given back, and end by themselves.
			return
		case <-timer.C:
		}
	}
	r.session.Leave(r.service.now())
	r.farewell()
}

// take steps the session with an event, and with those that wait behind it.
func (r *running) take(e event) {
	for {
		now := r.service.now()
		switch {
		case e.drain != nil:
			r.outbox.put(r.session.Drain(now))
			close(e.drain)
		case e.grant != nil:
			e.grant.To = r.session.Member(e.peer)
			r.session.Granted(now, e.peer, e.grant)
		case e.connected:
			r.session.Connected(now, e.peer)
		default:
			r.session.Report(now, e.usages)
			close(e.taken)
		}
		select {
		case e = <-r.events:
		default:
			return
		}
	}
}

func (r *running) note() {
	st := r.session.Stats()
	r.stats.Store(&st)
	r.buckets.Store(int64(r.session.Buckets()))
}

// farewellWithin is how long the last reports may take.
const farewellWithin = 200 * time.Millisecond

// farewell waits until the last reports are sent, for a while. The coordinator ends the streams then.
func (r *running) farewell() {
	deadline := time.NewTimer(farewellWithin)
	defer deadline.Stop()
	for _, l := range r.links {
		select {
		case <-l.left:
		case <-deadline.C:
			return
		}
	}
}

// outbox is what a stream sends. What was not sent yet is replaced by what is newer of the same bucket,
// so a slow reader costs no more than one message about all its buckets.
type outbox struct {
	mu      sync.Mutex
	pending []Action
	place   map[*BucketName]int
	since   time.Time // when the write that runs began; zero = none runs
	wake    chan struct{}
}

func (o *outbox) put(actions []Action) {
	o.mu.Lock()
	if o.place == nil {
		o.place = map[*BucketName]int{}
	}
	for _, a := range actions {
		if i, ok := o.place[a.Bucket]; ok {
			o.pending[i] = a
			continue
		}
		o.place[a.Bucket] = len(o.pending)
		o.pending = append(o.pending, a)
	}
	o.mu.Unlock()
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// maxActions is how many actions one message has, and maxActionBytes after how many bytes no other one is added. Not
// more: gRPC clients take messages up to 4 MiB by default, and the time that one takes counts as not being read.
const (
	maxActions     = 500
	maxActionBytes = 1 << 18
)

// next returns what is to be sent, and marks the beginning or the end of a write.
func (o *outbox) next() []Action {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.since = time.Time{}
	if len(o.pending) == 0 {
		return nil
	}
	n, size := 0, 0
	for n < min(len(o.pending), maxActions) && size < maxActionBytes {
		size += o.pending[n].size()
		n++
	}
	out := o.pending[:n:n]
	o.pending = append([]Action(nil), o.pending[n:]...)
	clear(o.place)
	for i := range o.pending {
		o.place[o.pending[i].Bucket] = i
	}
	o.since = time.Now()
	return out
}

// stalled is how long the write that runs has taken.
func (o *outbox) stalled() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since.IsZero() {
		return 0
	}
	return time.Since(o.since)
}

// write sends what is put until stop is closed, and what is left then.
func (o *outbox) write(srv pb.RateLimitQuotaService_StreamRateLimitQuotasServer, stop <-chan struct{}) error {
	for last := false; ; {
		for actions := o.next(); actions != nil; actions = o.next() {
			if err := srv.Send(response(actions)); err != nil {
				return err
			}
		}
		if last {
			return nil
		}
		select {
		case <-o.wake:
		case <-stop:
			last = true
		}
	}
}

// link is the stream of one member of a session to its coordinator.
type link struct {
	reports chan *lease.Report
	left    chan struct{} // closed when the last report was sent, or cannot be
}

const (
	// The pauses between tries to reach a coordinator, of which a random half is left out: those of a
	// client, for the same reasons.
	firstPause, longestPause = 50 * time.Millisecond, lease.DefaultRefresh
	// queued is how many reports wait for a slow stream. What does not fit is lost, as on a network: it
	// is reported again.
	queued = 64
)

// join begins the link of a member.
func (r *running) join(peer Peer) {
	l := &link{reports: make(chan *lease.Report, queued), left: make(chan struct{})}
	r.links[peer] = l
	r.linking.Go(func() { r.hold(peer, l) })
}

func (r *running) sendReport(peer Peer, report *lease.Report) {
	select {
	case r.links[peer].reports <- report:
	default:
	}
}

// hold keeps a stream to the coordinator until the session is over.
func (r *running) hold(peer Peer, l *link) {
	var once sync.Once
	leave := func() { once.Do(func() { close(l.left) }) }
	defer leave()
	for pause := firstPause; r.ctx.Err() == nil; pause = min(2*pause, longestPause) {
		if r.connect(peer, l, leave) {
			pause = firstPause
		}
		select {
		case <-r.ctx.Done():
		case <-l.left:
			return
		case <-time.After(pause - time.Duration(rand.Int64N(int64(pause)/2))):
		}
	}
}

// connect holds one stream. It reports whether a grant came.
func (r *running) connect(peer Peer, l *link, leave func()) (answered bool) {
	life, cancel := context.WithCancel(r.ctx)
	defer cancel()
	stream, err := r.service.opts.Connect(life, peer.Shard)
	if err != nil {
		return false
	}
	defer func() {
		if c, ok := stream.(interface{ Close() }); ok {
			c.Close()
			return
		}
		_ = stream.CloseSend() // it is over, however it went
	}()
	if !r.post(event{peer: peer, connected: true}) {
		return false
	}
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	writing.Go(func() {
		defer cancel() // Receive ends then
		for {
			select {
			case <-life.Done():
				return
			case report := <-l.reports:
				if stream.Send(report) != nil {
					return
				}
				if report.Leaving {
					leave()
					return
				}
			}
		}
	})
	for {
		g, err := stream.Receive()
		if err != nil || g.NotMaster {
			return answered
		}
		own := *g
		if !r.post(event{peer: peer, grant: &own}) {
			return answered
		}
		answered = true
	}
}
