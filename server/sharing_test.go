package server_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

const sharingConfig = `limits:
  - {name: loud, match: {kind: loud}, rate: 50/s, burst: 10, sharing: suppressed}
  - {name: quarter, match: {kind: split}, rate: 80/s, burst: 20, sharing: split, split: {instances: 4}}
  - {name: own, match: {kind: loud}, key: [user], rate: 1000000/s}
`

// Over the ports of the service: what is above a suppressed limit is refused by part, with
// a reason, whatever other limits are met, and operators see it; what is split has its
// part.
func TestSharing(t *testing.T) {
	t.Parallel() // it waits for most of its time
	s := start(t, sharingConfig, stateIn(t.TempDir()))
	// shown is the view of a limit while it is asked: what nobody wants is not lent.
	shown := func(kind, name string, parts ...string) {
		t.Helper()
		late := time.After(20 * time.Second)
		for {
			for range 10 {
				s.asks(kind)
			}
			a := s.do(http.MethodGet, s.admin+"/v1/leases?limit="+name, "")
			missing := slices.DeleteFunc(slices.Clone(parts), func(part string) bool { return strings.Contains(a.body, part) })
			if len(missing) == 0 {
				return
			}
			select {
			case <-late:
				t.Fatalf("no %s in %s", missing, a.body)
			default:
			}
		}
	}
	s.ask("loud", 50, 10, "suppressed")
	shown("loud", "loud", `"sharing": "suppressed"`, `"reject": 0.`, `"attempted_total": `, `"admitted_total": `)
	s.ask("split", 20, 5, "rate_exceeded")
	shown("split", "quarter", `"sharing": "split"`, `"capacity": 20`, `"burst": 5`)
	late := time.After(20 * time.Second)
	for metrics := ""; !strings.Contains(metrics, `stint_suppression_reject_fraction{limit="loud"}`); {
		select {
		case <-late:
			t.Fatalf("metrics: %s", metrics)
		default:
			s.asks("loud")
			metrics = s.do(http.MethodGet, s.admin+"/metrics", "").body
		}
	}
	write(t, s.path, strings.Replace(strings.Replace(sharingConfig, "50/s", "100/s", 1), "80/s", "160/s", 1))
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	s.ask("loud", 100, 10, "suppressed")
}

// asks takes one of a kind, and waits: about 250 a second are asked for, which is more than each limit admits.
func (s *service) asks(kind string) answer {
	s.t.Helper()
	a := s.post("/v1/take", `{"attributes":{"kind":"`+kind+`","user":"u"}}`)
	<-time.After(3 * time.Millisecond)
	return a
}

// outcome is what became of requests that came one after the other.
type outcome struct {
	admitted, asked int
	reasons         map[string]int // of those that were refused
	least, most     float64        // that a limit admits of them
}

// once asks for two seconds, after one that settles, and says what rate and burst admit
// at least and at most of that: not less but while the machine stands still, for which
// nobody asks.
func (s *service) once(kind string, rate, burst float64) (o outcome) {
	s.t.Helper()
	o.reasons = map[string]int{}
	settled := time.Now().Add(time.Second)
	for time.Now().Before(settled) {
		s.asks(kind)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*time.Second)
	defer cancel()
	stood, begin := standstills(ctx), time.Now()
	for ; ctx.Err() == nil; o.asked++ {
		a := s.asks(kind)
		switch {
		case a.status == 200:
			o.admitted++
		case a.status == 429:
			_, reason, _ := strings.Cut(a.body, `"reason":"`)
			reason, _, _ = strings.Cut(reason, `"`)
			o.reasons[reason]++
		default:
			s.t.Fatalf("%d %s", a.status, a.body)
		}
	}
	o.most = burst + rate*time.Since(begin).Seconds()
	o.least = 0.7 * min(float64(o.asked), rate*(2-stood().Seconds()))
	return o
}

// ask asks until at least that is admitted and nine of ten refusals have the reason. A part
// that is refused follows demand, and demand follows how the machine runs this test: what it
// asks in clumps meets an empty bucket. More than the most is never admitted.
func (s *service) ask(kind string, rate, burst float64, reason string) {
	s.t.Helper()
	for late := time.Now().Add(30 * time.Second); ; {
		o := s.once(kind, rate, burst)
		if float64(o.admitted) > o.most {
			s.t.Errorf("%d of %d admitted, want at most %.0f", o.admitted, o.asked, o.most)
		}
		refused := o.asked - o.admitted
		if float64(o.admitted) >= o.least && o.reasons[reason] >= refused*9/10 {
			return
		}
		if time.Now().After(late) {
			s.t.Fatalf("%d of %d admitted, want at least %.0f; %d refused, for %v; after 30 s", o.admitted, o.asked, o.least, refused, o.reasons)
		}
	}
}

// standstills measures until ctx ends for how long in all this process was not woken for more
// than 20 ms after its time.
func standstills(ctx context.Context) (stood func() time.Duration) {
	const slot = 5 * time.Millisecond
	all := make(chan time.Duration, 1)
	go func() {
		sum := time.Duration(0)
		for last := time.Now(); ctx.Err() == nil; {
			select {
			case <-ctx.Done():
			case <-time.After(slot):
			}
			now := time.Now()
			if late := now.Sub(last) - slot; late > 4*slot {
				sum += late
			}
			last = now
		}
		all <- sum
	}()
	return func() time.Duration { return <-all }
}
