package durable

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// yearly is a window that no test fills.
var yearly = limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 1 << 50, Period: 365 * 24 * time.Hour}, Align: limit.AlignFirstHit}

// history is a store on a disk that crashes, and what is known of it.
type history struct {
	*testing.T
	r     *rand.Rand
	disk  *simDisk
	store *Store
	count [2]store.Counters
	model // what is in memory
	// may is what a crash may leave: what the last write that was acknowledged had, or one that has failed since.
	may []model
}

// model is what was taken of each key of each limit, and the number in each record.
type model struct {
	taken   [2][8]int64
	records [8]int64
}

func (h *history) open() error {
	s, err := Open(Options{Path: "/counts.db", Sync: true, disk: h.disk, Wait: time.Nanosecond})
	if err != nil {
		return err
	}
	h.store = s
	for i := range h.count {
		if h.count[i], err = s.Bind(store.Spec{ID: fmt.Sprint("limit", i), Policy: yearly}); err != nil {
			return errors.Join(err, s.writer.close())
		}
	}
	if size, err := s.writer.file.handle.Size(); err != nil || size != s.writer.file.size {
		h.Fatalf("the file has %d bytes, of which %d are of use: %v", size, s.writer.file.size, err)
	}
	return nil
}

// mustOpen opens the store on a disk that works.
func (h *history) mustOpen() {
	h.Helper()
	h.disk.fail(false)
	h.disk.fill(-1)
	if err := h.open(); err != nil {
		h.Fatal(err)
	}
}

// take takes from one limit, or from both in one step.
func (h *history) take() {
	charges := []store.Charge{{Counters: h.count[h.r.IntN(2)], Key: h.key(), Cost: 1 + h.r.Int64N(3)}}
	if h.r.IntN(3) == 0 {
		charges = []store.Charge{{Counters: h.count[0], Key: h.key(), Cost: 1}, {Counters: h.count[1], Key: h.key(), Cost: 1}}
	}
	before := h.model
	for _, c := range charges {
		one := &h.taken[0]
		if c.Counters == h.count[1] {
			one = &h.taken[1]
		}
		one[c.Key[0]] += c.Cost
	}
	allow := h.r.IntN(2) == 0
	if allow {
		for i := range charges {
			charges[i].OnFailure = store.FailAllow
		}
	}
	ok, err := h.store.Take(context.Background(), charges)
	if err == nil && !ok || allow && err != nil {
		h.Fatalf("refused, or an error: %v", err)
	}
	if err == nil && charges[0].Failed {
		h.wrote(store.ErrUnavailable) // it is admitted, and stays counted
		return
	}
	h.wrote(err)
	if err != nil {
		h.model = before // it is given back
	}
}

func (h *history) key() []byte { return []byte{byte(h.r.IntN(8))} }

// wrote notes that what is in memory was written, or that this has failed.
func (h *history) wrote(err error) {
	h.Helper()
	if err == nil {
		h.may = h.may[:0]
	} else if !errors.Is(err, store.ErrUnavailable) {
		h.Fatal(err)
	}
	h.may = append(h.may, h.model)
}

// swap raises the number of a record by one.
func (h *history) swap() {
	k := h.r.IntN(8)
	key := fmt.Sprint("record", k)
	old, err := h.store.Records().Get(context.Background(), "t", key)
	if err != nil {
		h.Fatal(err)
	}
	h.records[k]++
	ok, _, err := h.store.Records().Swap(context.Background(), "t", key, old, fmt.Append(nil, h.records[k]), 0)
	if err == nil && !ok {
		h.Fatal("the record has changed by itself")
	}
	h.wrote(err)
}

// compact writes the file anew, which may fail. Others take, change records and read meanwhile.
func (h *history) compact() {
	h.disk.created = func() {
		h.disk.created = nil
		h.may = append(h.may, h.model) // the write that it begins with
		for range h.r.IntN(10) {
			if h.r.IntN(3) == 0 {
				h.swap()
			} else {
				h.take()
			}
			if has := h.has(); has != h.model {
				h.Fatalf("the store has\n%v, want\n%v", has, h.model)
			}
		}
	}
	defer func() { h.disk.created = nil }()
	err := h.store.writer.compact(context.Background())
	if h.disk.created == nil {
		return // the last write since has been noted
	}
	if err != nil {
		h.may = append(h.may, h.model)
	} else {
		h.wrote(nil)
	}
}

// check compares what the store has with what a crash may leave.
func (h *history) check(what string) {
	h.Helper()
	has := h.has()
	if !slices.Contains(h.may, has) {
		h.Fatalf("%s: the file has\n%v, want one of\n%v", what, has, h.may)
	}
	h.model = has
	h.may = append(h.may[:0], has)
}

