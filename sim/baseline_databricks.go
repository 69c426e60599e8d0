package sim

import (
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
)

// Databricks is our model of Databricks' limiter of 2025 as described: a client admits
// unless the latest answer forbids it, and reports every 100 ms what it admitted and refused.
// The server's token bucket may go below zero; while it is there the answer says
// until when to refuse, which is when the bucket is at zero again. A client limits
// itself to the whole limit besides.
//
// Where the description leaves a choice: the times are of the server's clock, as
// described. A client without traffic reports nothing. The bucket is full at the
// start. A client reports at its own moment of the period, drawn at random. Reports
// carry running totals and a number, so that one that is lost or doubled counts once,
// as over a connection.
//
// The zero value has the published constants and the form that was kept in the end.
type Databricks struct {
	// ByRate is the earlier form: the answer is the part to refuse,
	// (attempted - limit)/attempted, over the last second.
	ByRate bool
	// NoLocalLimit leaves out the client's own limiter, as before it was added.
	NoLocalLimit bool
}

// Published constants: the time between reports, and the window of ByRate.
const (
	databricksBatch  = 100 * time.Millisecond
	databricksWindow = time.Second
)

// Name returns "databricks", or "databricks-rate" for the earlier form.
func (d Databricks) Name() string {
	if d.ByRate {
		return "databricks-rate"
	}
	return "databricks"
}

// Coordinator makes the server at Coordinator, and nil elsewhere.
func (d Databricks) Coordinator(env Env, setup Setup, address Address, _ int) Node {
	if address != Coordinator {
		return nil
	}
	s := &batchServer{Databricks: d, env: env, latest: map[Address]batchReport{}}
	s.bucket.at = env.Now()
	s.SetLimit(setup.Limit)
	s.bucket.level = s.bucket.burst
	return s
}

// Instance makes a client.
func (d Databricks) Instance(env Env, setup Setup, _, restart int) Enforcer {
	c := &batchClient{Databricks: d, env: env, session: restart, limit: setup.Limit.PerSecond()}
	c.local.at = env.Now()
	c.SetLimit(setup.Limit)
	c.local.level = c.local.burst
	c.next = env.Now().Add(time.Duration(1 + env.Rand().Int64N(int64(databricksBatch))))
	env.WakeAt(c.next)
	return c
}

// Messages, and their size: protobuf, gRPC's five bytes and the nine of an HTTP/2
// frame.
type (
	batchReport struct {
		session, number int
		hits, rejected  int64 // of this batch
		total           int64 // hits of the session
	}
	batchAnswer struct {
		session, number int
		rejectTil       limit.Time // by the server's clock; 0 = do not
		rejectionRate   float64
	}
)

const batchBytes = 40

type batchClient struct {
	Databricks
	env            Env
	limit          float64
	local          modelBucket
	next           limit.Time
	session        int
	number         int         // of the last report
	hits, rejected int64       // since the last report
	total          int64       // hits up to the last report
	answer         batchAnswer // the latest
}

func (c *batchClient) Receive(_ Address, message any) {
	if m, ok := message.(batchAnswer); ok && m.session == c.session && m.number > c.answer.number {
		c.answer = m
	}
}

func (c *batchClient) Wake() {
	now := c.env.Now()
	if now < c.next {
		return
	}
	c.report()
	c.next = modelNext(c.next, now, int64(databricksBatch))
	c.env.WakeAt(c.next)
}

func (c *batchClient) report() {
	if c.hits+c.rejected > 0 {
		c.number++
		c.total += c.hits
		c.env.Send(Coordinator, batchReport{c.session, c.number, c.hits, c.rejected, c.total}, batchBytes)
		c.hits, c.rejected = 0, 0
	}
}

func (c *batchClient) Take(cost int64) bool {
	now := c.env.Now()
	refuse := now < c.answer.rejectTil ||
		c.answer.rejectionRate > 0 && c.env.Rand().Float64() < c.answer.rejectionRate ||
		!c.NoLocalLimit && !c.local.take(now, float64(cost))
	if refuse {
		c.rejected += cost
		return false
	}
	c.hits += cost
	return true
}

// Share is the whole limit, less what the latest answer refuses.
func (c *batchClient) Share() float64 {
	if c.env.Now() < c.answer.rejectTil {
		return 0
	}
	return c.limit * (1 - c.answer.rejectionRate)
}

func (c *batchClient) Leave() { c.report() }

func (c *batchClient) SetLimit(l Limit) {
	c.limit = l.PerSecond()
	c.local.set(c.env.Now(), c.limit, modelBurst(l, c.limit))
}

type batchServer struct {
	Databricks
	env    Env
	bucket modelBucket
	latest map[Address]batchReport // of each client
	recent []batchArrival          // for ByRate
}

type batchArrival struct {
	at   limit.Time
	cost int64
}

func (s *batchServer) Wake() {}

func (s *batchServer) SetLimit(l Limit) {
	s.bucket.set(s.env.Now(), l.PerSecond(), modelBurst(l, l.PerSecond()))
}

func (s *batchServer) Receive(from Address, message any) {
	m, ok := message.(batchReport)
	if !ok {
		return
	}
	hits := m.hits
	if last, known := s.latest[from]; known {
		switch {
		case m.session < last.session, m.session == last.session && m.number <= last.number:
			return // a duplicate, or older than the last report, whose total includes it
		case m.session == last.session:
			hits = m.total - last.total
		}
	}
	s.latest[from] = m
	now := s.env.Now()
	s.bucket.fill(now)
	s.bucket.level -= float64(hits)
	answer := batchAnswer{session: m.session, number: m.number}
	switch {
	case s.ByRate:
		answer.rejectionRate = s.excess(now, hits+m.rejected)
	case s.bucket.level < 0:
		answer.rejectTil = s.bucket.refilled(now)
	}
	s.env.Send(from, answer, batchBytes)
}

// excess is the part of what was attempted in the window that is above the limit.
func (s *batchServer) excess(now limit.Time, cost int64) float64 {
	s.recent = append(s.recent, batchArrival{now, cost})
	start := now - limit.Time(databricksWindow)
	s.recent = slices.DeleteFunc(s.recent, func(a batchArrival) bool { return a.at <= start })
	sum := int64(0)
	for _, a := range s.recent {
		sum += a.cost
	}
	attempted := float64(sum) / databricksWindow.Seconds()
	return max(0, (attempted-s.bucket.rate)/max(attempted, modelGrain))
}

// refilled is when a bucket below zero is at zero.
func (b *modelBucket) refilled(now limit.Time) limit.Time {
	wait := -b.level / b.rate * 1e9
	if b.rate <= 0 || wait >= float64(modelNever/2) {
		return modelNever
	}
	return now + limit.Time(wait)
}
