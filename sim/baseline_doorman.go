package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
)

// DoormanKind is one of Doorman's algorithms.
type DoormanKind uint8

// The algorithms of which there is a model.
const (
	ProportionalShare DoormanKind = iota
	FairShare
)

// Doorman is our model of one level of YouTube's Doorman as described (design document
// and published algorithms). Each client asks every Refresh, with what it has and
// wants; the server leases a capacity for Lease. A server that restarted learns for
// the length of a lease: it grants what clients say they have, and nothing to new
// ones. A client without a lease uses the safe capacity, the capacity divided by the
// clients that the server knows. A request without an answer is repeated after 1 s,
// 1.3 s and so on, up to 60 s.
//
// Where the description leaves a choice: what a client wants is the rate that was
// attempted in the last second before it asks, when there are enough requests for a measure,
// and since it last asked otherwise; until its first answer it is an equal part. It
// asks at once when it starts and then at its own moment of the period, drawn at random. A
// lease ends at the client, and it is in safe mode then, as the design document says;
// the published client never ends one. A lease ends by the server's clock, as
// described. A grant is never below zero or above what was wanted, sums are added up
// anew each time, rates keep their fractions. The server does not learn at its first start, because no client
// can have a lease. An old version always wants an equal part. Weights are subclients.
//
// The zero value is PROPORTIONAL_SHARE with the constants of the design.
type Doorman struct {
	Kind    DoormanKind
	Refresh time.Duration // 0 = 5 s
	Lease   time.Duration // 0 = 60 s
	// Safe is the safe capacity in tokens per second; 0 = divided by the clients.
	Safe float64
}

func (d Doorman) withDefaults() Doorman {
	d.Refresh = cmp.Or(d.Refresh, 5*time.Second)
	d.Lease = cmp.Or(d.Lease, 60*time.Second)
	return d
}

// Name returns "doorman-proportional" or "doorman-fair".
func (d Doorman) Name() string {
	if d.Kind == FairShare {
		return "doorman-fair"
	}
	return "doorman-proportional"
}

// Coordinator makes the server at Coordinator, and nil elsewhere.
func (d Doorman) Coordinator(env Env, setup Setup, address Address, restart int) Node {
	if address != Coordinator {
		return nil
	}
	d = d.withDefaults()
	s := &doormanServer{Doorman: d, env: env, capacity: setup.Limit.PerSecond()}
	if restart > 0 {
		s.learned = env.Now().Add(d.Lease)
	}
	return s
}

// Instance makes a client.
func (d Doorman) Instance(env Env, setup Setup, i, restart int) Enforcer {
	c := &doormanClient{Doorman: d.withDefaults(), setup: setup, session: restart, old: modelOld(setup, i)}
	c.subclients = modelWeight(setup, i)
	c.modelLimiter = newModelLimiter(env, setup.Limit, 0)
	c.ask()
	c.refreshAt(env.Now().Add(time.Duration(1 + env.Rand().Int64N(int64(c.Refresh)))))
	return c
}

// Messages, and their sizes: protobuf, gRPC's five bytes and the nine of an HTTP/2
// frame.
type (
	doormanRequest struct {
		session, number        int
		has, wants, subclients float64
	}
	doormanAnswer struct {
		session, number int
		gets            float64
		expiry          limit.Time // by the server's clock
		safe            float64
	}
	doormanRelease struct{ session int }
)

const (
	doormanRequestBytes = 80
	doormanAnswerBytes  = 55
	doormanReleaseBytes = 50
)

// The timers of a client, beside that of its queue.
const (
	doormanRefresh = 1 + iota
	doormanExpiry
	doormanRetry
	doormanMark
)

const (
	doormanFirstRetry = time.Second
	doormanLastRetry  = time.Minute
	doormanBackOff    = 1.3
)

type doormanClient struct {
	modelLimiter
	Doorman
	setup      Setup
	session    int
	old        bool
	subclients float64

	last     modelCount // when it last asked
	mark     modelCount // a moment before it asks again
	wants    float64
	number   int // of the latest request
	answered int // number of the latest answer
	retry    time.Duration
	leased   float64
	safe     float64
}

// want puts wants to the rate that was attempted.
func (c *doormanClient) want() {
	here := modelCount{c.timers.env.Now(), c.attempted}
	c.wants = here.rate(c.last)
	if recent, enough := here.recent(c.mark, c.wants); enough && c.mark.at > c.last.at {
		c.wants = recent
	}
	if c.old || c.answered == 0 {
		c.wants = modelEqual(c.setup)
	}
	c.last = here
}

