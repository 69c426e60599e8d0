package explore

import (
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
	demand       [2]fixed.Amount // of the applications, per second
	coordinators *machines[coordinator.Coordinator, lender]
	instances    *machines[instance, holder]
	replicas     *machines[coordinator.Replica, struct{}]

	encoder *encoder
	known   map[digest]number
	letters []letter
	spends  map[spend]spendable

	sets      map[string]number // of holders, by their encoding
	holders   []holding.Holders
	takeovers []takeover
	taken     map[takeover]number
	usedSets  map[string]number // what is known of the buckets, as records that say nothing else
	used      []string
}

// takeover is a coordinator.Takeover, whose parts belong to the coordinator that takes it.
type takeover struct {
	epoch, former uint64
	holders, used number
}

// letter is a message.
type letter struct {
	report *lease.Report
	grant  *lease.Grant
	levels *levels
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

func newFleet(terms lease.Terms, demand [2]fixed.Amount) *fleet {
	l := layouts{}
	f := &fleet{
		terms: terms, demand: demand, encoder: newEncoder(l), known: map[digest]number{}, letters: make([]letter, 1), spends: map[spend]spendable{},
		sets: map[string]number{}, taken: map[takeover]number{}, takeovers: make([]takeover, 1), usedSets: map[string]number{}, used: make([]string, 1),
		coordinators: newMachines[coordinator.Coordinator, lender](l),
		instances:    newMachines[instance, holder](l),
		replicas:     newMachines[coordinator.Replica, struct{}](l),
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
	r := f.replicas
	r.make, r.step, r.facts = f.newReplica, f.stepReplica, func(*coordinator.Replica) struct{} { return struct{}{} }
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
	i.bucket.Declare(f.demand[in.arg%2])
	i.handle = a.Open(in.now, lease.ResourceID{Limit: theLimit}, agent.LeaseOptions{Estimator: agent.Declared}, i.bucket)
	return i
}

func (f *fleet) stepCoordinator(c *coordinator.Coordinator, in input) (out outcome) {
	var event lease.Event = lease.Tick{}
	ask := askFor()
	switch in.kind {
	case asked:
		event = ask
	case received:
		event = f.letters[in.arg].report
	case takenOver:
		t := f.takeovers[in.arg]
		event = coordinator.Takeover{Epoch: t.epoch, Former: t.former, Holders: f.holders[t.holders].Clone(), Used: f.usedOf(t.used)}
	case followed:
		if told, others, ok := c.Replicate(in.now); ok {
			_, number := c.Levels()
			out.levels = f.letter(letter{levels: &levels{others, told, number}})
		}
		return out
	case unfollowed:
		c.EndReplicating()
		return out
	case handedOver:
		out.used = f.numberOfUsed(c.Used(in.now))
		return out
	}
	for _, g := range c.Step(in.now, event) {
		out.messages, out.must = append(out.messages, f.letter(letter{grant: &g})), append(out.must, c.MustKnow(&g))
	}
	if len(ask.Answers) > 0 && ask.Answers[0].Admitted {
		out.admitted, out.must = 1, append(out.must, ask.Must)
	}
	if told, number := c.Levels(); len(told) > 0 {
		out.levels = f.letter(letter{levels: &levels{list: told, number: number}})
	}
	return out
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

func (f *fleet) stepInstance(i *instance, in input) (out outcome) {
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
			out.admitted++
		}
		if out.admitted > 0 {
			return out
		}
		event = agent.Starved{Handle: i.handle}
	}
	if r := i.Step(in.now, event); r != nil {
		out.messages = append(out.messages, f.letter(letter{report: r}))
	}
	return out
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
func (f *fleet) takeover(t takeover) number {
	if n, ok := f.taken[t]; ok {
		return n
	}
	n := number(len(f.takeovers))
	f.taken[t] = n
	f.takeovers = append(f.takeovers, t)
	return n
}
