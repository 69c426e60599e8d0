package overload

import (
	"github.com/stint-io/stint/internal/admission"
)

// Outcome is how a call, or a whole request, has ended.
type Outcome uint8

// The outcomes. A request has the one of the call that failed first.
const (
	Pending  Outcome = iota
	Answered         // well
	Refused          // by a server, before it waited
	Evicted          // by a server, for a more important one
	Expired          // it waited too long at a server, or would have been late
	Dropped          // it was not sent
	TimedOut         // its client gave up
	outcomes
)

// Request is what a client wants.
type Request struct {
	Load  *Load
	Route *Route
	User  uint64
	Class uint8
	Level uint8 // 0 to 127 inside the class

	id       uint64
	load     int
	born     int64 // of its first attempt
	sent     int64 // of this attempt
	client   int
	attempts int
	current  int // the attempt that counts; 0 while it waits for the next one
	ended    bool
	last     Outcome // how it has ended
	spent    int64   // CPU time of all its attempts at all servers
	at       []int64 // the same, by server; nil = only at the server of its route's first step
}

// rank is its importance among all.
func (r *Request) rank() int { return int(r.Class)*admission.Levels + int(r.Level) }

// Call is a request at one server.
type Call struct {
	*Request
	Server int
	Step   *Step
	Caller int // the server that calls, or the number of servers and above: a client

	// Deadline is when its client gives up, in ns since the start; 0 = never.
	Deadline int64

	parent  *Call
	attempt int   // of the request
	made    int64 // when its caller wanted it
	sentAt  int64 // 0 = it was not
	arrived int64 // at the server
	began   int64 // to run; 0 = it has not
	work    int64 // CPU time, known to nobody before
	outcome Outcome

	waits bool // it is at the server and has no core
	next  int  // of the calls that its step makes
	open  int  // calls that are not answered
	note  any  // what the caller's policy remembers of it
	item  admission.Item
	lists int // what the server's policy remembers of it
}

// Sent says whether it was delivered. One that was may still end as Dropped, when a call that it
// made was.
func (c *Call) Sent() bool { return c.sentAt > 0 }

// QueueDelay is how long it waited at the server, wherever that was.
func (c *Call) QueueDelay() int64 { return c.began - c.arrived }

// Control is a policy at work, in all processes of a run. It is told what happens, and for each
// call it calls one of [Env.Deliver] and [Env.Drop] once, and, for a call that was delivered, one
// of [Env.Run] and [Env.Refuse], then or later.
type Control interface {
	// Send is called where a call is made: by a server or a client.
	Send(c *Call)
	// Arrive is called at the server.
	Arrive(c *Call)
	// Begin is called when a call gets a core.
	Begin(c *Call)
	// Finish is called when a call that was run is about to be answered.
	Finish(c *Call)
	// Answer is called where the call was made, when the answer is there or it was dropped.
	Answer(c *Call, o Outcome)
}

// System is a policy. It must be safe for concurrent use: runs go in parallel.
type System interface {
	Name() string
	New(*Env) Control
}

// none does nothing: every call runs. It is a part of the policies that do something.
type none struct{ env *Env }

func (n none) Send(c *Call)        { n.env.Deliver(c) }
func (n none) Arrive(c *Call)      { n.env.Run(c) }
func (none) Begin(*Call)           {}
func (none) Finish(*Call)          {}
func (none) Answer(*Call, Outcome) {}
func (none) New(env *Env) Control  { return none{env} }
func (none) Name() string          { return "none" }
