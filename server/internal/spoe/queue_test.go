package spoe

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// TestQueueRefusesAtOnce: HAProxy lets a request pass whose answer comes late. So limits that queue and leaky
// buckets answer without a wait, and admit no more than fit.
func TestQueueRefusesAtOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			burst, rate := 1+random.IntN(20), 1+random.IntN(100)
			algorithm := []string{"token_bucket", "leaky_bucket"}[random.IntN(2)]
			text := fmt.Sprintf("limits: [{name: q, key: [ip], rate: %d/s, burst: %d, algorithm: %s, on_exceed: {queue: {max_wait: %ds}}}]",
				rate, burst, algorithm, 1+random.IntN(60))
			set, err := rules.Parse("limits.yaml", []byte(text))
			if err != nil {
				t.Fatal(err)
			}
			e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s := New(Options{Engine: e, Fault: func(call string, p any) { t.Errorf("%s: %v", call, p) }})
			begin := time.Now()
			allowed, sent := 0, burst+1+random.IntN(40)
			for range sent {
				if strings.Contains(conversation(t, s, notifyOf(1, 1, argIP("192.0.2.7")))[0], " allowed=true ") {
					allowed++
				}
			}
			if took := time.Since(begin); took != 0 {
				t.Errorf("%s: %d answers took %v", text, sent, took)
			}
			want := burst
			if algorithm == "leaky_bucket" {
				want++ // the one that runs, and as many as fit behind it
			}
			if allowed != want {
				t.Errorf("%s: %d of %d allowed at once, want %d", text, allowed, sent, want)
			}
		})
	}
}
