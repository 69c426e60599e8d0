package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == consumeArg {
		if err := consume(os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, "onedari:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// TestKilledConsumerLosesNothing kills a consumer with kill -9 while it has many calls in flight. All messages that were
// accepted come, those in flight at most once more, and never more than the limit.
func TestKilledConsumerLosesNothing(t *testing.T) {
	s := settings{Consumers: 4, Limit: 200, Latency: 500 * time.Millisecond, For: 4 * time.Second, Kills: 1, Demand: 1.1}
	r, err := s.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(r)
	if err := r.checkCounts(); err != nil {
		t.Error(err)
	}
	if r.Accepted < 2*s.Limit || r.Peak < 4*s.Consumers {
		t.Errorf("%d accepted, %d in flight at most: want many calls at a time", r.Accepted, r.Peak)
	}
}

// TestNeededBurst compares the burst with that of a look at all intervals.
func TestNeededBurst(t *testing.T) {
	for range 200 {
		var at []int64
		now := int64(0)
		for range 1 + rand.IntN(40) {
			now += rand.Int64N(int64(300 * time.Millisecond))
			at = append(at, now)
		}
		want := 0.0
		for i := range at {
			for j := i; j < len(at); j++ {
				want = max(want, float64(j-i+1)-float64(at[j]-at[i])/1e9*7)
			}
		}
		rand.Shuffle(len(at), func(i, j int) { at[i], at[j] = at[j], at[i] })
		if got := neededBurst(at, time.Unix(0, 0), 7); got < want-1e-6 || got > want+1e-6 {
			t.Fatalf("%v: %v, want %v", at, got, want)
		}
	}
}

func TestBadArguments(t *testing.T) {
	for _, args := range []string{"-limit 0", "-consumers 0", "-for 1ms", "-kills -1", "-latency -1s", "-unknown", "more"} {
		if err := start(context.Background(), strings.Fields(args), new(bytes.Buffer)); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
}
