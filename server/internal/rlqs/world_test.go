package rlqs

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/stint-io/stint/internal/envoyfilter"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// world is one coordinator, the sessions of a server and Envoys, in virtual time. Messages between the
// server and an Envoy take some time; those of the coordinator a moment.
type world struct {
	t      testing.TB
	rand   *rand.Rand
	now    time.Duration
	terms  lease.Terms
	coord  *coordinator.Coordinator
	epoch  uint64
	envoys []*envoy
	events []happening // sorted by at
	seq    int
	up     bool
	// draining says that the server takes no streams any more.
	draining bool
	kills    int

	expired    *typev3.RateLimitStrategy // of Envoys whose assignment has expired
	expiredFor time.Duration

	sessions map[*Session]bool
	number   uint64

	central float64 // level of the one bucket that would hold the limit alone
	at      time.Duration
	worst   float64       // the most that central was below 0
	delay   time.Duration // of a message between server and Envoy, up to 1.5 times that
	sent    func(*envoy)  // is called when a message to an Envoy is on its way; nil = it is not
}

type happening struct {
	at  time.Duration
	seq int
	do  func()
}

// envoy is one Envoy with its load.
type envoy struct {
	w       *world
	index   int
	filter  *envoyfilter.Filter
	session *Session // nil = no stream
	from    *Session // of the latest assignment; nil = it has none, or the server was killed since
	reader  *reader
	lastAt  time.Duration // of the latest message to it: a stream keeps its order
	rate    float64
	next    time.Duration // request
	due     time.Duration // of the filter
	mute    bool          // messages are lost in both directions, and nobody knows
	stopped bool          // the process does not run; what is sent to it waits
	waiting []func()      // for it to run
	allowed int
	denied  int
	key     string
	id      map[string]string
}

func newWorld(t testing.TB, seed uint64, terms lease.Terms) *world {
	w := &world{
		t: t, rand: rand.New(rand.NewPCG(seed, 7)), now: time.Hour, terms: terms, epoch: 1, up: true,
		sessions: map[*Session]bool{}, delay: 2 * time.Millisecond,
	}
	w.central, w.at = terms.Burst.Float(), w.now
	w.startCoordinator(0)
	return w
}

func (w *world) startCoordinator(recovery time.Duration) {
	w.coord = coordinator.New(coordinator.Options{
		Epoch: w.epoch, Recovery: recovery,
		Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return w.terms, lease.StatusOK },
	}, limit.Time(w.now))
}

func (w *world) clock() limit.Time { return limit.Time(w.now) }

func (w *world) after(d time.Duration, do func()) {
	w.seq++
	h := happening{w.now + d, w.seq, do}
	i := len(w.events)
	for i > 0 && w.events[i-1].at > h.at {
		i--
	}
	w.events = append(w.events, happening{})
	copy(w.events[i+1:], w.events[i:])
	w.events[i] = h
}

var denyAll = &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_BlanketRule_{BlanketRule: typev3.RateLimitStrategy_DENY_ALL}}

func (w *world) addEnvoy(rate float64) *envoy {
	e := &envoy{w: w, index: len(w.envoys), id: map[string]string{"name": "web"}}
	e.key = envoyfilter.Key(e.id)
	w.envoys = append(w.envoys, e)
	e.restart()
	e.load(rate)
	return e
}

// restart makes it a new process.
func (e *envoy) restart() {
	e.lose()
	e.from = nil
	e.filter = envoyfilter.New(envoyfilter.Options{
		Domain: "edge", NoAssignment: denyAll, Expired: e.w.expired, ExpiredFor: e.w.expiredFor, Open: e.open,
		Send: func(m *pb.RateLimitQuotaUsageReports) { e.send(m) },
	})
	e.due = e.filter.Next()
}

func (e *envoy) open() bool {
	w := e.w
	if !w.up || e.mute || w.draining {
		return false
	}
	w.number++
	var s *Session
	s = NewSession(SessionOptions{
		Instance: fmt.Sprintf("rlqs-%d-%d", e.index, w.number), Number: w.number,
		Match: func(*BucketName) Targets {
			return Targets{IDs: []lease.ResourceID{{Limit: "l"}}, Rates: []fixed.Amount{w.terms.Rate}}
		},
		Send: func(p Peer, r *lease.Report) {
			w.after(100*time.Microsecond, func() { w.coordinate(r) })
		},
		Joined: func(p Peer) { w.after(0, func() { s.Connected(w.clock(), p) }) },
		Jitter: w.rand.Float64,
	}, w.clock())
	e.session, e.reader = s, &reader{}
	w.sessions[s] = true
	return true
}

