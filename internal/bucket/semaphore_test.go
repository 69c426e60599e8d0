package bucket

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
)

func TestSemaphoreWalk(t *testing.T) {
	var d Deadline
	p := NewSemaphore(&d)
	p.Update(start, 0, 3*fixed.Token, 0)
	if p.Acquire(start, 1) {
		t.Fatal("a deadline of 0 has passed")
	}
	d.Store(int64(start + second))
	if !p.Acquire(start, 2) || p.Acquire(start, 2) || !p.Acquire(start, 1) || p.Acquire(start, -1) {
		t.Fatal("3 places")
	}
	if surplus, held := p.Update(start, 0, fixed.Token, 5); surplus != 5 || held != 3*fixed.Token {
		t.Fatalf("Update = %v, %v; all 3 are in use", surplus, held)
	}
	p.Release(1)
	if p.Acquire(start, 1) {
		t.Fatal("2 are in use of 1")
	}
	if _, held := p.Update(start, 0, fixed.Token, 0); held != 2*fixed.Token {
		t.Fatalf("held %v, want 2", held)
	}
	p.Release(2)
	if _, held := p.Update(start, 0, fixed.Token, 0); held != fixed.Token {
		t.Fatalf("held %v, want 1", held)
	}
	if !p.Acquire(start, 1) || p.Acquire(start, 1) {
		t.Fatal("1 place")
	}
	p.Release(1)
	if p.Acquire(start+second, 1) {
		t.Fatal("the lease has ended")
	}
	p.UpdateFallback(start, 0, 2*fixed.Token)
	if !p.Acquire(start+second, 2) || p.Acquire(start+second, 1) {
		t.Fatal("2 places without a lease")
	}
	r := p.Observe(start)
	if r.InUse != 2*fixed.Token || r.Level != 0 || r.Admitted != 6*fixed.Token || r.Attempted != 13*fixed.Token {
		t.Fatalf("Observe = %+v", r)
	}
}

func TestSemaphoreLine(t *testing.T) {
	p := NewSemaphore(nil)
	p.Update(start, 0, 2*fixed.Token, 0)
	p.Acquire(start, 2)
	p.Freeze()
	p.Join(1)
	if _, decided := p.Try(start, 1); decided || p.Serve(start, 1) {
		t.Fatal("nobody gets in")
	}
	if !p.Release(1) {
		t.Fatal("somebody may wait")
	}
	if !p.Serve(start, 1) {
		t.Fatal("the first in line gets in")
	}
	p.Thaw()
	if p.Acquire(start, 1) || p.Release(1) || !p.Acquire(start, 1) {
		t.Fatal("as before the line")
	}
}

func TestSemaphoreConcurrent(t *testing.T) {
	p := NewSemaphore(nil)
	p.Update(start, 0, 10*fixed.Token, 0)
	var in atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10_000 {
				if !p.Acquire(start, 3) {
					continue
				}
				if in.Add(3) > 10 {
					t.Error("more than 10 in flight")
				}
				in.Add(-3)
				p.Release(3)
			}
		})
	}
	wg.Go(func() {
		for i := range 3000 {
			if _, held := p.Update(start, 0, fixed.Whole(int64(i%11)), 0); held > 10*fixed.Token || held < fixed.Whole(int64(i%11)) {
				t.Errorf("held %v", held)
			}
			if i%100 == 0 {
				p.Freeze()
				p.Thaw()
			}
		}
	})
	wg.Wait()
	if r := p.Observe(start); r.InUse != 0 {
		t.Errorf("%v in use in the end", r.InUse)
	}
}
