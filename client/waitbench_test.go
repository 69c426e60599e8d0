package client

import (
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// BenchmarkWaitFunc: a thousand come to a lease that is used up, wait, and are called.
func BenchmarkWaitFunc(b *testing.B) {
	l := leased(b, 0, 1000)
	l.AllowN(time.Now(), 1000)
	b.ReportAllocs()
	for b.Loop() {
		var all sync.WaitGroup
		all.Add(1000)
		for range 1000 {
			l.WaitFunc(1, limit.Never, func(error) { all.Done() })
		}
		l.lease.Update(l.lease.client.now(), 0, 1000*fixed.Token, 1000*fixed.Token)
		all.Wait()
	}
}

// BenchmarkWaitFuncCancel: a thousand come, and leave in another order.
func BenchmarkWaitFuncCancel(b *testing.B) {
	l := leased(b, 0, 1000)
	l.AllowN(time.Now(), 1000)
	cancels := make([]func() bool, 1000)
	b.ReportAllocs()
	for b.Loop() {
		for i := range cancels {
			cancels[i] = l.WaitFunc(1, limit.Never, func(error) {})
		}
		for i := range cancels {
			if !cancels[i*7919%1000]() {
				b.Fatal("not in line")
			}
		}
	}
}
