package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// server is a server process.
type server struct {
	url   string
	cmd   *exec.Cmd
	stdin io.Closer
}

func start(args ...string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.Command(self, append([]string{"serve"}, args...)...)}
	s.cmd.Stderr = os.Stderr
	// More threads than cores: the kernel lets a thread that has slept go first, where Go's
	// scheduler, with a thread for each core, lets it wait for up to 10 ms.
	s.cmd.Env = append(os.Environ(), "GOMAXPROCS=8")
	stdin, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	s.stdin = stdin
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("the server did not start: %w", err)
	}
	s.url = strings.TrimSpace(line)
	return s, nil
}

func (s *server) stop() {
	_ = s.stdin.Close()
	_ = s.cmd.Wait()
}

func (s *server) state() (of state, err error) {
	resp, err := http.Get(s.url + "/state")
	if err != nil {
		return of, err
	}
	defer resp.Body.Close()
	return of, json.NewDecoder(resp.Body).Decode(&of)
}

var client = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 512}, Timeout: 60 * time.Second}

// get sends one request and returns its status.
func (s *server) get(ctx context.Context, route string, cpu time.Duration) int {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/%s?cpu=%v", s.url, route, cpu), nil)
	if err != nil {
		return 0
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	return resp.StatusCode
}

// stream is one route's requests.
type stream struct {
	route     string
	perSecond float64
	cpu       func(r *rand.Rand, at time.Duration) time.Duration
}

// outcome is what became of a run.
type outcome struct {
	cores     float64 // CPU-seconds per second that the server used
	latencies map[string][]time.Duration
	refused   map[string]int
	state     state
}

func (o *outcome) quantile(route string, q float64) time.Duration {
	all := o.latencies[route]
	if len(all) == 0 {
		return 0
	}
	return all[min(len(all)-1, int(float64(len(all))*q))]
}

// load sends the streams' requests, after warm up, and measures for length. What is under way at
// the end is given two seconds.
func load(s *server, streams []stream, warm, length time.Duration) (out outcome, _ error) {
	out.latencies, out.refused = map[string][]time.Duration{}, map[string]int{}
	ctx, stop := context.WithTimeout(context.Background(), warm+length+2*time.Second)
	defer stop()
	var mu sync.Mutex
	var wg sync.WaitGroup
	begin := time.Now()
	for i, st := range streams {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 13))
			next := begin
			for {
				next = next.Add(time.Duration(r.ExpFloat64() / st.perSecond * float64(time.Second)))
				time.Sleep(time.Until(next))
				at := next.Sub(begin)
				if at > warm+length {
					return
				}
				cpu, due := st.cpu(r, at), next
				wg.Go(func() {
					// From the time at which it was due: a client that is late does not hide a
					// server that is.
					status := s.get(ctx, st.route, cpu)
					took := time.Since(due)
					mu.Lock()
					defer mu.Unlock()
					switch {
					case at < warm:
					case status == http.StatusOK:
						out.latencies[st.route] = append(out.latencies[st.route], took)
					default:
						out.refused[st.route]++
					}
				})
			}
		})
	}
	time.Sleep(time.Until(begin.Add(warm)))
	before, err := s.state()
	if err != nil {
		return out, err
	}
	from := time.Now()
	time.Sleep(time.Until(begin.Add(warm + length)))
	if out.state, err = s.state(); err != nil {
		return out, err
	}
	out.cores = (out.state.CPU - before.CPU).Seconds() / time.Since(from).Seconds()
	wg.Wait()
	for _, all := range out.latencies {
		slices.Sort(all)
	}
	return out, nil
}

// around is a cost within a fifth of one that drifts between 0.7 and 1.4 times of it.
func around(cpu, period time.Duration) func(*rand.Rand, time.Duration) time.Duration {
	return func(r *rand.Rand, at time.Duration) time.Duration {
		drift := 1.0
		if period > 0 {
			drift = math.Exp2(0.5 * math.Sin(2*math.Pi*at.Seconds()/period.Seconds()))
		}
		return time.Duration(float64(cpu) * drift * (0.8 + 0.4*r.Float64()))
	}
}

