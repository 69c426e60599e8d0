// Package redistest runs real redis-server processes for tests, alone, as a
// cluster or watched by sentinels, and a TCP proxy that injects faults between
// a client and one of them.
//
// Every process belongs to one test: it listens on a loopback port of its own,
// keeps its files in a temporary folder and ends with the test, even when the test
// panics or is killed. What a server logged is shown when the test failed. A
// missing redis-server fails the test.
//
// The package imitates nothing of Redis, shares nothing between tests, and is
// imported by tests alone. Methods that return no error fail the test on one; like
// [testing.TB.Fatal] they belong on the test's own goroutine. Each method that
// may be called elsewhere says so.
package redistest

import (
	"testing"
	"time"
)

const (
	// patience bounds every wait for something that is sure to come, on a machine
	// that is busy with other things.
	patience = 30 * time.Second

	// pace is how often such a wait looks.
	pace = 10 * time.Millisecond
)

// until waits for ok to report true. It fails the test when that takes longer than
// patience, and says why ok was not satisfied the last time.
func until(t testing.TB, what string, ok func() (done bool, why string)) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(pace)
	defer tick.Stop()
	for {
		done, why := ok()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("redistest: waited %v for %s: %s", patience, what, why)
		}
	}
}
