//go:build unix

package durable

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// A process that counts with pauses of a millisecond is killed at a random moment, again and again on the same file. What
// it has acknowledged stands in memory that is shared with the test, which looks every few milliseconds:
// after each kill the file can be opened, has nothing that was not taken, and lacks the counts of no longer
// than the bound: of two Takes that it lacks, none was called later than the bound after the other was acknowledged.
// With Sync it has all that was acknowledged.
//
// When a Take was called counts, and not when it was acknowledged: any process may stand still between its last
// instruction and the moment when somebody hears of it.
//
//	STINT_KILLS=1000 go test ./store/durable -run TestKill -timeout 60m -v
func TestKill(t *testing.T) {
	if testing.Short() {
		t.Skip("in processes of their own: nothing for the race detector")
	}
	kills := 10
	if n, err := strconv.Atoi(os.Getenv("STINT_KILLS")); err == nil && n > 0 {
		kills = n
	}
	for _, mode := range []struct {
		name  string
		bound time.Duration
		sync  bool
	}{{"bound 100ms", 100 * time.Millisecond, false}, {"bound 1s", time.Second, false}, {"sync", time.Second, true}} {
		t.Run(mode.name, func(t *testing.T) {
			t.Parallel()
			v := newVictim(t, mode.bound, mode.sync)
			r := rand.New(rand.NewPCG(14, uint64(mode.bound)))
			lost, counted := uint64(0), uint64(0)
			for range kills {
				l, n := v.round(time.Duration(r.Int64N(int64(min(4*mode.bound, 1500*time.Millisecond)))))
				lost, counted = lost+l, counted+n
			}
			t.Logf("%d kills: %d acknowledged, %d lost within the bound", kills, counted, lost)
			if mode.sync && lost > 0 || counted < uint64(kills) {
				t.Errorf("%d acknowledged, %d lost", counted, lost)
			}
		})
	}
}

const killKeys, killWorkers = 40, 4

// ledger is memory that two processes share: what was attempted and acknowledged of each key.
type ledger struct {
	attempted, acknowledged [killKeys]atomic.Uint64
	// called is when the last Take of each goroutine that was acknowledged was called, by the wall clock, which
	// processes share.
	called [killWorkers]atomic.Int64
}

func openLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size := int(unsafe.Sizeof(ledger{}))
	if err := f.Truncate(int64(size)); err != nil {
		return nil, err
	}
	memory, err := syscall.Mmap(int(f.Fd()), 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*ledger)(unsafe.Pointer(&memory[0])), nil
}

var killPolicy = limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 1 << 50, Period: 365 * 24 * time.Hour}, Align: limit.AlignFirstHit}

// TestVictim is the process that is killed.
func TestVictim(t *testing.T) {
	dir := os.Getenv("STINT_VICTIM")
	if dir == "" {
		return
	}
	l, err := openLedger(filepath.Join(dir, "ledger"))
	if err != nil {
		t.Fatal(err)
	}
	bound, err := time.ParseDuration(os.Getenv("STINT_VICTIM_BOUND"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{Path: filepath.Join(dir, "stint.db"), Bound: bound, Sync: os.Getenv("STINT_VICTIM_SYNC") == "true"})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = s.Run(context.Background()) }()
	c, err := s.Bind(store.Spec{ID: "year", Policy: killPolicy})
	if err != nil {
		t.Fatal(err)
	}
	for g := range killWorkers {
		go func() {
			r := rand.New(rand.NewPCG(uint64(g), uint64(os.Getpid())))
			for n := 1; ; n++ {
				if n%20 == 0 {
					<-time.After(time.Millisecond)
				}
				k := r.IntN(killKeys)
				l.attempted[k].Add(1)
				called := time.Now().UnixNano()
				ok, err := s.Take(context.Background(), []store.Charge{{Counters: c, Key: binary.AppendUvarint(nil, uint64(k)), Cost: 1}})
				if !ok || err != nil {
					fmt.Println("victim:", ok, err)
					os.Exit(3)
				}
				l.acknowledged[k].Add(1)
				l.called[g].Store(called)
			}
		}()
	}
	select {}
}

