package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestMain lets this test binary be the workers and the coordinator, too.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == workerArg || os.Args[1] == coordinatorArg) {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestLaggingPartitionGetsTheWholeLimit runs the real thing: broker, coordinator, workers and
// subscriber, with a worker and the coordinator killed in the middle.
func TestLaggingPartitionGetsTheWholeLimit(t *testing.T) {
	s := usual()
	s.Messages = 1000
	var out bytes.Buffer
	r, err := s.deliver(t.Context(), &out)
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	f := r.figures()
	r.print(&out)
	t.Log(out.String())
	if f.Missing != 0 {
		t.Errorf("%d of %d messages were never delivered", f.Missing, s.Messages)
	}
	if most := 2 * senders; f.Repeated > most { // the two partitions of the worker that was killed
		t.Errorf("%d messages were delivered more than once, want at most the %d in flight", f.Repeated, most)
	}
	if f.Burst > f.Allowed {
		t.Errorf("%.1f + rate x T came in a window, want at most %.1f", f.Burst, f.Allowed)
	}
	if most := float64(s.burst() + 2*s.Workers*senders); f.Permitted > most {
		t.Errorf("%.1f + rate x T were permitted in a window, want at most %.1f", f.Permitted, most)
	}
	if f.Refused == 0 {
		t.Error("nothing was refused, so nothing was tried again")
	}
	// An even division cannot give the lagging partition more than 1 x limit/N. Of four workers
	// 4 would be all; the others deliver a tenth, and the machine may be busy.
	if f.Gain < 2 {
		t.Errorf("the lagging partition had %.2f x limit/N, want more than 2", f.Gain)
	}
	if quarter := float64(s.Limit) / 4; f.SickPerSecond > quarter {
		t.Errorf("%.0f/s were tried after a second of refusals, want at most %.0f", f.SickPerSecond, quarter)
	}
	chart := xml.NewDecoder(bytes.NewReader(r.svg()))
	for {
		if _, err := chart.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the chart is not XML: %v", err)
		}
	}
}

func TestLargestBurst(t *testing.T) {
	at := func(ms ...int) (all []arrival) {
		for _, m := range ms {
			all = append(all, arrival{at: time.Duration(m) * time.Millisecond})
		}
		return all
	}
	for want, times := range map[string][]int{
		"0.0": {},
		"1.0": {0, 100, 200, 300},
		"2.0": {0, 50, 100}, // of 10/s: three in 100 ms
		"3.0": {0, 0, 0, 1000},
		"4.5": {0, 50, 50, 50, 50, 400}, // of 10/s: five in 50 ms
	} {
		got := fmt.Sprintf("%.1f", largestBurst(at(times...), 10))
		if got != want {
			t.Errorf("%v: %s, want %s", times, got, want)
		}
	}
}

func TestBadSettings(t *testing.T) {
	for args, want := range map[string]string{
		"-limit 1":          "-limit is 1",
		"-workers 1":        "-workers is 1",
		"-messages 10":      "-messages is 10",
		"-demand guess":     `-demand is "guess"`,
		"-nats nowhere:1:1": "nowhere",
		"-unknown":          "not defined",
		"more":              "usage",
	} {
		if err := run(t.Context(), strings.Fields(args), strings.NewReader(""), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}
