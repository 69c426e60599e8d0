package tables

import (
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/bench/internal/contender"
	"github.com/stint-io/stint/bench/internal/measure"
)

// tiny runs every step of a table and measures nothing worth reading.
func tiny() Config {
	return Config{
		Slice: time.Millisecond, Rounds: 1, Keys: 5000, Contention: 200 * time.Millisecond,
		Budget: 1 << 20, Victims: 200, Limits: 200, Pairs: 1, Service: 200 * time.Millisecond,
		Redis: 50 * time.Millisecond, RedisKeys: 2000, RedisService: 100 * time.Millisecond,
		LeaseIdle: 1500 * time.Millisecond, LeaseRounds: 1, Waiters: 2000, Root: "../../..",
	}
}

// Every table fills in, which means that all answers and workloads were right:
// that is what the tables check for themselves.
func TestTablesFillIn(t *testing.T) {
	for name, table := range map[string]func(Config, *Report) error{
		"hot allowed": HotAllowed, "hot refused": HotRefused, "many keys": ManyKeys,
		"memory": Memory, "flood": Flood, "match": Match, "service": Service, "tls": TLS,
		"redis keys": RedisKeys, "redis hot": RedisHot, "redis service": RedisService, "leases": Leases, "waiters": Waiters,
	} {
		t.Run(name, func(t *testing.T) {
			var out strings.Builder
			rep := &Report{Out: &out}
			if err := table(tinyWithStint(t), rep); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), "\n| ") || len(rep.Goals) == 0 {
				t.Errorf("%d goals, written:\n%s", len(rep.Goals), &out)
			}
			for _, g := range rep.Goals {
				if !g.Met && strings.HasPrefix(g.What, "flood: limited or banned keys") {
					t.Errorf("%s: %s", g.What, g.Seen)
				}
			}
		})
	}
}

// The bound of the contention table holds for stint, and the crowd really asks
// for more than there is.
func TestCrowdNeverGetsMore(t *testing.T) {
	names, open := crowdLimiters()
	for _, name := range names {
		if !strings.HasPrefix(name, contender.StintName) {
			continue
		}
		for _, procs := range []int{2, 64} {
			allow, err := open[name]()
			if err != nil {
				t.Fatal(err)
			}
			o := stampede(allow, procs, 100*time.Millisecond)
			if float64(o.admitted) > o.bound {
				t.Errorf("%s, GOMAXPROCS %d: %d admitted, above the bound of %.0f", name, procs, o.admitted, o.bound)
			}
			if o.admitted < crowdPlan.Burst || o.refused == 0 {
				t.Errorf("%s, GOMAXPROCS %d: %d admitted, %d refused: the limit was not reached", name, procs, o.admitted, o.refused)
			}
		}
	}
}

// A limiter that admits everything is caught.
func TestStampedeSeesALimiterThatDoesNotLimit(t *testing.T) {
	o := stampede(func() bool { return true }, 2, 20*time.Millisecond)
	if float64(o.admitted) <= o.bound {
		t.Errorf("%d admitted, bound %.0f", o.admitted, o.bound)
	}
}

// forgetful admits every other request.
type forgetful struct{ n int }

func (f *forgetful) Allow(string) bool { f.n++; return f.n%2 == 0 }

func (f *forgetful) Hot(key string, n int) (yes int) {
	for range n {
		if f.Allow(key) {
			yes++
		}
	}
	return yes
}

func (f *forgetful) Spin(_ *contender.Walk, n int) int { return f.Hot("", n) }

func TestWrongAnswersAreErrors(t *testing.T) {
	wrong := contender.Contender{Name: "wrong", New: func(contender.Plan) (contender.Limiter, error) { return &forgetful{}, nil }}
	for _, allowed := range []bool{true, false} {
		r, err := newRace(contender.AlwaysAllowed, []contender.Contender{wrong})
		if err != nil {
			t.Fatal(err)
		}
		r.lanes = r.lanes[:1]
		err = r.run(tiny(), allowed, func(l *lane, _, n int) int { return l.limiter.Hot(hotKey, n) })
		if err == nil || !strings.Contains(err.Error(), "the answers are wrong") {
			t.Errorf("allowed %v: %v", allowed, err)
		}
	}
	if _, _, err := weigh(wrong, contender.NewKeys(10)); err == nil {
		t.Error("weighed a limiter that refuses a first request")
	}
}

func TestSummary(t *testing.T) {
	var out strings.Builder
	rep := &Report{Out: &out}
	rep.AtMost("time", 1.25, 1.25, " ×")
	rep.AtLeast("speed", 2.5, 2, " ×")
	if !rep.Summary() {
		t.Errorf("goals at their bounds are met:\n%s", &out)
	}
	rep.AtMost("let through", 1, 0, "")
	if rep.Summary() || !strings.Contains(out.String(), "| let through | at most 0 | 1 | **missed** |") {
		t.Errorf("got:\n%s", &out)
	}
	if figure(20) != "20" || figure(1.25) != "1.25" || figure(0) != "0" {
		t.Errorf("figures: %s %s %s", figure(20), figure(1.25), figure(0))
	}
}

// A figure without a goal misses none, and says when it speaks for somebody else.
func TestStatedFigures(t *testing.T) {
	var out strings.Builder
	rep := &Report{Out: &out}
	rep.State("slower", 1.5, " ×", true, "it is faster")
	rep.State("faster", 0.875, " ×", false, "it is faster")
	if !rep.Summary() || !strings.Contains(out.String(), "| slower | – | 1.5 × | stated |") ||
		!strings.Contains(out.String(), "| faster | – | 0.875 × | **it is faster** |") {
		t.Errorf("got:\n%s", &out)
	}
}

// The best rival is the fastest of them on that number of threads, not a floor.
func TestBestRival(t *testing.T) {
	r := &race{}
	add := func(name string, threads int, ns float64) {
		l := &lane{Contender: contender.Contender{Name: name}, threads: threads}
		l.samples = []measure.Sample{{Ops: 1, NsPerOp: ns}}
		r.lanes = append(r.lanes, l)
	}
	rivals := contender.Rivals()
	for _, n := range threads {
		add("floor", n, 1)
		add(contender.StintName, n, 40)
		add(rivals[0].Name, n, 60)
	}
	add(rivals[1].Name, 1, 80)
	add(rivals[1].Name, 2, 30)
	if name, ratio := r.best(1); name != rivals[0].Name || ratio != 1.5 {
		t.Errorf("one thread: %s, %v", name, ratio)
	}
	if name, ratio := r.best(2); name != rivals[1].Name || ratio != 0.75 {
		t.Errorf("two threads: %s, %v", name, ratio)
	}
}

func TestExpectDistinct(t *testing.T) {
	keys := contender.NewKeys(10_000)
	got := contender.NewWalk(keys, 3).Distinct(10_000, make([]bool, 10_000))
	if want := expectDistinct(10_000, 10_000); float64(got) < 0.98*want || float64(got) > 1.02*want {
		t.Errorf("met %d keys, want about %.0f", got, want)
	}
}
