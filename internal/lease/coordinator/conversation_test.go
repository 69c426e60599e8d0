package coordinator

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/leasetest"
	"github.com/stint-io/stint/limit"
)

// TestConversations: what each instance demands and when, what it is granted and when, and how often
// an instance has to wake up, in small fleets in virtual time. Each file in testdata/conversations
// says in its comments what is promised, and has commands (>) with what follows from each. A
// diff of one is a change of what a fleet does; -update writes the files anew.
//
//	fleet n=2 rate=100 burst=20 delay=25ms     a coordinator and n instances, which are 0 to n-1
//	start 0 weight=2 band=1 expiry=optimistic  another run of an instance, with other options
//	load 0 100                                 even arrivals per second; ask 0 3 is one of 3 tokens
//	wait 0 3 500ms, serve 0 3, leave 0 3       waiters; use 0 3, release 0 3 are permits of a semaphore
//	run 1s, watch 1s 100ms, pass 1s            with every message, with the state at each step, or at the end
func TestConversations(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	files, err := filepath.Glob("testdata/conversations/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := string(text)
			c := &conversation{t: t}
			for line := range strings.Lines(want) {
				switch line = strings.TrimRight(line, "\n"); {
				case line == "", strings.HasPrefix(line, "#"):
					c.say("%s", line)
				case strings.HasPrefix(line, "> "):
					c.say("%s", line)
					c.do(strings.Fields(line[2:]))
				}
			}
			got := c.out.String()
			leasetest.Compare(t, file, got)
		})
	}
}

// conversation is a fleet that does what a file says.
type conversation struct {
	t       *testing.T
	f       *fleet
	real    lease.Terms // f.terms are what the fleet is held against
	permits []*bucket.Semaphore
	woken   []int
	began   limit.Time
	loud    bool
	said    [2]int // reports and grants
	out     strings.Builder
}

func (c *conversation) say(format string, args ...any) { fmt.Fprintf(&c.out, format+"\n", args...) }

// settings are words such as rate=100.
type settings map[string]string

func read(words []string) settings {
	s := settings{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		s[name] = value
	}
	return s
}

func (c *conversation) number(text string) float64 {
	if text == "" {
		return 0
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		c.t.Fatal(err)
	}
	return x
}

func (c *conversation) amount(text string) fixed.Amount {
	return fixed.Amount(c.number(text) * float64(fixed.Token))
}

func (c *conversation) duration(text string) time.Duration {
	if text == "" {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		c.t.Fatal(err)
	}
	return d
}

func (c *conversation) terms(s settings) lease.Terms {
	t := lease.Terms{Rate: c.amount(s["rate"]), Burst: c.amount(s["burst"]), Safe: c.amount(s["safe"])}
	_, t.Semaphore = s["semaphore"]
	for kind := fairshare.MaxMin; kind <= fairshare.None; kind++ {
		name := kind.String()
		if s["division"] == name {
			t.Allocation = fairshare.Allocation(kind)
		}
	}
	if report, ok := s["suppress"]; ok {
		t.Suppress = &lease.Suppress{Report: c.duration(report), Window: c.duration(s["window"]), Intervals: int(c.number(s["intervals"])), Ramp: lease.Ramp(c.number(s["ramp"]))}
		_, t.Suppress.Independent = s["independent"]
		_, t.Suppress.Admitted = s["admitted"]
	}
	return t
}

// hold is what the fleet is held against under some terms: where each instance has a limit
// of its own, nothing.
func hold(t lease.Terms) lease.Terms {
	if t.PerInstance() {
		t.Rate, t.Burst = lease.Unlimited, lease.Unlimited
	}
	return t
}

func (c *conversation) resolve(lease.ResourceID) (lease.Terms, lease.Status) {
	if c.real.Rate == 0 && c.real.Burst == 0 {
		return lease.Terms{}, lease.StatusUnknownLimit
	}
	return c.real, lease.StatusOK
}

func (c *conversation) fleet(s settings) {
	c.real = c.terms(s)
	c.f = newFleet(c.t, 1, 0, hold(c.real))
	c.f.coord.opts.Resolve = c.resolve
	c.f.delay, c.f.jitter = c.duration(s["delay"]), c.duration(s["jitter"])
	c.f.loss, c.f.duplicate = c.number(s["loss"]), c.number(s["twice"])
	_, c.f.poisson = s["random"]
	c.f.log = c.message
	c.f.woke = func(in *instance) { c.woken[in.index]++ }
	c.began = c.f.now
	n := int(c.number(s["n"]))
	c.permits, c.woken = make([]*bucket.Semaphore, n), make([]int, n)
	for i := range n {
		in := &instance{index: i, next: lease.Never}
		c.f.instances = append(c.f.instances, in)
		c.start(in, settings{})
	}
}