func (h *history) has() (has model) {
	h.Helper()
	for i := range has.taken {
		for k := range has.taken[i] {
			charges := []store.Charge{{Counters: h.count[i], Key: []byte{byte(k)}}}
			if _, err := h.store.Peek(context.Background(), charges); err != nil {
				h.Fatal(err)
			}
			has.taken[i][k] = yearly.Rate.Count - charges[0].Verdict.Remaining
		}
	}
	for k := range has.records {
		value, err := h.store.Records().Get(context.Background(), "t", fmt.Sprint("record", k))
		if err != nil {
			h.Fatal(err)
		}
		if value != nil {
			if _, err := fmt.Sscan(string(value), &has.records[k]); err != nil {
				h.Fatal(err)
			}
		}
	}
	list, err := h.store.Records().Range(context.Background(), "t", "record", "", 100)
	if err != nil {
		h.Fatal(err)
	}
	listed := [8]int64{}
	for _, one := range list {
		if _, err := fmt.Sscan(string(one.Value), &listed[one.Key[len(one.Key)-1]-'0']); err != nil {
			h.Fatal(err)
		}
	}
	if listed != has.records {
		h.Fatalf("records are %v, and %v in a list", has.records, listed)
	}
	return has
}

// Whatever was acknowledged with Sync is there after any crash of the machine, and nothing that was not taken: while the
// disk is full, fails now and then, tears and reorders what was not synced, and forgets names; and whether the file was
// being written anew or not.
func TestCrashes(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine; TestBoundHolds has the others: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 100) {
		r := rand.New(rand.NewPCG(seed, 15))
		h := &history{T: t, r: r, disk: newSimDisk(r), may: []model{{}}}
		h.mustOpen()
		for range 1 + r.IntN(12) {
			for range r.IntN(40) {
				switch r.IntN(20) {
				case 0:
					h.disk.fail(true)
				case 1:
					h.disk.fill(r.IntN(400))
				case 2, 3:
					h.disk.fail(false)
					h.disk.fill(-1)
				case 4:
					h.compact()
				case 5, 6, 7:
					h.swap()
				default:
					h.take()
				}
			}
			if r.IntN(4) == 0 {
				// A start on a disk that fails is refused, or succeeds; in between is nothing.
				h.disk = h.disk.crash()
				h.disk.fail(r.IntN(2) == 0)
				if err := h.open(); err != nil {
					h.disk = h.disk.crash()
					h.mustOpen()
				}
				h.check(fmt.Sprint("seed ", seed, ", a bad start"))
				continue
			}
			h.disk = h.disk.crash()
			h.mustOpen()
			h.check(fmt.Sprint("seed ", seed))
		}
	}
}

// A crash loses no more than what was counted in the bound before it, however slow the disk is and whatever fails: of two
// Takes that are lost, none was called later than the bound after the other was acknowledged.
func TestBoundHolds(t *testing.T) {
	for seed := range seeding.Draw(t, 40) {
		synctest.Test(t, func(t *testing.T) { boundHolds(t, seed) })
	}
}

func boundHolds(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 16))
	d := newSimDisk(rand.New(rand.NewPCG(seed, 19))) // its own: goroutines use it
	bound := 50*time.Millisecond + time.Duration(r.Int64N(int64(2*time.Second)))
	fails, compacts := r.IntN(2) == 0, r.IntN(2) == 0
	if !compacts {
		// Not with compactions: a goroutine that waits for a mutex stops the clock, and who has it would sleep for ever.
		slow := 1 + r.Int64N(int64(2*bound))
		d.slow = func() { time.Sleep(time.Duration(rand.Int64N(slow))) }
	}
	open := func(d *simDisk) (*Store, store.Counters) {
		s, err := Open(Options{Path: "/counts.db", Bound: bound, disk: d})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Bind(store.Spec{ID: "year", Policy: yearly})
		if err != nil {
			t.Fatal(err)
		}
		return s, c
	}
	s, c := open(d)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	compacted := make(chan struct{})
	every := bound/2 + time.Duration(r.Int64N(int64(20*bound)))
	go func() {
		defer close(compacted)
		for compacts && ctx.Err() == nil {
			time.Sleep(every)
			_ = s.writer.compact(ctx) // it fails if the disk does
		}
	}()
	var acked []time.Time // of the Takes of one key, in order
	var last time.Time    // when the last of them was called
	attempts := 20 + r.IntN(200)
	for range attempts {
		time.Sleep(time.Duration(r.ExpFloat64() * float64(bound) / 10))
		if fails && r.IntN(20) == 0 {
			d.fail(r.IntN(2) == 0)
		}
		called := time.Now()
		_, err := s.Take(ctx, []store.Charge{{Counters: c, Key: []byte("k"), Cost: 1}})
		if err == nil {
			last = called
			acked = append(acked, time.Now())
		} else if !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
	}
	after := d.crash()
	cancel()
	<-ended // with an error: the disk is gone
	<-compacted
	_ = s.Close()
	s, c = open(after)
	charges := []store.Charge{{Counters: c, Key: []byte("k")}}
	if _, err := s.Peek(t.Context(), charges); err != nil {
		t.Fatal(err)
	}
	has := int(yearly.Rate.Count - charges[0].Verdict.Remaining)
	if has > attempts {
		t.Errorf("seed %d: %d were taken, and the file has %d", seed, attempts, has)
	} else if has < len(acked) && last.Sub(acked[has]) > bound {
		t.Errorf("seed %d: a Take is lost that was acknowledged %v before the last one was called, the bound is %v",
			seed, last.Sub(acked[has]), bound)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
