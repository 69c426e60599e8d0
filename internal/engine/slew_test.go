package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// What a server is asked for when its load jumps, with and without a bound on the rise, and when it
// rises by as much as the bound allows; arrivals are random in virtual time. The table is in
// evidence.yaml: go test ./internal/engine -run TestSlew -v
func TestSlew(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const rate, start, rise = 3000, 150, 150
	for _, c := range []struct {
		name, limit string
		load        func(second int) float64 // arrivals per second
		refused     bool
	}{
		{"step 50 to 3000/s, rate alone", "rate: 3000/s", step, false},
		{"step 50 to 3000/s, rising_window", "rate: 3000/s, algorithm: rising_window, start: 150, rise: 150", step, true},
		{"ramp of 50/s each second, rising_window", "rate: 3000/s, algorithm: rising_window, start: 150, rise: 150", ramp, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			set, err := rules.Parse("slew.yaml", []byte("limits: [{name: slew, "+c.limit+"}]"))
			if err != nil {
				t.Fatal(err)
			}
			e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Until(time.Now().Truncate(time.Second).Add(time.Second)))
			rng := seeding.Rand(t)
			before, largest, refused, offered := 0, 0, 0, 0
			line := ""
			for second := range 25 {
				end := time.Now().Add(time.Second)
				admitted := 0
				for {
					pause := time.Duration(rng.ExpFloat64() / c.load(second) * float64(time.Second))
					if time.Now().Add(pause).After(end) {
						time.Sleep(time.Until(end))
						break
					}
					time.Sleep(pause)
					d, err := e.Take(t.Context(), limit.Request{})
					if err != nil {
						t.Fatal(err)
					}
					if offered++; d.Allowed {
						admitted++
					} else if refused++; d.Results[0].Reason == limit.ReasonNone {
						t.Fatalf("%+v", d)
					}
				}
				if strings.Contains(c.limit, "rising") && admitted > min(rate, max(start, before+rise)) {
					t.Errorf("%s: second %d admitted %d after %d", c.name, second, admitted, before)
				}
				largest, before = max(largest, admitted-before), admitted
				if second%4 == 0 {
					line += fmt.Sprintf(" %d", admitted)
				}
			}
			if c.refused != (refused > offered/100) {
				t.Errorf("%s: %d of %d refused", c.name, refused, offered)
			}
			t.Logf("%s: admitted in every fourth second%s; largest rise %d; refused %d of %d", c.name, line, largest, refused, offered)
		})
	}
}

func step(second int) float64 {
	if second < 2 {
		return 50
	}
	return 2950
}

func ramp(second int) float64 { return 50 + 50*float64(second) }