// start is another run of an instance.
func (c *conversation) start(in *instance, s settings) {
	in.opts = agent.LeaseOptions{Weight: uint32(c.number(s["weight"])), Band: uint8(c.number(s["band"])), Start: c.amount(s["start"])}
	_, in.opts.Silent = s["silent"]
	in.opts.Estimator = map[string]agent.Estimator{"declared": agent.Declared, "utilisation": agent.Utilisation}[s["estimator"]]
	in.opts.Expiry = map[string]agent.ExpiryMode{"optimistic": agent.Optimistic, "safe": agent.Safe}[s["expiry"]]
	if !c.real.Semaphore {
		c.f.start(in)
		return
	}
	in.session++
	in.agent = agent.New(agent.Options{Member: lease.Member{Instance: fmt.Sprint(in.index), Session: in.session}, Jitter: c.f.rand.Float64})
	c.permits[in.index] = bucket.NewSemaphore(in.agent.Deadline())
	in.handle = in.agent.Open(c.f.now, theLimit, in.opts, c.permits[in.index])
	in.down = false
	c.f.step(in, lease.Tick{})
}

// change puts other terms in force. What was lent under larger ones may still be in use.
func (c *conversation) change(s settings) {
	c.real = c.terms(s)
	was, held := c.f.terms, hold(c.real)
	held.Rate, held.Burst = max(held.Rate, was.Rate), max(held.Burst, was.Burst)
	c.f.central.take(c.f, 0)
	c.f.central.level += held.Burst - was.Burst
	c.f.terms, c.f.central.terms = held, held
	c.f.coordinate(Reconfigure{})
}

// do is a command about the whole fleet, or about one of its instances.
func (c *conversation) do(words []string) {
	c.loud = true
	defer func() { c.loud = false }()
	command, words := words[0], append(words[1:], "", "", "")
	switch command {
	case "fleet":
		c.fleet(read(words))
	case "terms":
		c.change(read(words))
	case "run":
		c.f.run(c.duration(words[0]))
		c.state()
	case "watch":
		c.loud = false
		every := c.duration(words[1])
		for d := c.duration(words[0]); d > 0; d -= every {
			c.f.run(every)
			c.state()
		}
	case "pass":
		c.loud = false
		c.f.run(c.duration(words[0]))
		c.state()
	case "lost":
		c.f.former, c.f.coord = c.f.coord.Epoch(), nil
	case "coordinator":
		c.f.epoch, c.f.key = uint64(c.number(words[0])), words[2] // another key: what was signed by the former one says nothing
		c.f.startCoordinator(c.duration(words[1]))
		c.f.coord.opts.Resolve = c.resolve
	case "takeover":
		c.f.coordinate(Takeover{})
	case "start":
		c.start(c.f.instances[int(c.number(words[0]))], read(words[1:]))
	default:
		c.instance(command, c.f.instances[int(c.number(words[0]))], words[1], words[2])
	}
}

// instance is a command about one of them; n is a number of tokens, arrivals or permits.
func (c *conversation) instance(command string, in *instance, number, long string) {
	n := int64(max(1, c.number(number)))
	switch command {
	case "load":
		c.f.load(in, c.number(number))
	case "ask":
		c.ask(in, n)
	case "crash":
		in.down = true
	case "cut":
		in.cut = true
	case "heal":
		in.cut = false
	case "connected":
		c.f.step(in, agent.Connected{})
	case "goes":
		c.f.step(in, agent.Leave{})
		in.down = true
	case "close":
		in.agent.Close(c.f.now, in.handle)
		c.f.step(in, lease.Tick{})
	case "open":
		in.bucket = bucket.NewBucket(in.agent.Deadline())
		in.handle = in.agent.Open(c.f.now, lease.ResourceID{Limit: "l"}, in.opts, in.bucket)
		c.f.step(in, lease.Tick{})
	case "declare":
		if c.real.Semaphore {
			c.permits[in.index].Declare(c.amount(number))
			break
		}
		in.bucket.Declare(c.amount(number))
	case "wait", "serve", "leave":
		c.line(command, in, n, c.duration(long))
	case "use", "release":
		c.flight(command, in, n)
	default:
		c.t.Fatalf("there is no command %q", command)
	}
}

// ask is one request at this moment.
func (c *conversation) ask(in *instance, n int64) {
	ok, _ := in.bucket.Allow(c.f.now, n)
	if ok {
		in.took += n
		if c.f.terms.Suppress == nil {
			c.f.central.take(c.f, fixed.Whole(n))
		}
	} else {
		in.refused += n
		c.f.step(in, agent.Starved{Handle: in.handle})
	}
	c.f.step(in, lease.Tick{})
	c.say("  %v", ok)
}

// line is a command about waiters.
func (c *conversation) line(command string, in *instance, n int64, d time.Duration) {
	b := in.bucket
	switch command {
	case "wait":
		b.Freeze()
		b.Join(n)
		if b.WaitUntil(0); d > 0 {
			b.WaitUntil(c.f.now.Add(d))
		}
		c.f.step(in, agent.Starved{Handle: in.handle})
	case "serve":
		ok := b.Serve(c.f.now, n)
		if ok {
			in.took += n
			c.f.central.take(c.f, fixed.Whole(n))
			b.Thaw()
		}
		c.say("  %v", ok)
	case "leave":
		b.Leave(n)
		b.Thaw()
	}
	c.f.step(in, lease.Tick{})
}