// victim is the file, and what is known of the processes that count in it.
type victim struct {
	*testing.T
	dir    string
	bound  time.Duration
	sync   bool
	ledger *ledger
	base   [killKeys]uint64 // what the file had at the start of the process
}

func newVictim(t *testing.T, bound time.Duration, sync bool) *victim {
	v := &victim{T: t, dir: t.TempDir(), bound: bound, sync: sync}
	var err error
	if v.ledger, err = openLedger(filepath.Join(v.dir, "ledger")); err != nil {
		t.Fatal(err)
	}
	return v
}

// look is what was acknowledged at some moment.
type look struct {
	acked [killKeys]uint64
	to    int64 // they were before this
}

// round runs the process, kills it after it has counted for so long (or while it starts), and compares.
func (v *victim) round(after time.Duration) (lost, counted uint64) {
	v.Helper()
	for k := range killKeys {
		v.ledger.attempted[k].Store(v.base[k])
		v.ledger.acknowledged[k].Store(v.base[k])
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestVictim$")
	cmd.Env = append(os.Environ(), "STINT_VICTIM="+v.dir, "STINT_VICTIM_BOUND="+v.bound.String(), fmt.Sprint("STINT_VICTIM_SYNC=", v.sync))
	var out syncBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		v.Fatal(err)
	}
	var looks []look
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(after); ; {
		select {
		case <-tick.C:
			one := look{}
			for k := range killKeys {
				one.acked[k] = v.ledger.acknowledged[k].Load()
			}
			one.to = time.Now().UnixNano()
			looks = append(looks, one)
			continue
		case <-end:
		}
		break
	}
	if err := cmd.Process.Kill(); err != nil {
		v.Fatal(err)
	}
	_ = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
		v.Fatalf("the process ended by itself: %v\n%s", cmd.ProcessState, out.String())
	}
	has := v.read()
	var safe [killKeys]uint64
	copy(safe[:], v.base[:])
	last := int64(0)
	for g := range killWorkers {
		last = max(last, v.ledger.called[g].Swap(0))
	}
	for _, l := range looks {
		if last-l.to >= int64(v.bound) {
			safe = l.acked
		}
	}
	for k := range killKeys {
		acked, attempted := v.ledger.acknowledged[k].Load(), v.ledger.attempted[k].Load()
		if v.sync {
			safe[k] = acked
		}
		if has[k] < safe[k] || has[k] > attempted {
			v.Errorf("key %d: the file has %d; %d were acknowledged before the bound, %d in all, %d attempted", k, has[k], safe[k], acked, attempted)
		}
		counted += acked - v.base[k]
		lost += max(acked, has[k]) - has[k]
	}
	v.base = has
	return lost, counted
}

// read opens the file as the next process would.
func (v *victim) read() (has [killKeys]uint64) {
	v.Helper()
	s, err := Open(Options{Path: filepath.Join(v.dir, "stint.db")})
	if err != nil {
		v.Fatal(err)
	}
	defer s.Close()
	c, err := s.Bind(store.Spec{ID: "year", Policy: killPolicy})
	if err != nil {
		v.Fatal(err)
	}
	for k := range killKeys {
		charges := []store.Charge{{Counters: c, Key: binary.AppendUvarint(nil, uint64(k))}}
		if _, err := s.Peek(v.Context(), charges); err != nil {
			v.Fatal(err)
		}
		has[k] = uint64(killPolicy.Rate.Count - charges[0].Verdict.Remaining)
	}
	return has
}

// syncBuffer is what a process has printed.
type syncBuffer struct{ atomic.Pointer[string] }

func (b *syncBuffer) Write(p []byte) (int, error) {
	text := b.String() + string(p)
	b.Store(&text)
	return len(p), nil
}

func (b *syncBuffer) String() string {
	if p := b.Load(); p != nil {
		return *p
	}
	return ""
}
