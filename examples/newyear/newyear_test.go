package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestMain lets this test binary be the consumers and the intake, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == consumeArg {
		if err := consume(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "newyear:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == intakeArg {
		if err := runIntake(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "newyear:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestCampaign runs real processes whose clocks are off and stepped back, with the limit
// halved and a consumer fewer in the middle.
func TestCampaign(t *testing.T) {
	t.Parallel()
	s := usual()
	s.Limit, s.NewLimit, s.Processes, s.NewProcesses, s.Seconds = 800, 400, 8, 7, 2
	s.Offset, s.Step = 100*time.Millisecond, -10*time.Second
	punctual := punctuality(t)
	res, err := s.measure(t.Context(), func(int, int64) {})
	if err != nil {
		t.Fatal(err)
	}
	// Burst, one for each clock that is off, and one for each process that has its permit
	// and has not read the clock yet.
	more := int64(8 + s.Processes + s.Processes)
	if res.WorstSliding > s.Limit+more || res.WorstSecondNew > s.NewLimit+more+1 {
		t.Errorf("%d in a second, %d in one after the change, want at most %d and %d", res.WorstSliding, res.WorstSecondNew, s.Limit+more, s.NewLimit+more+1)
	}
	awake := punctual()
	if float64(res.Count) < 900*awake || res.Refused == 0 || res.Processed < res.Count {
		t.Errorf("%d in two seconds, of 1200 (processed %d), and %d turned away, on a machine that was on time %.0f %% of the time",
			res.Count, res.Processed, res.Refused, 100*awake)
	}
	var out strings.Builder
	res.write(&out)
	if !strings.Contains(out.String(), "of the limit") {
		t.Errorf("says %q", out.String())
	}
}

// punctuality measures, until the function that it returns is called, in which part of the
// 10 ms slots this process was awake. A permit is due every 10 ms in each consumer, and one
// for which nobody is awake is lost, so a busy machine cannot use more than that part.
func punctuality(t *testing.T) func() float64 {
	const slot = 10 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	begin, slots := time.Now(), make(chan int64, 1)
	go func() {
		used, last := int64(0), int64(-1)
		for ctx.Err() == nil {
			if now := int64(time.Since(begin) / slot); now != last {
				used, last = used+1, now
			}
			select {
			case <-time.After(slot/2 - time.Since(begin)%(slot/2)):
			case <-ctx.Done():
			}
		}
		slots <- used
	}()
	return func() float64 {
		all := int64(time.Since(begin)/slot) + 1
		cancel()
		return min(1, float64(<-slots)/float64(all))
	}
}

// TestBursts: windows admit two seconds' worth across the edge of one, as they are
// described to; without windows they do not.
func TestBursts(t *testing.T) {
	t.Parallel()
	var both sync.WaitGroup
	for _, tt := range []struct {
		mode        string
		least, most int64
	}{{"window", 600, 808}, {"even", 1, 416}} {
		both.Go(func() {
			s := usual()
			s.Limit, s.Processes, s.Demand, s.Seconds, s.Mode, s.Bursts = 400, 4, 10, 3, tt.mode, true
			res, err := s.measure(t.Context(), func(int, int64) {})
			if err != nil {
				t.Error(err)
				return
			}
			if res.WorstSliding < tt.least || res.WorstSliding > tt.most {
				t.Errorf("%s: %d in a second, want %d to %d", tt.mode, res.WorstSliding, tt.least, tt.most)
			}
		})
	}
	both.Wait()
}

func TestBadSettings(t *testing.T) {
	for args, want := range map[string]string{
		"-limit 0":              "-limit is 0",
		"-processes 0":          "-processes is 0",
		"-new-processes 97":     "-new-processes 97",
		"-demand 0":             "-demand is 0",
		"-demand NaN":           "-demand is NaN",
		"-seconds 0":            "-seconds is 0",
		"-offset -1s":           "-offset is -1s",
		"-mode fast":            `-mode is "fast", want one of even, pid, window, window-even`,
		"-table none":           `-table is "none", want one of changes, clocks, limits, pacing`,
		"-processes 2 leftover": `unexpected argument "leftover"`,
	} {
		if err := run(t.Context(), strings.Fields(args), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, []string{"-processes", "2"}, &bytes.Buffer{}); err == nil {
		t.Error("runs although it was interrupted")
	}
}

func TestQueue(t *testing.T) {
	q := newQueue(3)
	if q.accept(2, 10) != 2 || q.accept(5, 20) != 1 || q.turnedAway() != 4 {
		t.Error("want three accepted and four turned away")
	}
	var got []int64
	for range 2 {
		for came, ok := q.next(); ok; came, ok = q.next() {
			got = append(got, came)
		}
		q.accept(1, 30)
	}
	if want := []int64{10, 10, 20, 30}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestMeasureSeries compares the figures with those of a naive count.
func TestMeasureSeries(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	const second = int64(time.Second)
	for range 200 {
		from, at := 7*second, 5*second
		var all []sent
		for at < 14*second {
			at += 1 + rng.Int64N(second/3)
			all = append(all, sent{at, 1 + rng.Int64N(3)})
		}
		f := measureSeries(all, from, 5*time.Second)
		var want figures
		aligned := map[int64]int64{}
		for i, s := range all {
			if s.at < from || s.at >= from+5*second {
				continue
			}
			want.Count += s.n
			aligned[s.at/second] += s.n
			want.WorstAligned = max(want.WorstAligned, aligned[s.at/second])
			sliding := int64(0)
			for _, later := range all[i:] {
				if later.at < s.at+second && later.at < from+5*second {
					sliding += later.n
				}
			}
			want.WorstSliding = max(want.WorstSliding, sliding)
		}
		if f.Count != want.Count || f.WorstSliding != want.WorstSliding || f.WorstAligned != want.WorstAligned {
			t.Fatalf("got %+v, want %+v", f, want)
		}
	}
}

// FuzzDecode: whatever a report has in it is an error or a report that encodes to itself.
func FuzzDecode(f *testing.F) {
	f.Add(encode([]sent{{1, 1}, {5, 3}, {1 << 60, 1 << 40}}))
	f.Add([]byte{0x80})
	f.Fuzz(func(t *testing.T, body []byte) {
		report, err := decode(body)
		if err != nil {
			return
		}
		again, err := decode(encode(report))
		if err != nil || len(again) != len(report) || len(report) > 0 && !reflect.DeepEqual(again, report) {
			t.Errorf("%v becomes %v, %v", report, again, err)
		}
	})
}

func TestConfigService(t *testing.T) {
	s := newConfigService(config{Total: "10/s", Instances: 3})
	server := httptest.NewServer(s)
	defer server.Close()
	client := configClient{server.Client(), server.URL}
	first, err := client.next(t.Context(), 0)
	if err != nil || first.Total != "10/s" || first.Version != 1 {
		t.Fatalf("%+v, %v", first, err)
	}
	watched := make(chan config)
	go func() {
		next, err := client.next(t.Context(), first.Version)
		if err != nil {
			t.Error(err)
		}
		watched <- next
	}()
	for _, edit := range []func(*config){func(c *config) { c.Total = "many" }, func(c *config) { c.Instances = 0 }} {
		if s.change(edit) == nil {
			t.Error("a bad configuration is accepted")
		}
	}
	if err := s.change(func(c *config) { c.Total = "20/s" }); err != nil {
		t.Fatal(err)
	}
	if next := <-watched; next.Total != "20/s" || next.Version != 2 || next.Instances != 3 {
		t.Errorf("told %+v", next)
	}
	resp, err := server.Client().Get(server.URL + "/config?after=x")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest {
		t.Errorf("status %d for a version that is none", resp.StatusCode)
	}
}

func TestProviderRefusesNonsense(t *testing.T) {
	server := httptest.NewServer(newProvider(1))
	defer server.Close()
	for path, body := range map[string]string{"/sent?process=x": "", "/sent?process=1": "\x80", "/ended?process=1": "{"} {
		resp, err := server.Client().Post(server.URL+path, "", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status %d", path, resp.StatusCode)
		}
	}
}
