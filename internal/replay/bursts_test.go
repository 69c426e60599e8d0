package replay_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/replay"
)

// Three keys of 2/s, worked out by hand: a comes with 4 at once, and with 2 half a second later, when one of the four
// is refilled; b comes each second; c once, with a cost of 7.
func TestBurstsWalkThrough(t *testing.T) {
	const log = "time,user,n\n1791640500.0,a,1\n1791640500.0,a,1\n1791640500.0,a,1\n1791640500.0,a,1\n1791640500.0,b,1\n1791640500.5,a,1\n1791640500.5,a,1\n1791640501.0,b,1\n1791640502.0,b,1\n1791640503.0,c,7\n1791640504.0,vip,5\n"
	const limits = `
limits:
  - name: u
    key: [user]
    rate: 2/s
    burst: 1
    overrides: [{when: {user: vip}, rate: 1/minute}]
  - {name: w, rate: 5/minute, algorithm: fixed_window}
  - {name: closed, match: {user: b}, rate: 0/s}
`
	r := play(t, limits, &replay.Options{Cost: "n", Bursts: true}, log)
	want := []replay.Bursts{
		{Keys: 3, Rates: []replay.RateBursts{
			{"1/s", 6, 7, 7, 7}, // a: 4, then 3.5 + 2, of which there is no half token
			{"2/s", 5, 7, 7, 7}, // a: 4, then 3 + 2
			{"4/s", 4, 7, 7, 7}, // a: 4, then 2 + 2
		}},
		{Of: "override when user=vip", Keys: 1, Rates: []replay.RateBursts{{"1/2m", 5, 5, 5, 5}, {"1/m", 5, 5, 5, 5}, {"2/m", 5, 5, 5, 5}}},
	}
	if got := r.Limits[0].Bursts; !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if r.Limits[1].Bursts != nil || r.Limits[2].Bursts != nil {
		t.Errorf("bursts of a window or of a bucket without a rate: %+v", r.Limits[1:])
	}
	if r := play(t, limits, &replay.Options{Cost: "n"}, log); r.Limits[0].Bursts != nil {
		t.Error("nobody asked for bursts")
	}
}

// The burst for all keys refuses nothing of the log, and one token less refuses something: by the limits themselves,
// at each of the three rates, for 60 logs at random.
func TestBurstsAreTheSmallest(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	rng := seeding.Rand(t)
	for range 60 {
		var log strings.Builder
		log.WriteString("time,user,n\n")
		at, unit, rate := int64(1791640500_000), []string{"s", "minute", "7s"}[rng.IntN(3)], 1+rng.IntN(40)
		for range 50 + rng.IntN(300) {
			if rng.IntN(3) > 0 {
				at += rng.Int64N(400)
			}
			fmt.Fprintf(&log, "%d,u%d,%d\n", at, rng.IntN(1+rng.IntN(6)), 1+rng.IntN(3))
		}
		replayed := func(rate string, burst int64, o replay.Options) *replay.Report {
			o.Cost = "n"
			return play(t, fmt.Sprintf("limits:\n  - {name: u, key: [user], rate: %s, burst: %d}\n", rate, burst), &o, log.String())
		}
		r := replayed(fmt.Sprintf("%d/%s", rate, unit), 3, replay.Options{Bursts: true})
		for _, b := range r.Limits[0].Bursts[0].Rates {
			if b.Half > b.Nine || b.Nine > b.Ninety || b.Ninety > b.All {
				t.Errorf("%+v does not rise", b)
			}
			if r := replayed(b.Rate, b.All, replay.Options{}); r.Refused != 0 {
				t.Errorf("%d refused by %s with the burst %d for all", r.Refused, b.Rate, b.All)
			}
			if r := replayed(b.Rate, b.All-1, replay.Options{}); r.Refused == 0 {
				t.Errorf("none refused by %s with one less than the burst %d for all", b.Rate, b.All)
			}
		}
	}
}

// Keys beyond the bound are counted and change no figure.
func TestBurstsAreBounded(t *testing.T) {
	defer replay.SetMaxFitted(2)()
	text := csv(0, 1, 2) + "1791640500003,192.0.2.8\n1791640500004,192.0.2.9\n1791640500005,192.0.2.9\n1791640500006,192.0.2.7\n"
	r := play(t, perClient, &replay.Options{Bursts: true}, text)
	b := r.Limits[0].Bursts[0]
	if b.Keys != 2 || b.Left != 2 || b.Rates[1] != (replay.RateBursts{Rate: "1/s", Half: 1, Nine: 4, Ninety: 4, All: 4}) {
		t.Errorf("%+v", b)
	}
	var out strings.Builder
	if err := r.WriteText(&out); err != nil || !strings.Contains(out.String(), "without 2 requests of further keys") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
