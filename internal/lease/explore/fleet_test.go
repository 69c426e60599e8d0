package explore

import (
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/lease/holding"
	"github.com/stint-io/stint/limit"
)

const theLimit = "l"

// fleet steps the shipped machines, and numbers what goes between them.
type fleet struct {
	terms        lease.Terms
	coordinators *machines[coordinator.Coordinator, lender]
	instances    *machines[instance, holder]

	encoder *encoder
	known   map[digest]number
	letters []letter
	spends  map[spend]spendable

	sets      map[string]number // of holders, by their encoding
	holders   []holding.Holders
	takeovers []coordinator.Takeover
	taken     map[string]number
}

// letter is a message.
type letter struct {
	report *lease.Report
	grant  *lease.Grant
}

// instance is an agent with the bucket from which its application takes.
type instance struct {
	*agent.Agent
	bucket *bucket.Bucket
	handle uint32
}

// lender is what can be seen of a coordinator.
type lender struct {
	next    limit.Time
	epoch   uint64
	holders number
	broken  bool // a round failed, or its books do not add up
}

// holder is what can be seen of an instance.
type holder struct {
	next     limit.Time
	deadline limit.Time
	held     lease.Capacity
	leased   bool
}

// spend is an instance's state at a time.
type spend struct {
	of  number
	now limit.Time
}

// spendable is what an instance may spend: a rate, a burst, and whole tokens at once.
type spendable struct {
	rate, burst fixed.Amount
	tokens      int64
}

func newFleet(terms lease.Terms) *fleet {
	l := layouts{}
	f := &fleet{
		terms: terms, encoder: newEncoder(l), known: map[digest]number{}, letters: make([]letter, 1), spends: map[spend]spendable{},
		sets: map[string]number{}, taken: map[string]number{}, takeovers: make([]coordinator.Takeover, 1),
		coordinators: newMachines[coordinator.Coordinator, lender](l),
		instances:    newMachines[instance, holder](l),
	}
	seal := coordinator.NewSeal([]byte("a key that all members have"))
	c := f.coordinators
	c.make = func(in input) *coordinator.Coordinator {
		run := uint64(in.arg)
		return coordinator.New(coordinator.Options{
			Epoch: 1, Seal: seal,
			// No two runs go to one epoch, as with the wall clock. What a function does is not in the
			// hash of a state, so the run is told by a bound that is never reached.
			Above:       func(received uint64) uint64 { return (received/64+1)*64 + run },
			MaxAccounts: 1000 + int(in.arg),
			Resolve:     func(lease.ResourceID) (lease.Terms, lease.Status) { return f.terms, lease.StatusOK },
		}, in.now)
	}
	c.step, c.facts = f.stepCoordinator, f.lender
	i := f.instances
	i.make = f.newInstance
	i.step, i.facts = f.stepInstance, f.holder
	return f
}

// newMember is the instance of a session: even ones are Anna's, odd ones Bert's.
func newMember(session number) lease.Member {
	return lease.Member{Instance: [...]string{"anna", "bert"}[session%2], Session: uint64(session)}
}

// newInstance makes the instance of a session.
func (f *fleet) newInstance(in input) *instance {
	a := agent.New(agent.Options{Member: newMember(in.arg)})
	i := &instance{Agent: a, bucket: bucket.NewBucket(a.Deadline())}
	i.bucket.Declare(f.terms.Rate)
	i.handle = a.Open(in.now, lease.ResourceID{Limit: theLimit}, agent.LeaseOptions{Estimator: agent.Declared}, i.bucket)
	return i
}

func (f *fleet) stepCoordinator(c *coordinator.Coordinator, in input) (messages []number, _ int64) {
	var event lease.Event = lease.Tick{}
	switch in.kind {
	case received:
		event = f.letters[in.arg].report
	case takenOver:
		t := f.takeovers[in.arg]
		t.Holders = t.Holders.Clone()
		event = t
	}
	for _, g := range c.Step(in.now, event) {
		messages = append(messages, f.letter(letter{grant: &g}))
	}
	return messages, 0
}