// refreshAt puts the next request to t.
func (c *doormanClient) refreshAt(t limit.Time) {
	c.timers.set(doormanRefresh, t)
	c.timers.set(doormanMark, t-limit.Time(modelRecent))
}

func (c *doormanClient) ask() {
	c.want()
	c.number++
	c.timers.env.Send(Coordinator, doormanRequest{c.session, c.number, c.leased, c.wants, c.subclients}, doormanRequestBytes)
	if c.retry == 0 {
		c.retry = doormanFirstRetry
	} else {
		c.retry = min(doormanLastRetry, time.Duration(float64(c.retry)*doormanBackOff))
	}
	c.timers.set(doormanRetry, c.timers.env.Now().Add(c.retry))
}

func (c *doormanClient) Receive(_ Address, message any) {
	m, ok := message.(doormanAnswer)
	if !ok || m.session != c.session || m.number <= c.answered {
		return
	}
	c.answered = m.number
	if m.number == c.number {
		c.retry = 0
		c.timers.set(doormanRetry, modelNever)
	}
	now := c.timers.env.Now()
	if m.expiry <= now {
		return
	}
	c.leased, c.safe = m.gets, m.safe
	c.timers.set(doormanExpiry, m.expiry)
	c.setRate(c.leased)
}

func (c *doormanClient) Wake() {
	c.timers.woken()
	now := c.timers.env.Now()
	if c.timers.due(doormanExpiry) {
		c.timers.set(doormanExpiry, modelNever)
		c.leased = 0
		c.setRate(c.safe)
	}
	// While a request is out, the retry is the next: one at a time.
	if c.timers.due(doormanMark) {
		c.timers.set(doormanMark, modelNever)
		c.mark = modelCount{now, c.attempted}
	}
	if c.timers.due(doormanRefresh) {
		c.refreshAt(modelNext(c.timers.at[doormanRefresh], now, int64(c.Refresh)))
		if c.timers.at[doormanRetry] == modelNever {
			c.ask()
		}
	}
	if c.timers.due(doormanRetry) {
		c.ask()
	}
	c.serve()
}

func (c *doormanClient) Leave() {
	c.timers.env.Send(Coordinator, doormanRelease{c.session}, doormanReleaseBytes)
}

func (c *doormanClient) SetLimit(l Limit) {
	c.setup.Limit = l
	c.setLimit(l)
}

type doormanServer struct {
	Doorman
	env      Env
	capacity float64
	learned  limit.Time // learns until
	clients  []doormanEntry
	others   []doormanLease // reused
}

type doormanEntry struct {
	doormanID
	expiry limit.Time
	doormanLease
}

// doormanID names a client. A process that restarts is another client, and what the
// former had counts until it expires or was released.
type doormanID struct {
	address Address
	session int
}

func (d doormanID) compare(e doormanID) int {
	return cmp.Or(cmp.Compare(d.address, e.address), cmp.Compare(d.session, e.session))
}

func (s *doormanServer) SetLimit(l Limit) { s.capacity = l.PerSecond() }

func (s *doormanServer) Wake() {}

func (s *doormanServer) Receive(from Address, message any) {
	now := s.env.Now()
	s.clients = slices.DeleteFunc(s.clients, func(e doormanEntry) bool { return e.expiry <= now })
	switch m := message.(type) {
	case doormanRelease:
		id := doormanID{from, m.session}
		s.clients = slices.DeleteFunc(s.clients, func(e doormanEntry) bool { return e.doormanID == id })
	case doormanRequest:
		s.answer(doormanID{from, m.session}, m, now)
	}
}

func (s *doormanServer) answer(id doormanID, m doormanRequest, now limit.Time) {
	i, found := slices.BinarySearchFunc(s.clients, id, func(e doormanEntry, id doormanID) int { return e.compare(id) })
	asks := doormanLease{m.has, m.wants, m.subclients}
	var old *doormanLease
	if found {
		old = &s.clients[i].doormanLease
	}
	if now >= s.learned {
		s.others = s.others[:0]
		for j := range s.clients {
			if !found || j != i {
				s.others = append(s.others, s.clients[j].doormanLease)
			}
		}
		asks.has = doormanGrant(s.Kind, s.capacity, s.others, old, asks)
	}
	entry := doormanEntry{id, now.Add(s.Lease), asks}
	if found {
		s.clients[i] = entry
	} else {
		s.clients = slices.Insert(s.clients, i, entry)
	}
	safe := s.Safe
	if safe == 0 {
		safe = s.capacity / float64(len(s.clients))
	}
	s.env.Send(id.address, doormanAnswer{m.session, m.number, asks.has, entry.expiry, safe}, doormanAnswerBytes)
}