// flight is a command about the permits of a semaphore.
func (c *conversation) flight(command string, in *instance, n int64) {
	p := c.permits[in.index]
	if command == "release" {
		p.Release(n)
	} else if ok := p.Acquire(c.f.now, n); ok {
		in.took += n
		c.say("  %v", ok)
	} else {
		in.refused += n
		c.say("  %v", ok)
		c.f.step(in, agent.Starved{Handle: in.handle})
	}
	c.f.step(in, lease.Tick{})
}

func (c *conversation) at() string {
	return fmt.Sprintf("  %7.3f", time.Duration(c.f.now-c.began).Seconds())
}

func briefly(h lease.Capacity) string {
	return leasetest.Brief(h.Rate) + "/s burst " + leasetest.Brief(h.Burst) + " tokens " + leasetest.Brief(h.Tokens)
}

// message writes a report or a grant, without fields that have their usual value.
func (c *conversation) message(of int, m any) {
	add := func(words *[]string, when bool, format string, args ...any) {
		if when {
			*words = append(*words, fmt.Sprintf(format, args...))
		}
	}
	switch m := m.(type) {
	case *lease.Report:
		c.said[0]++
		if !c.loud {
			return
		}
		words := []string{fmt.Sprintf("%s %d reports %d", c.at(), of, m.Number)}
		add(&words, m.Leaving, "and leaves")
		for _, d := range m.Demands {
			add(&words, true, "demand %s/s shortfall %s", leasetest.Brief(d.Rate), leasetest.Brief(d.Shortfall))
			add(&words, d.Within > 0, "within %.4gs", d.Within.Seconds())
			add(&words, d.Returned != lease.Capacity{}, "returned %s", briefly(d.Returned))
			add(&words, d.Attempted > 0, "attempted %s admitted %s", leasetest.Brief(d.Attempted), leasetest.Brief(d.Admitted))
			add(&words, d.Lease == 0, "no lease")
			add(&words, d.Resource.Limit == "", "by handle")
			add(&words, d.Claim != nil, "claims")
			add(&words, d.Silent, "silent")
			add(&words, d.Closed, "closed")
		}
		c.say("%s", strings.Join(words, ", "))
	case *lease.Grant:
		c.said[1]++
		if !c.loud {
			return
		}
		words := []string{fmt.Sprintf("%s to %d", c.at(), of)}
		add(&words, m.Age > 0, "aged %.4gs", m.Age.Seconds())
		add(&words, m.Epoch != 1, "epoch %d", m.Epoch)
		for _, s := range m.Shares {
			add(&words, s.Status != lease.StatusOK, "%v", s.Status)
			add(&words, true, "seen %d granted %s", s.AckedReport, briefly(s.Granted))
			add(&words, s.Lease == 0, "no lease")
			add(&words, s.CapRate != fixed.MaxAmount || s.CapBurst != fixed.MaxAmount, "cap %s/s burst %s", leasetest.Brief(s.CapRate), leasetest.Brief(s.CapBurst))
			add(&words, s.Safe > 0, "safe %s", leasetest.Brief(s.Safe))
			add(&words, s.Contended, "contended")
			add(&words, s.Saturated, "saturated")
			add(&words, s.Recovering, "recovering")
			add(&words, s.Suppress.Reject > 0, "reject %.4f above %s/s burst %s", s.Suppress.Reject, leasetest.Brief(s.Suppress.Rate), leasetest.Brief(s.Suppress.Burst))
		}
		c.say("%s", strings.Join(words, ", "))
	}
}

// state writes how the limit stands: what is free; of each instance the demand, the rate that it
// holds, the tokens in its bucket of that burst, what was admitted-refused up to now, and how often
// its timer woke it; and how many reports:grants there were.
func (c *conversation) state() {
	words := []string{c.at()}
	if c.f.coord == nil {
		words = append(words, "no coordinator")
	} else {
		c.f.coord.Each(c.f.now, func(r *ResourceState) bool {
			words = append(words, "free "+briefly(r.Free))
			if r.Reject > 0 {
				words = append(words, fmt.Sprintf("reject %.4f", r.Reject))
			}
			if r.Saturated {
				words = append(words, fmt.Sprintf("saturated for %.3fs", r.SaturatedFor.Seconds()))
			}
			return true
		})
	}
	for i, in := range c.f.instances {
		if in.down {
			words = append(words, fmt.Sprintf("%d is gone", i))
			continue
		}
		s := in.agent.State(in.handle)
		level := fixed.Amount(0)
		if c.real.Semaphore {
			level = c.permits[i].Observe(c.f.now).Level
		} else {
			level = in.bucket.Observe(c.f.now).Level
		}
		line := fmt.Sprintf("%d demand %s/s has %s/s %s of %s", i, leasetest.Brief(s.Demand), leasetest.Brief(s.Held.Rate), leasetest.Brief(level), leasetest.Brief(s.Held.Burst))
		if s.Expired {
			line += " expired"
		}
		words = append(words, fmt.Sprintf("%s, took %d-%d, woke %d", line, in.took, in.refused, c.woken[i]))
	}
	c.say("%s | %d:%d", strings.Join(words, " | "), c.said[0], c.said[1])
}