// showMixed is the row "routes of 1, 10 and 500 ms, mixed and drifting".
func showMixed(length time.Duration) error {
	const share = 1.0
	cheap := stream{"cheap", 150, around(time.Millisecond, 0)}
	all := []stream{cheap, {"middle", 15, around(10*time.Millisecond, 10*time.Second)}, {"dear", 6, around(500*time.Millisecond, 13*time.Second)}}
	fmt.Printf("150 requests of 1 ms, 15 of 10 ms and 6 of 500 ms a second: 3.3 CPU-seconds a second; share %.1f\n\n", share)
	fmt.Println("| | CPU-s/s | cheap p50 | cheap p99 | of it in the queue | cheap, middle, dear done | refused | error of predictions |\n|---|---:|---:|---:|---:|---:|---:|---:|")
	for _, run := range []struct {
		name    string
		streams []stream
		args    []string
	}{
		{"the cheap route alone", []stream{cheap}, []string{"-by", "none"}},
		{"throttle, rate 1.0", all, []string{"-by", "rate", "-bound", fmt.Sprint(share)}},
		{"550 requests a second", all, []string{"-by", "qps", "-bound", "550"}},
	} {
		s, err := start(run.args...)
		if err != nil {
			return err
		}
		out, err := load(s, run.streams, 8*time.Second, length)
		s.stop()
		if err != nil {
			return err
		}
		off := "-"
		if st := out.state.Stats; st.Actual > 0 {
			off = fmt.Sprintf("%.0f %%", 100*st.Error.Seconds()/st.Actual.Seconds())
		}
		fmt.Printf("| %s | %.3f | %v | %v | %v | %d, %d, %d | %d, %d, %d | %s |\n", run.name, out.cores,
			out.quantile("cheap", 0.5).Round(10*time.Microsecond), out.quantile("cheap", 0.99).Round(10*time.Microsecond), out.state.Waited.Round(10*time.Microsecond),
			len(out.latencies["cheap"]), len(out.latencies["middle"]), len(out.latencies["dear"]),
			out.refused["cheap"], out.refused["middle"], out.refused["dear"], off)
	}
	return nil
}

// showCulprit is evaluation E37.
func showCulprit(length time.Duration) error {
	const cpu, concurrency = 5 * time.Millisecond, 2
	args := func(more ...string) []string {
		return append([]string{"-by", "concurrency", "-bound", fmt.Sprint(concurrency)}, more...)
	}
	full, err := capacity(args(), cpu)
	if err != nil {
		return err
	}
	cheap := []stream{{"cheap", 0.8 * full, around(cpu, 0)}}
	fmt.Printf("requests of %v at %.0f a second, 80 %% of what the server does; one of 10 s\n\n", cpu, 0.8*full)
	fmt.Println("| | cheap ones done | of the first | cheap p50 | cheap p99 | refused | culprit named after | it ended after |\n|---|---:|---:|---:|---:|---:|---:|---:|")
	first := 0
	for _, run := range []struct {
		name string
		one  bool
		args []string
	}{
		{"without it", false, args()},
		{"with it", true, args()},
		{"with it, cancelled", true, args("-cancel")},
	} {
		s, err := start(run.args...)
		if err != nil {
			return err
		}
		ended := make(chan string, 1)
		if run.one {
			time.AfterFunc(3*time.Second, func() {
				begin := time.Now()
				status := s.get(context.Background(), "cheap", 10*time.Second)
				ended <- fmt.Sprintf("%v (%d)", time.Since(begin).Round(time.Millisecond), status)
			})
		} else {
			ended <- "-"
		}
		out, err := load(s, cheap, 3*time.Second, length)
		if err != nil {
			s.stop()
			return err
		}
		end := <-ended
		s.stop()
		done := len(out.latencies["cheap"])
		if first == 0 {
			first = done
		}
		fmt.Printf("| %s | %d | %.1f %% | %v | %v | %d | %v | %s |\n", run.name, done, 100*float64(done)/float64(first),
			out.quantile("cheap", 0.5).Round(10*time.Microsecond), out.quantile("cheap", 0.99).Round(10*time.Microsecond),
			out.refused["cheap"], out.state.Named.Round(time.Millisecond), end)
	}
	return nil
}

// capacity is how many requests of that cost a server answers in a second.
func capacity(args []string, cpu time.Duration) (float64, error) {
	s, err := start(args...)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	const length = 3 * time.Second
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	begin := time.Now()
	for range 8 {
		wg.Go(func() {
			for time.Since(begin) < length {
				if s.get(context.Background(), "cheap", cpu) == http.StatusOK {
					mu.Lock()
					done++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return float64(done) / length.Seconds(), nil
}
