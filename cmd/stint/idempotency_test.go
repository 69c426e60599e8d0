package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/seeding"
)

// TestLostAnswersAreChargedOnce: a third of the answers to takes with idempotency keys are lost, some before the request
// was read, and callers send each again until they have an answer, while services are killed with kill -9. Each is
// charged exactly once. STINT_ONCE_TAKES=10000 runs the row whole.
func TestLostAnswersAreChargedOnce(t *testing.T) {
	t.Parallel()
	takes := 500
	if n, err := strconv.Atoi(os.Getenv("STINT_ONCE_TAKES")); err == nil && n > 0 {
		takes = n
	}
	for name, store := range map[string]func(t *testing.T) (services, kills int, flags []string){
		"memory": func(*testing.T) (int, int, []string) { return 1, 0, nil },
		"disk": func(t *testing.T) (int, int, []string) {
			return 1, 3, []string{"--state-dir", t.TempDir(), "--sync", "always"}
		},
		"redis": func(t *testing.T) (int, int, []string) {
			return 2, 3, []string{"--store", redistest.Start(t).URL() + "?timeout=30s"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			services, kills, flags := store(t)
			flags = append([]string{"--config", file(t, "stint.yaml", `limits:
  - {name: month, key: [customer], algorithm: fixed_window, rate: 4000000000000/month, on_store_failure: reject}
  - {name: hour, rate: 3000000000/hour, count_refused: true, on_store_failure: reject}
`)}, flags...)
			var addresses [2]atomic.Pointer[string]
			nodes := make([]*process, services)
			begin := func(i int) {
				nodes[i] = serveProcess(t, nil, flags...)
				addresses[i].Store(&nodes[i].http)
			}
			for i := range nodes {
				begin(i)
			}
			var left, used atomic.Int64
			left.Store(int64(takes))
			seed := uint64(0)
			for seed = range seeding.Draw(t, 1) {
			}
			part := int64(max(1, takes/(kills+1)))
			reached := make(chan struct{}, takes) // the end of a part: a service is killed
			var wg sync.WaitGroup
			for caller := range 8 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(seed, uint64(caller)))
					for n := left.Add(-1); n >= 0; n = left.Add(-1) {
						if n%part == 0 {
							reached <- struct{}{}
						}
						cost := 1 + r.Int64N(3)
						used.Add(cost)
						for sendOnce(t, r, *addresses[r.IntN(services)].Load(), fmt.Sprint("key ", n), cost) {
						}
					}
				})
			}
			for k := range kills {
				<-reached
				i := k % services
				nodes[i].kill()
				begin(i)
			}
			wg.Wait()
			if got := nodes[0].usedOf("anna"); got != used.Load() {
				t.Errorf("seed %d: %d takes of %d in all are counted as %d", seed, takes, used.Load(), got)
			}
		})
	}
}

// sendOnce sends a take and reports whether it has to be sent again: its answer was lost, or the service was.
func sendOnce(t *testing.T, r *rand.Rand, address, key string, cost int64) (again bool) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	lost := r.IntN(3) == 0
	if lost && r.IntN(2) == 0 {
		// The caller goes while the service reads, decides or answers.
		defer time.AfterFunc(time.Duration(r.Int64N(int64(2*time.Millisecond))), cancel).Stop()
	}
	body := fmt.Sprintf(`{"attributes":{"customer":"anna"},"cost":%d}`, cost)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address+"/v1/take", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return false
	}
	req.Header.Set("Idempotency-Key", key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return true
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	switch {
	case err != nil || lost:
		return true
	case resp.StatusCode == http.StatusServiceUnavailable: // it is ending, or the store did not answer
		return true
	case resp.StatusCode != http.StatusOK:
		t.Errorf("key %s: %d %s", key, resp.StatusCode, text)
	}
	return false
}
