package limit

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// histories is how many random histories each property test runs: 2,000, or what
// STINT_HISTORIES says.
//
//	STINT_HISTORIES=1000000 go test -run Histories -timeout 2h ./limit
func histories(t *testing.T) int {
	t.Helper()
	s := os.Getenv("STINT_HISTORIES")
	if s == "" {
		return 2000
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 {
		t.Fatalf("STINT_HISTORIES=%q, want a positive number", s)
	}
	return n
}

// eachHistory runs one history per seed.
func eachHistory(t *testing.T, run func(r *rand.Rand) error) {
	t.Parallel()
	for seed := range seeding.Draw(t, histories(t)) {
		if err := run(rand.New(rand.NewPCG(seed, 42))); err != nil {
			t.Fatalf("history %d: %v", seed, err)
		}
	}
}

// clock makes times that repeat, crowd and sometimes jump or step back.
type clock struct {
	now    Time
	period int64
}

func newClock(r *rand.Rand, period time.Duration) *clock {
	return &clock{now: Time(r.Int64N(1 << 40)), period: int64(period)}
}

func (c *clock) tick(r *rand.Rand) Time {
	switch r.IntN(12) {
	case 0, 1, 2, 3:
		return c.now
	case 4:
		c.now += Time(c.period)
	case 5:
		c.now += Time(r.Int64N(3*c.period + 1))
	case 6:
		c.now = max(0, c.now-Time(r.Int64N(c.period+1)))
	default:
		c.now += Time(r.Int64N(c.period/3 + 2))
	}
	return c.now
}

// smallPolicy returns a windowed policy whose edges are met often.
func smallPolicy(r *rand.Rand, a Algorithm) Policy {
	p := Policy{Algorithm: a, Rate: Rate{r.Int64N(9), time.Duration(1 + r.Int64N(30))}}
	if r.IntN(4) == 0 {
		p.Rate.Period = time.Duration(1 + r.Int64N(int64(time.Hour)))
	}
	p.CountRefused = r.IntN(3) == 0
	return p
}

func smallCost(r *rand.Rand, quota int64) int64 {
	switch r.IntN(8) {
	case 0:
		return 0
	case 1:
		return r.Int64N(quota + 3)
	default:
		return 1
	}
}

// checkWait checks what a refusal promises: at now+RetryAfter the cost fits, one
// nanosecond earlier it does not.
func checkWait(v Verdict, now Time, fits func(Time) bool) error {
	if v.Allowed {
		if v.RetryAfter != 0 || v.Reason != ReasonNone {
			return fmt.Errorf("allowed with %+v", v)
		}
		return nil
	}
	if v.Reason == ReasonNone || v.RetryAfter <= 0 {
		return fmt.Errorf("refused with %+v", v)
	}
	if v.RetryAfter == Never {
		return nil
	}
	if at := now.Add(v.RetryAfter); !fits(at) {
		return fmt.Errorf("at %d told to wait %v and refused at %d", now, v.RetryAfter, at)
	} else if fits(at - 1) {
		return fmt.Errorf("at %d told to wait %v, but one nanosecond less would do", now, v.RetryAfter)
	}
	return nil
}

// event is something that a model remembers.
type event struct {
	at   Time
	cost int64
}

// sumIn adds what happened in (after, upTo].
func sumIn(events []event, after, upTo Time) (sum int64) {
	for _, e := range events {
		if e.at > after && e.at <= upTo {
			sum += e.cost
		}
	}
	return sum
}