func (f *fleet) lender(c *coordinator.Coordinator) lender {
	h := c.Holders()
	l := lender{next: c.Next(), epoch: c.Epoch(), holders: f.setOf(h)}
	c.Each(0, func(s *coordinator.ResourceState) bool {
		l.broken = l.broken || s.Broken
		return true
	})
	return l
}

func (f *fleet) stepInstance(i *instance, in input) (messages []number, admitted int64) {
	var event lease.Event = lease.Tick{}
	switch in.kind {
	case received:
		event = f.letters[in.arg].grant
	case connected:
		event = agent.Connected{}
	case left:
		event = agent.Leave{}
	case spent:
		for {
			if ok, _ := i.bucket.Allow(in.now, 1); !ok {
				break
			}
			admitted++
		}
		if admitted > 0 {
			return nil, admitted
		}
		event = agent.Starved{Handle: i.handle}
	}
	if r := i.Step(in.now, event); r != nil {
		messages = append(messages, f.letter(letter{report: r}))
	}
	return messages, 0
}

func (f *fleet) holder(i *instance) holder {
	s := i.State(i.handle)
	return holder{next: i.Next(), deadline: limit.Time(i.Deadline().Load()), held: s.Held, leased: s.Leased}
}

// spendable returns what an instance in a state may spend at a time of its clock.
func (f *fleet) spendable(n number, now limit.Time) spendable {
	h := f.instances.factsOf(n)
	if now >= h.deadline {
		return spendable{}
	}
	key := spend{n, now}
	if s, ok := f.spends[key]; ok {
		return s
	}
	b := f.instances.machine(n).bucket
	s := spendable{h.held.Rate, max(h.held.Burst, fixed.Whole(b.MaxCost(now))), b.Remaining(now)}
	f.spends[key] = s
	return s
}

// letter returns the number of a message, which is copied.
func (f *fleet) letter(l letter) number {
	d := digestOf(f.encoder, &l)
	if n, ok := f.known[d]; ok {
		return n
	}
	n := number(len(f.letters))
	f.known[d] = n
	f.letters = append(f.letters, *deepCopy(f.coordinators.copier, &l))
	return n
}

// lends says whether a grant has a lease, so that its session has to be in the record first.
func (f *fleet) lends(n number) bool {
	for i := range f.letters[n].grant.Shares {
		if f.letters[n].grant.Shares[i].Lease != 0 {
			return true
		}
	}
	return false
}

// claims says whether a report has a claim.
func (f *fleet) claims(n number) bool {
	for i := range f.letters[n].report.Demands {
		if len(f.letters[n].report.Demands[i].Claim) > 0 {
			return true
		}
	}
	return false
}

// setOf returns the number of a set of holders.
func (f *fleet) setOf(h holding.Holders) number {
	key := string(h.Encode())
	if n, ok := f.sets[key]; ok {
		return n
	}
	n := number(len(f.holders))
	f.sets[key] = n
	f.holders = append(f.holders, h.Clone())
	return n
}

// both returns the set of those that are in two.
func (f *fleet) both(a, b number) number {
	h := f.holders[a].Clone()
	h.Intersect(&f.holders[b])
	return f.setOf(h)
}

// takeover returns the number of a takeover.
func (f *fleet) takeover(epoch, former uint64, holders number) number {
	t := coordinator.Takeover{Epoch: epoch, Former: former, Holders: f.holders[holders].Clone()}
	key := string(append([]byte(time.Duration(epoch).String()+time.Duration(former).String()), t.Holders.Encode()...))
	if n, ok := f.taken[key]; ok {
		return n
	}
	n := number(len(f.takeovers))
	f.taken[key] = n
	f.takeovers = append(f.takeovers, t)
	return n
}