func (w *world) coordinate(e lease.Event) {
	if !w.up {
		return
	}
	for _, g := range w.coord.Step(w.clock(), e) {
		own := g
		own.Shares = append([]lease.Share(nil), g.Shares...)
		w.after(100*time.Microsecond, func() {
			for s := range w.sessions {
				for p, m := range s.members {
					if m.who == own.To {
						s.Granted(w.clock(), p, &own)
					}
				}
			}
		})
	}
}

func (e *envoy) send(m *pb.RateLimitQuotaUsageReports) {
	s, r := e.session, e.reader
	if s == nil || e.mute {
		return
	}
	e.w.after(e.w.delay, func() {
		if s.gone || !e.w.sessions[s] {
			return
		}
		usages, err := r.read(m)
		if err != nil {
			e.w.t.Fatal(err)
		}
		s.Report(e.w.clock(), usages)
	})
}

// receive carries actions to the Envoy, in order.
func (e *envoy) receive(s *Session, actions []Action) {
	if len(actions) == 0 || e.mute {
		return
	}
	m := response(actions)
	if e.w.sent != nil {
		e.w.sent(e)
	}
	at := max(e.w.now+e.w.delay/2+time.Duration(e.w.rand.Int64N(int64(e.w.delay)+1)), e.lastAt)
	e.lastAt = at
	take := func() {
		if e.session == s {
			e.filter.Receive(e.w.now, m)
			e.from = s
			e.due = e.filter.Next()
		}
	}
	e.w.after(at-e.w.now, func() {
		if e.stopped {
			e.waiting = append(e.waiting, take)
			return
		}
		take()
	})
}

// halt stops the process of an Envoy, and resume goes on with it.
func (e *envoy) halt() { e.stopped = true }

func (e *envoy) resume() {
	e.stopped, e.next = false, e.w.now
	for _, take := range e.waiting {
		take()
	}
	e.waiting = nil
}

// lose ends the stream, as both sides see.
func (e *envoy) lose() {
	if e.session != nil {
		e.session.Lost(e.w.clock())
		e.session = nil
	}
	if e.filter != nil {
		e.filter.Closed()
	}
}

// covered holds the session of the latest assignment to what the Envoy may use of it: the session counts at least that as
// in use, whether the stream has ended or not.
func (e *envoy) covered() {
	b := e.filter.Assigned(e.key).GetTokenBucket()
	if b == nil || e.from == nil || e.filter.Next() <= e.w.now {
		return
	}
	rate := float64(b.GetTokensPerFill().GetValue()) / float64(b.GetFillInterval().GetSeconds())
	most := lease.Capacity{}
	if e.w.sessions[e.from] {
		for _, q := range e.from.all {
			use := q.inUse(e.w.clock())
			most.Rate, most.Burst = max(most.Rate, use.Rate), max(most.Burst, use.Burst)
		}
	}
	if rate > most.Rate.Float()*1.001 || float64(b.GetMaxTokens()) > most.Burst.Float() {
		e.w.t.Fatalf("at %v an Envoy may use %.3f/s and %d tokens, and its session counts %.3f/s and %.0f as in use",
			e.w.now, rate, b.GetMaxTokens(), most.Rate.Float(), most.Burst.Float())
	}
}

// load sets the requests per second, at random times.
func (e *envoy) load(rate float64) {
	e.rate = rate
	e.next = e.w.now + e.gap()
}

func (e *envoy) gap() time.Duration {
	if e.rate <= 0 {
		return math.MaxInt64 / 2
	}
	return time.Duration(e.w.rand.ExpFloat64() / e.rate * float64(time.Second))
}

// request makes one, and says whether it is the first of its filter, which then has something to do.
func (e *envoy) request() (first bool) {
	w := e.w
	first = !e.filter.Has(e.key)
	if e.filter.Request(w.now, e.key, e.id) {
		e.allowed++
		w.admit()
	} else {
		e.denied++
	}
	if first {
		e.due = e.filter.Next()
	}
	e.next = w.now + e.gap()
	return first
}

