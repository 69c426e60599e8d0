package limit

import (
	"context"
	"sync"
	"testing"
	"time"
)

// BenchmarkWaitFunc: a thousand come to a limit that is used up, wait, and are called.
func BenchmarkWaitFunc(b *testing.B) {
	l := newLimiter(b, bucketPolicy(PerSecond(1_000_000_000), 1000))
	slow, fast := bucketPolicy(PerHour(1), 1), bucketPolicy(PerSecond(1_000_000_000), 1000)
	b.ReportAllocs()
	for b.Loop() {
		if err := l.SetPolicy(slow); err != nil {
			b.Fatal(err)
		}
		var all sync.WaitGroup
		all.Add(1000)
		for range 1000 {
			l.WaitFunc(1, Never, func(err error) {
				if err != nil {
					b.Error(err)
				}
				all.Done()
			})
		}
		if err := l.SetPolicy(fast); err != nil {
			b.Fatal(err)
		}
		all.Wait()
	}
}

// BenchmarkWaitFuncCancel: a thousand come, and leave in another order.
func BenchmarkWaitFuncCancel(b *testing.B) {
	l := newLimiter(b, bucketPolicy(PerHour(1), 1))
	for l.Allow() {
	}
	cancels := make([]func() bool, 1000)
	b.ReportAllocs()
	for b.Loop() {
		for i := range cancels {
			cancels[i] = l.WaitFunc(1, Never, func(error) {})
		}
		for i := range cancels {
			if !cancels[i*7919%1000]() {
				b.Fatal("not in line")
			}
		}
	}
}

// BenchmarkWait: goroutines that block for the next token.
func BenchmarkWait(b *testing.B) {
	l := newLimiter(b, bucketPolicy(PerSecond(50_000_000), 1))
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := l.Wait(context.Background()); err != nil {
				b.Error(err)
			}
		}
	})
}

// BenchmarkQueue: a thousand wait in the line of one key for a Taker that refuses, and leave.
func BenchmarkQueue(b *testing.B) {
	q, err := NewQueue(newLimiter(b, bucketPolicy(PerHour(1), 1)), QueueOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	if _, err := q.Take(context.Background(), Request{}); err != nil {
		b.Fatal(err)
	}
	req := Request{Attributes: []Attribute{{Name: "user", Value: "acme"}}}
	cancels := make([]func() bool, 1000)
	b.ReportAllocs()
	for b.Loop() {
		for i := range cancels {
			cancels[i] = q.WaitFunc(req, Never-time.Hour+time.Duration(i), func(Decision, error) {})
		}
		for i := range cancels {
			if !cancels[i*7919%1000]() {
				b.Fatal("not in line")
			}
		}
	}
}

// BenchmarkQueueServed: a thousand wait in the line of one key and are admitted.
func BenchmarkQueueServed(b *testing.B) {
	l := newLimiter(b, bucketPolicy(PerHour(1), 1))
	q, err := NewQueue(l, QueueOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer q.Close()
	slow, fast := bucketPolicy(PerSecond(1000), 1), bucketPolicy(PerSecond(1_000_000_000), 1000)
	req := Request{Attributes: []Attribute{{Name: "user", Value: "acme"}}}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.SetPolicy(slow); err != nil {
			b.Fatal(err)
		}
		var all sync.WaitGroup
		all.Add(1000)
		for range 1000 {
			q.WaitFunc(req, Never, func(_ Decision, err error) {
				if err != nil {
					b.Error(err)
				}
				all.Done()
			})
		}
		if err := l.SetPolicy(fast); err != nil {
			b.Fatal(err)
		}
		all.Wait()
	}
}
