package throttle_test

import (
	"context"
	"testing"
	"time"

	"github.com/stint-io/stint/throttle"
)

// BenchmarkStart is a request that starts at once and ends: two decisions, the prediction and its
// settlement, and a Work.
func BenchmarkStart(b *testing.B) {
	th, err := throttle.New(throttle.Options{Rate: 1e6, Burst: time.Hour, Concurrency: 1000})
	if err != nil {
		b.Fatal(err)
	}
	r := throttle.Request{Route: "GET /", User: "anna", Criticality: throttle.Critical}
	b.ReportAllocs()
	for b.Loop() {
		w, d, err := th.Start(context.Background(), r)
		if err != nil || !d.Allowed {
			b.Fatal(d, err)
		}
		w.Done()
	}
}

// BenchmarkRefused is a request that is refused since the queue is full.
func BenchmarkRefused(b *testing.B) {
	th, err := throttle.New(throttle.Options{Concurrency: 1, MaxWaiting: 1, MaxWait: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	hold, _, _ := th.Start(ctx, throttle.Request{})
	defer hold.Done()
	ended := make(chan struct{})
	defer func() { <-ended }()
	defer cancel()
	go func() {
		_, _, _ = th.Start(ctx, throttle.Request{})
		close(ended)
	}()
	for th.Stats().Waiting == 0 {
		select {
		case <-time.After(time.Millisecond):
		case <-ended:
			b.Fatal("nobody waits")
		}
	}
	r := throttle.Request{Route: "GET /", User: "anna", Criticality: throttle.Sheddable}
	b.ReportAllocs()
	for b.Loop() {
		if _, d, err := th.Start(ctx, r); err != nil || d.Allowed {
			b.Fatal(d, err)
		}
	}
}