// admit takes a token of the one bucket that would hold the limit.
func (w *world) admit() {
	w.central = min(w.terms.Burst.Float(), w.central+w.terms.Rate.Float()*(w.now-w.at).Seconds()) - 1
	w.at = w.now
	w.worst = max(w.worst, -w.central)
}

// run goes on for a time.
func (w *world) run(d time.Duration) {
	end := w.now + d
	for {
		at := w.next(end)
		if w.requests(at) {
			continue
		}
		if at > w.now+1 {
			w.now = at - 1 // until then nothing changes but the time
			w.covered()
		}
		if w.now = max(w.now, at); at >= end {
			return
		}
		for len(w.events) > 0 && w.events[0].at <= w.now {
			h := w.events[0]
			w.events = w.events[1:]
			h.do()
		}
		if w.up && time.Duration(w.coord.Next()) <= w.now {
			w.coordinate(lease.Tick{})
		}
		w.advance()
		w.covered()
		for _, e := range w.envoys {
			if !e.stopped && e.due <= w.now {
				e.filter.Tick(w.now)
				e.due = e.filter.Next()
			}
		}
	}
}

// next returns when something happens that is no request, at the latest at end.
func (w *world) next(end time.Duration) time.Duration {
	at := end
	if len(w.events) > 0 {
		at = min(at, w.events[0].at)
	}
	if w.up {
		at = min(at, time.Duration(w.coord.Next()))
	}
	for s := range w.sessions {
		at = min(at, time.Duration(s.Next()))
	}
	for _, e := range w.envoys {
		if !e.stopped {
			at = min(at, e.due)
		}
	}
	return at
}

// requests makes all requests before a time, in their order, until one has something else happen sooner.
func (w *world) requests(before time.Duration) (sooner bool) {
	for {
		var first *envoy
		for _, e := range w.envoys {
			if !e.stopped && (first == nil || e.next < first.next) {
				first = e
			}
		}
		if first == nil || first.next >= before {
			return false
		}
		w.now = max(w.now, first.next)
		if first.request() {
			return true
		}
	}
}

// covered holds the sessions to what the Envoys that run may use.
func (w *world) covered() {
	for _, e := range w.envoys {
		if !e.stopped {
			e.covered()
		}
	}
}

// advance steps the sessions, in the order of their streams.
func (w *world) advance() {
	for _, e := range w.envoys {
		if s := e.session; s != nil && time.Duration(s.Next()) <= w.now {
			e.receive(s, s.Advance(w.clock()))
		}
	}
	for s := range w.sessions {
		if s.gone && time.Duration(s.Next()) <= w.now {
			s.Advance(w.clock())
		}
		if s.Done() {
			s.Leave(w.clock())
			delete(w.sessions, s)
		}
	}
}

// terms is a limit.
func termsOf(rate, burst int64) lease.Terms {
	return lease.Terms{Rate: fixed.Whole(rate), Burst: fixed.Whole(burst)}
}

// kill ends the server and its coordinator without a word, and start begins them anew: the coordinator
// waits for the leases of the former one.
func (w *world) kill() {
	w.up = false
	w.kills++
	clear(w.sessions)
	for _, e := range w.envoys {
		e.session, e.from = nil, nil
		e.filter.Closed()
	}
}

// drain stops the server: it ends all assignments and gives everything back before it ends.
func (w *world) drain() {
	w.draining = true
	for _, e := range w.envoys {
		if s := e.session; s != nil {
			e.receive(s, s.Drain(w.clock()))
		}
	}
	w.run(Delivery)
	for _, e := range w.envoys {
		e.lose()
	}
	w.run(2 * housekeeping)
	w.up, w.draining = false, false
	if len(w.sessions) > 0 {
		w.t.Error("a server that stops has not given everything back")
	}
}

// startClean begins a server anew to which nothing is lent.
func (w *world) startClean() {
	w.up = true
	w.epoch++
	w.startCoordinator(0)
}

func (w *world) start() {
	w.up = true
	w.epoch++
	w.startCoordinator(lease.DefaultLease + lease.DefaultLease/lease.DriftMargin)
}
