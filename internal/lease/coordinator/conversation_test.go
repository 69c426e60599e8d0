package coordinator

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
)

// TestConversations: the figures of small fleets in virtual time that can be worked out by hand. Each file in
// testdata/conversations has commands (>), and after them what follows (=), with the reason in a comment. It is written by
// hand: a figure that differs is a fault, of the code or of the reasoning. The fleet checks after each event that
// instances hold no more than the limit.
//
//	> fleet n=2 rate=100 burst=20 delay=25ms     a coordinator and n instances, which are 0 to n-1
//	> start 0 weight=2 band=1 expiry=optimistic  another run of an instance, with other options
//	> load 0 100                                 even arrivals per second
//	> use 0 3, release 0 3                       permits of a semaphore
//	> pass 1s                                    time
//	> terms rate=50 burst=20                   other terms of the limit
//	> lost, crash 0                            the coordinator ends, or an instance; coordinator 2 5s is the next, of epoch 2
//	= 0 demand 60 rate 80 burst 15 took 60       an instance: took is what it was admitted in the last pass
//	= limit rate 20 burst 5 reject 0.25          what is free of the limit, and the fraction that is refused
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
			c := &conversation{t: t}
			for i, line := range strings.Split(string(text), "\n") {
				line, _, _ = strings.Cut(line, "#")
				words := strings.Fields(line)
				switch {
				case len(words) == 0:
				case words[0] == ">":
					c.do(words[1:])
				case words[0] == "=" && len(words) > 3 && len(words)%2 == 0:
					c.holds(fmt.Sprintf("%s:%d", file, i+1), words[1], words[2:])
				default:
					t.Fatalf("%s:%d: %q is neither a command nor a statement", file, i+1, line)
				}
			}
			if c.held == 0 {
				t.Errorf("%s states nothing", file)
			}
		})
	}
}

// conversation is a fleet that does what a file says.
type conversation struct {
	t       *testing.T
	f       *fleet
	real    lease.Terms // f.terms are what the fleet is held against
	permits []*bucket.Semaphore
	took    []int64 // at the begin of the last pass
	held    int     // statements
}

// settings are words such as rate=100.
type settings map[string]string

func (c *conversation) read(words []string) settings {
	s := settings{}
	for _, w := range words {
		name, value, _ := strings.Cut(w, "=")
		if !slices.Contains(strings.Fields("n rate burst safe semaphore division suppress delay weight band silent estimator expiry"), name) {
			c.t.Fatalf("there is no setting %q", name)
		}
		s[name] = value
	}
	return s
}

func (c *conversation) number(text string) float64 {
	if text == "" {
		return 0 // not set
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
		t.Suppress = &lease.Suppress{Report: c.duration(report)}
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
	c.f.delay = c.duration(s["delay"])
	n := int(c.number(s["n"]))
	c.permits, c.took = make([]*bucket.Semaphore, n), make([]int64, n)
	for i := range n {
		in := &instance{index: i, next: lease.Never}
		c.f.instances = append(c.f.instances, in)
		c.start(in, settings{})
	}
}

// start is another run of an instance.
func (c *conversation) start(in *instance, s settings) {
	in.opts = agent.LeaseOptions{Weight: uint32(c.number(s["weight"])), Band: uint8(c.number(s["band"]))}
	_, in.opts.Silent = s["silent"]
	if s["estimator"] == "declared" {
		in.opts.Estimator = agent.Declared
	}
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

// do is a command.
func (c *conversation) do(words []string) {
	command, words := words[0], words[1:]
	in := func() *instance { return c.f.instances[int(c.number(words[0]))] }
	switch command {
	case "fleet":
		c.fleet(c.read(words))
	case "terms":
		c.change(c.read(words))
	case "pass":
		for i, in := range c.f.instances {
			c.took[i] = in.took
		}
		c.f.run(c.duration(words[0]))
	case "lost":
		c.f.former, c.f.coord = c.f.coord.Epoch(), nil
	case "coordinator":
		c.f.epoch = uint64(c.number(words[0]))
		c.f.startCoordinator(c.duration(words[1]))
		c.f.coord.opts.Resolve = c.resolve
	case "start":
		c.start(in(), c.read(words[1:]))
	case "load":
		c.f.load(in(), c.number(words[1]))
	case "crash":
		in().down = true
	case "connected":
		c.f.step(in(), agent.Connected{})
	case "declare":
		in().bucket.Declare(c.amount(words[1]))
	case "use", "release":
		c.flight(command, in(), int64(c.number(words[1])))
	default:
		c.t.Fatalf("there is no command %q", command)
	}
}

// flight is a command about the permits of a semaphore.
func (c *conversation) flight(command string, in *instance, n int64) {
	p := c.permits[in.index]
	switch {
	case command == "release":
		p.Release(n)
	case p.Acquire(c.f.now, n):
		in.took += n
	default:
		c.f.step(in, agent.Starved{Handle: in.handle})
	}
	c.f.step(in, lease.Tick{})
}

// holds compares pairs of a name and a figure with how an instance or the limit stands.
func (c *conversation) holds(at, of string, pairs []string) {
	c.held++
	stands := map[string]string{}
	if of == "limit" {
		c.f.coord.Each(c.f.now, func(r *ResourceState) bool {
			stands["rate"], stands["burst"], stands["reject"] = brief(r.Free.Rate), brief(r.Free.Burst), fmt.Sprintf("%.2f", r.Reject)
			return true
		})
	} else {
		in := c.f.instances[int(c.number(of))]
		s := in.agent.State(in.handle)
		stands["demand"], stands["rate"], stands["burst"] = brief(s.Demand), brief(s.Held.Rate), brief(s.Held.Burst)
		stands["took"] = fmt.Sprint(in.took - c.took[in.index])
	}
	for pair := range slices.Chunk(pairs, 2) {
		if got, ok := stands[pair[0]]; !ok || got != pair[1] {
			c.t.Errorf("%s: %s of %s is %q, want %s", at, pair[0], of, got, pair[1])
		}
	}
}

// brief is an amount to five digits.
func brief(a fixed.Amount) string { return fmt.Sprintf("%.5g", a.Float()) }
