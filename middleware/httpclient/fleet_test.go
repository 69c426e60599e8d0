package httpclient

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/outgoing"
)

// TestFleetAmplification: a hundred clients, 200 requests each, before a backend that refuses
// everything. Retries within the budget make at most 1.1 times the requests; without a budget it is
// 3 times, and with the throttle it is a part of them.
func TestFleetAmplification(t *testing.T) {
	off := outgoing.Throttle{Off: true}
	for _, tt := range []struct {
		name        string
		p           Policy
		least, most float64
	}{
		{"no budget", Policy{Throttle: off, Retry: outgoing.Retry{Percent: 100, Reserve: 1000}}, 3, 3},
		{"budget of a tenth", Policy{Throttle: off}, 1, 1.1},
		{"budget and throttle", Policy{}, 0, 0.5},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const clients, requests = 100, 200
				var attempts atomic.Int64
				down := roundTripper(func(*http.Request) (*http.Response, error) {
					attempts.Add(1)
					return respond(503), nil
				})
				var running sync.WaitGroup
				for client := range uint64(clients) {
					tr := transport(t, down, tt.p)
					r := rand.New(rand.NewPCG(client, 1))
					running.Go(func() {
						for range requests {
							if resp, err := tr.RoundTrip(get(t, "http://backend/")); err == nil {
								_ = resp.Body.Close()
							}
							time.Sleep(time.Duration(r.Int64N(int64(200 * time.Millisecond))))
						}
					})
				}
				running.Wait()
				times := float64(attempts.Load()) / (clients * requests)
				t.Logf("attempts at the backend: %.3f times the requests", times)
				if times < tt.least || times > tt.most {
					t.Errorf("%.3f times the requests, want %v to %v", times, tt.least, tt.most)
				}
			})
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// TestServerThatRefuses is row E27 with a real server. Eight workers of one client send it 4,000
// requests/s; it accepts them, refuses a part of them for a window, and accepts them again.
// Attempts are at most K x accepts + probes + Spare + those in flight when the first refusal came,
// and the throttle opens again. With STINT_WINDOW=2s the window is longer, and 10 to 90 % are
// refused. The times are printed with -v: they depend on what else the machine does.
func TestServerThatRefuses(t *testing.T) {
	window, parts := time.Second, []float64{0.5}
	if text := os.Getenv("STINT_WINDOW"); text != "" {
		var err error
		if window, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
		parts = []float64{0.1, 0.3, 0.5, 0.7, 0.9}
	}
	for _, k := range []float64{1.1, 2} {
		for _, refuses := range parts {
			t.Run("K="+strconv.FormatFloat(k, 'f', -1, 64)+"/refuses="+strconv.FormatFloat(refuses, 'f', -1, 64), func(t *testing.T) {
				serverThatRefuses(t, k, refuses, window)
			})
		}
	}
}

func serverThatRefuses(t *testing.T, k, refuses float64, window time.Duration) {
	const workers = 8
	var refusing atomic.Bool
	var attempts, accepts atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		attempts.Add(1)
		if refusing.Load() && rand.Float64() < refuses {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		accepts.Add(1)
	}))
	defer server.Close()
	tr := transport(t, nil, Policy{
		Throttle: outgoing.Throttle{K: k, Window: window}, Retry: outgoing.Retry{Attempts: 1},
	})
	defer tr.CloseIdleConnections()
	pace, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(4000), Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	passed := make(chan bool, workers) // whether each request was sent
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for pace.Wait(ctx) == nil {
				resp, err := tr.RoundTrip(get(t, server.URL))
				if err == nil {
					_ = resp.Body.Close()
				}
				select {
				case passed <- err == nil:
				case <-ctx.Done():
				}
			}
		})
	}
	during := func(d time.Duration) (sent, all int) {
		for over := time.After(d); ; {
			select {
			case ok := <-passed:
				if all++; ok {
					sent++
				}
			case <-over:
				return sent, all
			}
		}
	}
	during(window / 2)
	refusing.Store(true)
	sent, all := during(window)
	refusing.Store(false)
	recovered := time.Now()
	inARow := 0
	for inARow < 200 && time.Since(recovered) < 20*window {
		if inARow++; !<-passed {
			inARow = 0
		}
	}
	reopened := time.Since(recovered)
	cancel()
	running.Wait()
	s := tr.Stats()
	bound := k*float64(accepts.Load()) + float64(s.Probes+10+workers)
	t.Logf("sent %.3f of the requests while it refused; %d attempts, %.3f of the bound; %d probes; 200 in a row were sent %v after the recovery (a tenth of the window: %v)",
		float64(sent)/float64(all), attempts.Load(), float64(attempts.Load())/bound, s.Probes, reopened.Round(time.Millisecond), window/10)
	if float64(attempts.Load()) > bound {
		t.Errorf("%d attempts, want at most %.1f", attempts.Load(), bound)
	}
	if inARow < 200 {
		t.Errorf("it is not open %v after the recovery", reopened)
	}
}
