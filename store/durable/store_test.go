package durable

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/storetest"
)

func TestStore(t *testing.T) {
	n := 0
	dir := t.TempDir()
	storetest.Run(t, func(t testing.TB, now func() limit.Time) store.Store {
		n++
		s, err := Open(Options{Path: filepath.Join(dir, fmt.Sprint(n)), Long: 1, Memory: memory.Options{Now: now}})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}, storetest.Options{Shared: true, Concurrent: testing.Short()})
}

// world is a file, and the clock of the processes that have it open one after the other.
type world struct {
	*testing.T
	path  string
	clock atomic.Int64
	store *Store
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, path: filepath.Join(t.TempDir(), "stint.db")}
	w.clock.Store(time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC).UnixNano())
	w.open()
	t.Cleanup(func() {
		if err := w.store.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *world) now() limit.Time { return limit.Time(w.clock.Load()) }

func (w *world) open() {
	w.Helper()
	s, err := Open(Options{Path: w.path, Memory: memory.Options{Now: w.now}})
	if err != nil {
		w.Fatal(err)
	}
	w.store = s
}

// crash ends the process: what is not in the file is lost.
func (w *world) crash() {
	w.Helper()
	if err := w.store.writer.close(); err != nil {
		w.Fatal(err)
	}
	w.open()
}

// restart ends the process as an operator does, and starts it again.
func (w *world) restart() {
	w.Helper()
	if err := w.store.Close(); err != nil {
		w.Fatal(err)
	}
	w.open()
}

func (w *world) bind(id string, p limit.Policy) store.Counters {
	w.Helper()
	c, err := w.store.Bind(store.Spec{ID: id, Policy: p})
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func (w *world) take(c store.Counters, key string, cost int64) limit.Verdict {
	w.Helper()
	charges := []store.Charge{{Counters: c, Key: []byte(key), Cost: cost}}
	if _, err := w.store.Take(w.Context(), charges); err != nil {
		w.Fatal(err)
	}
	return charges[0].Verdict
}

func (w *world) peek(c store.Counters, key string) limit.Verdict {
	w.Helper()
	charges := []store.Charge{{Counters: c, Key: []byte(key)}}
	if _, err := w.store.Peek(w.Context(), charges); err != nil {
		w.Fatal(err)
	}
	return charges[0].Verdict
}

func (w *world) flush() {
	w.Helper()
	if err := w.store.Flush(); err != nil {
		w.Fatal(err)
	}
}

const month = 30 * 24 * time.Hour

var monthly = limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 10, Period: month}, Align: limit.AlignCalendar, Zone: "Europe/Berlin"}

func TestWalk(t *testing.T) {
	w := newWorld(t)
	c := w.bind("month", monthly)
	short := w.bind("minute", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerMinute(10)})
	w.take(c, "acme", 3)
	w.take(c, "", 2)
	w.take(short, "acme", 4)
	w.flush()
	w.take(c, "acme", 4) // lost
	w.crash()
	c, short = w.bind("month", monthly), w.bind("minute", limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerMinute(10)})
	for key, left := range map[string]int64{"acme": 7, "": 8, "other": 10} {
		if v := w.peek(c, key); v.Remaining != left {
			t.Errorf("%q has %d left, want %d", key, v.Remaining, left)
		}
	}
	if v := w.peek(short, "acme"); v.Remaining != 10 {
		t.Errorf("a short window came back: %+v", v)
	}
	// The month ends while nobody runs, and the file forgets it.
	w.flush()
	w.clock.Store(time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	w.crash()
	c = w.bind("month", monthly)
	if v := w.peek(c, "acme"); v.Remaining != 10 {
		t.Errorf("%+v", v)
	}
	if err := w.store.writer.compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A limit that is taken out and put back goes on where it was.
	w.take(c, "acme", 6)
	if err := w.store.Unbind(c); err != nil {
		t.Fatal(err)
	}
	if v := w.peek(w.bind("month", monthly), "acme"); v.Remaining != 4 {
		t.Errorf("%+v", v)
	}
	// Another policy: what was used stays used, then and after a crash.
	tighter := monthly
	tighter.Zone, tighter.Rate.Count = "America/New_York", 7
	c = w.bind("month", tighter)
	if v := w.peek(c, "acme"); v.Remaining != 1 {
		t.Errorf("%+v", v)
	}
	w.crash()
	if v := w.peek(w.bind("month", tighter), "acme"); v.Remaining != 1 {
		t.Errorf("%+v", v)
	}
}

// drawPolicy draws a policy of a long window.
func drawPolicy(r *rand.Rand) limit.Policy {
	p := limit.Policy{Rate: limit.Rate{Count: 1 + r.Int64N(50), Period: []time.Duration{time.Hour, 24 * time.Hour, month}[r.IntN(3)]}}
	switch p.Algorithm = limit.Algorithm(r.IntN(7)); p.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		p.Burst = p.Rate.Count + r.Int64N(20)
	case limit.FixedWindow:
		if p.Align = limit.Alignment(r.IntN(3)); p.Align == limit.AlignCalendar {
			p.Zone = []string{"", "Asia/Kolkata", "America/St_Johns"}[r.IntN(3)]
		} else if r.IntN(3) == 0 {
			p.Ban = time.Hour
		}
	case limit.RisingWindow:
		p.Rise, p.Start = 1+r.Int64N(10), r.Int64N(20)
	case limit.SlidingWindowLog, limit.Concurrency:
		p.Algorithm = limit.SlidingWindowCounter
	}
	p.CountRefused = p.Algorithm != limit.RisingWindow && r.IntN(4) == 0
	return p
}

// drawCharge draws a charge of any kind: of a shadow limit, counted though it does not fit, or with its own quota.
func drawCharge(r *rand.Rand, c store.Counters) store.Charge {
	charge := store.Charge{Counters: c, Key: fmt.Append(nil, "key", r.IntN(6)), Cost: r.Int64N(5), Shadow: r.IntN(3) == 0, CountRefused: r.IntN(3) == 0}
	if r.IntN(4) == 0 {
		charge.Cost = r.Int64N(80) // of most policies more than fits
	}
	if r.IntN(8) == 0 { // of a bucket that takes at least its period to fill: otherwise the file may lack it
		charge.HasQuota, charge.Quota = true, c.Spec().Policy.Rate.Count+r.Int64N(20)
	}
	return charge
}

// Whatever is taken, given back and reset, under whatever policies: after a write and a crash, or an end and a start, and
// whether the file was written anew meanwhile or not, every key stands as it stood, also when the policy has changed
// meanwhile. That includes charges that did not fit and count all the same, of requests that were admitted and of those
// that were refused.
func TestHistories(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	w := newWorld(t)
	for seed := range seeding.Draw(t, 60) {
		r := rand.New(rand.NewPCG(seed, 5))
		policies := make([]limit.Policy, 4)
		counters := make([]store.Counters, len(policies))
		for i := range policies {
			policies[i] = drawPolicy(r)
			counters[i] = w.bind(fmt.Sprint(seed, " ", i), policies[i])
		}
		for range 1 + r.IntN(5) {
			for range r.IntN(60) {
				w.clock.Add(r.Int64N(int64(time.Hour)))
				charges := make([]store.Charge, 1+r.IntN(2))
				for i := range charges {
					charges[i] = drawCharge(r, counters[(i+r.IntN(2))%4])
				}
				var err error
				switch r.IntN(8) {
				case 0:
					err = w.store.Refund(t.Context(), charges)
				case 1:
					err = w.store.Reset(t.Context(), charges[:1])
				default:
					_, err = w.store.Take(t.Context(), charges)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if r.IntN(3) == 0 {
				i := r.IntN(4)
				next := drawPolicy(r)
				if r.IntN(2) == 0 {
					next = policies[i]
					if next.Rate.Count++; next.Burst > 0 {
						next.Burst++ // it takes at least its period to fill
					}
				}
				policies[i], counters[i] = next, w.bind(fmt.Sprint(seed, " ", i), next)
			}
			if r.IntN(3) == 0 {
				w.compact()
			}
			before := w.standing(counters)
			if r.IntN(2) == 0 {
				w.flush()
				w.crash()
			} else {
				w.restart()
			}
			for i := range counters {
				counters[i] = w.bind(fmt.Sprint(seed, " ", i), policies[i])
			}
			if after := w.standing(counters); after != before {
				t.Fatalf("seed %d:\n%s\nwas\n%s\nunder %+v", seed, after, before, policies)
			}
		}
	}
}

// What has ended under a former policy and counts under the one in force counts after a restart as well.
func TestEndedUnderTheFormerPolicy(t *testing.T) {
	hourly := func(count int64) limit.Rate { return limit.Rate{Count: count, Period: time.Hour} }
	for _, c := range []struct {
		from, to limit.Policy
		cost     int64
		after    time.Duration
		left     int64
	}{
		// 16 of the hour before, from which a window may rise by 8.
		{
			limit.Policy{Algorithm: limit.RisingWindow, Rate: hourly(18), Start: 18, Rise: 8},
			limit.Policy{Algorithm: limit.RisingWindow, Rate: hourly(30), Start: 18, Rise: 8},
			16, time.Hour, 24,
		},
		// A half of 1.
		{
			limit.Policy{Algorithm: limit.SlidingWindowCounter, Rate: hourly(10), Rounding: limit.RoundDown},
			limit.Policy{Algorithm: limit.SlidingWindowCounter, Rate: hourly(10), Rounding: limit.RoundUp},
			1, 90 * time.Minute, 9,
		},
	} {
		w := newWorld(t)
		w.take(w.bind("l", c.from), "k", c.cost)
		w.flush()
		w.clock.Add(int64(c.after))
		w.bind("l", c.to)
		w.flush()
		for range 2 {
			if v := w.peek(w.bind("l", c.to), "k"); v.Remaining != c.left {
				t.Errorf("from %+v to %+v: %+v, want %d left", c.from, c.to, v, c.left)
			}
			w.crash()
		}
	}
}

// compact writes the file anew, as when it has become long.
func (w *world) compact() {
	w.Helper()
	if err := w.store.writer.compact(w.Context()); err != nil {
		w.Fatal(err)
	}
}

func (w *world) standing(counters []store.Counters) string {
	var b strings.Builder
	for i, c := range counters {
		for k := range 6 {
			v := w.peek(c, fmt.Sprint("key", k))
			fmt.Fprintf(&b, "%d %d: %v\n", i, k, v)
		}
	}
	return b.String()
}

func TestRecords(t *testing.T) {
	w := newWorld(t)
	r := rand.New(rand.NewPCG(14, 6))
	storetest.Records(t, w.store.Records(), w.now, func(d time.Duration) { w.clock.Add(int64(d)) }, time.Second, func() store.Records {
		w.flush()
		switch r.IntN(3) {
		case 0:
			w.crash()
		case 1:
			if err := w.store.writer.compact(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		return w.store.Records()
	})
}

// A file that another process has, that is newer, damaged or no file is refused with what to do.
func TestBadFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	w := newWorld(t)
	w.take(w.bind("month", monthly), "acme", 3)
	w.flush()
	refused := func(name, path, want string) {
		t.Helper()
		if s, err := Open(Options{Path: path}); err == nil {
			t.Errorf("%s: opened", name)
			_ = s.Close()
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	refused("in use", w.path, "another process")
	refused("a folder", t.TempDir(), "no regular file")
	refused("no folder", filepath.Join(t.TempDir(), "none", "x"), "make the folder")
	var snapshot bytes.Buffer
	w.compact()
	if err := w.store.Snapshot(&snapshot); err != nil {
		t.Fatal(err)
	}
	file := func(content []byte) string {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	refused("text", file([]byte(strings.Repeat("no database\n", 1000))), "damaged")
	refused("half", file(snapshot.Bytes()[:snapshot.Len()/2]), "damaged")
	newer := bytes.Clone(snapshot.Bytes())
	newer[len(magic)] = formatVersion + 1
	refused("newer", file(newer), "newer version")
	// The snapshot itself is a file with everything.
	s, err := Open(Options{Path: file(snapshot.Bytes()), Memory: memory.Options{Now: w.now}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := s.Bind(store.Spec{ID: "month", Policy: monthly})
	if err != nil {
		t.Fatal(err)
	}
	charges := []store.Charge{{Counters: c, Key: []byte("acme")}}
	if _, err := s.Peek(t.Context(), charges); err != nil || charges[0].Verdict.Remaining != 7 {
		t.Errorf("%+v, %v", charges[0].Verdict, err)
	}
}

// damaged returns b with a part cut off, a part zeroed, or some bits flipped.
func damaged(r *rand.Rand, b []byte) []byte {
	bad := bytes.Clone(b)
	switch r.IntN(3) {
	case 0:
		bad = bad[:1+r.IntN(len(bad)-1)]
	case 1:
		from := r.IntN(len(bad))
		clear(bad[from:min(from+64, len(bad))])
	default:
		for range 1 + r.IntN(20) {
			bad[r.IntN(len(bad))] ^= 1 << r.IntN(8)
		}
	}
	return bad
}

// However a file is damaged, it is refused with an error, or has what it had after one of its writes: with nothing but the
// snapshot, as after an end in order, and with writes behind it. Only what has hit the last write may look like a crash.
func TestDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 3) {
		r := rand.New(rand.NewPCG(seed, 7))
		w := newWorld(t)
		c := w.bind("month", monthly)
		for i := range 300 {
			w.take(c, fmt.Sprint("customer", i), 3)
		}
		if _, _, err := w.store.Records().Swap(t.Context(), "t", "k", nil, []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
		w.compact()
		var states []string // after the snapshot, and after each write
		var ends []int      // of the file then
		for n := range 1 + r.IntN(5) {
			if n > 0 {
				for range 1 + r.IntN(5) {
					w.take(c, fmt.Sprint("customer", r.IntN(300)), 1)
				}
				old, now := fmt.Append(nil, n-1), fmt.Append(nil, n)
				if ok, _, err := w.store.Records().Swap(t.Context(), "t", "k", old, now, 0); !ok || err != nil {
					t.Fatal(ok, err)
				}
				w.flush()
			}
			state, err := w.look(w.store)
			if err != nil {
				t.Fatal(err)
			}
			states, ends = append(states, state), append(ends, int(w.store.FileStats().Bytes))
		}
		var file bytes.Buffer
		if err := w.store.Snapshot(&file); err != nil {
			t.Fatal(err)
		}
		if file.Len() != ends[len(ends)-1] {
			t.Fatalf("a copy of %d bytes, want %d", file.Len(), ends[len(ends)-1])
		}
		path := filepath.Join(t.TempDir(), "damaged")
		for n := range 200 {
			bad := damaged(r, file.Bytes())
			if bytes.Equal(bad, file.Bytes()) {
				continue
			}
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			// The first byte that is not as it was, and the write that it is in.
			first := 0
			for first < len(bad) && bad[first] == file.Bytes()[first] {
				first++
			}
			hit := sort.SearchInts(ends, first+1)
			s, err := Open(Options{Path: path, Memory: memory.Options{Now: w.now}})
			state := ""
			if err == nil {
				state, err = w.look(s)
				if closed := s.Close(); closed != nil {
					t.Errorf("seed %d, %d: %v", seed, n, closed)
				}
			}
			cut := len(bad) < file.Len()
			switch {
			case err != nil && hit > 0 && (cut || hit == len(ends)-1):
				t.Errorf("seed %d, %d: refused, as the write %d of %d is not whole: %v", seed, n, hit, len(ends)-1, err)
			case err == nil && (hit == 0 || !cut && hit < len(ends)-1):
				t.Errorf("seed %d, %d: byte %d of %v is not as it was (cut %v), and that is not noticed", seed, n, first, ends, cut)
			case err == nil && state != states[hit-1]:
				t.Errorf("seed %d, %d: it has\n%s\nwant what it had after write %d:\n%s", seed, n, state, hit-1, states[hit-1])
			}
		}
	}
}

// look returns what a store has of the counts and the records of TestDamage.
func (w *world) look(s *Store) (string, error) {
	c, err := s.Bind(store.Spec{ID: "month", Policy: monthly})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for i := range 300 {
		charges := []store.Charge{{Counters: c, Key: fmt.Append(nil, "customer", i)}}
		if _, err := s.Peek(w.Context(), charges); err != nil {
			return "", err
		}
		fmt.Fprint(&b, charges[0].Verdict.Remaining, " ")
	}
	list, err := s.Records().Range(w.Context(), "t", "", "", 10)
	fmt.Fprintf(&b, "%s", list)
	return b.String(), err
}

// With Sync a Take returns when its count is in the file, however many there are at a time; without it, when
// the last write is not longer ago than the bound.
func TestSync(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stint.db")
	s, err := Open(Options{Path: path, Sync: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	p := monthly
	p.Rate.Count = 1e6
	c, err := s.Bind(store.Spec{ID: "month", Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	results := make(chan error, 20)
	for range 20 {
		go func() {
			for range 20 {
				if _, err := s.Take(context.Background(), []store.Charge{{Counters: c, Key: []byte("k"), Cost: 1}}); err != nil {
					results <- err
					return
				}
			}
			results <- nil
		}()
	}
	for range 20 {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	if st := s.FileStats(); st.Writes >= 400 || st.Writes < 20 || st.Bound != 0 || st.Bytes == 0 {
		t.Errorf("%+v: 400 Takes by 20 at a time want some 20 writes", st)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := s.writer.close(); err != nil { // as a crash
		t.Fatal(err)
	}
	if s, err = Open(Options{Path: path}); err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if c, err = s.Bind(store.Spec{ID: "month", Policy: p}); err != nil {
		t.Fatal(err)
	}
	charges := []store.Charge{{Counters: c, Key: []byte("k")}}
	if _, err := s.Peek(t.Context(), charges); err != nil || charges[0].Verdict.Remaining != 1e6-400 {
		t.Errorf("%+v, %v", charges[0].Verdict, err)
	}
}

// As long as the file takes each write no Take waits for it, whatever the bound and whenever Takes come.
func TestTakesDoNotWait(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 3) {
		path := filepath.Join(t.TempDir(), "stint.db")
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 13))
			bound := 50*time.Millisecond + time.Duration(r.Int64N(int64(2*time.Second)))
			s, err := Open(Options{Path: path, Bound: bound})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- s.Run(ctx) }()
			p := monthly
			p.Rate.Count = 1e6
			c, err := s.Bind(store.Spec{ID: "month", Policy: p})
			if err != nil {
				t.Fatal(err)
			}
			for range 300 {
				time.Sleep(time.Duration(r.ExpFloat64() * float64(bound) / 20))
				began := time.Now()
				if _, err := s.Take(t.Context(), []store.Charge{{Counters: c, Key: []byte("k"), Cost: 1}}); err != nil || time.Since(began) > 0 {
					t.Fatalf("seed %d, bound %v: a Take took %v: %v", seed, bound, time.Since(began), err)
				}
			}
			if st := s.FileStats(); st.Waits != 0 || st.Writes < 10 {
				t.Errorf("seed %d, bound %v: %+v", seed, bound, st)
			}
			cancel()
			if err := errors.Join(<-ended, s.Close()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// While a batch reads the file, for a limit whose states mean something else now, Takes go on.
func TestTakesDoNotWaitForReads(t *testing.T) {
	d := newSimDisk(seeding.Rand(t))
	s, err := Open(Options{Path: "/counts.db", disk: d})
	if err != nil {
		t.Fatal(err)
	}
	bind := func(id string, p limit.Policy) store.Counters {
		c, err := s.Bind(store.Spec{ID: id, Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// Several charges, of which the last remembers an idempotency key.
	take := func(key string, counters ...store.Counters) error {
		var charges []store.Charge
		for i, c := range counters {
			charges = append(charges, store.Charge{Counters: c, Key: []byte(key), Cost: 1, Once: i > 0})
		}
		_, err := s.Take(t.Context(), charges)
		return err
	}
	month, once := bind("month", monthly), bind("once", limit.Policy{Rate: limit.Rate{Count: 1, Period: time.Hour}, Burst: 1})
	if err := errors.Join(take("before", month, once), s.Flush()); err != nil {
		t.Fatal(err)
	}
	p := monthly
	p.Zone = "Asia/Tokyo"
	month = bind("month", p)
	reads := 0
	d.reads = func() {
		reads++
		done := make(chan error, 1)
		go func() { done <- take(fmt.Sprint(reads), month, once) }()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("a Take waits for a read of the file")
		}
	}
	err = s.Flush()
	if d.reads = nil; reads == 0 {
		t.Error("nothing was read")
	}
	if err := errors.Join(err, s.Close()); err != nil {
		t.Error(err)
	}
}

// TestBansOutliveRestarts: a ban lasts as long as it says whatever its period, over restarts and crashes, and the
// list, the figures and the lifts are complete after each. Bans, attempts, lifts and restarts come at random.
func TestBansOutliveRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for range 20 {
		seed := rand.Uint64()
		r := rand.New(rand.NewPCG(seed, 12))
		w := newWorld(t)
		fail := func(format string, args ...any) {
			t.Helper()
			t.Fatalf("seed %d: %s", seed, fmt.Sprintf(format, args...))
		}
		p := limit.Policy{
			Algorithm: limit.FixedWindow, Align: limit.AlignFirstHit, CountRefused: true,
			Rate:       limit.Rate{Count: r.Int64N(6), Period: []time.Duration{time.Second, time.Minute, time.Hour, 5 * time.Hour}[r.IntN(4)]},
			Ban:        []time.Duration{time.Second, 10 * time.Minute, 2 * time.Hour, 48 * time.Hour}[r.IntN(4)],
			BanFromNow: r.IntN(2) == 0,
		}
		c := w.bind("!ban login", p)
		until := map[string]limit.Time{} // what the policy says
		name := func() string {
			key := fmt.Sprint("key", r.IntN(8))
			if r.IntN(3) == 0 {
				key += strings.Repeat("long", 200)
			}
			return key
		}
		for range 60 {
			w.clock.Add(r.Int64N(int64(p.Ban) / 8))
			for key, end := range until {
				if w.now() >= end {
					delete(until, key)
				}
			}
			switch r.IntN(5) {
			case 0:
				w.flush()
				w.crash()
				c = w.bind("!ban login", p)
			case 1:
				key := name()
				lifted, err := w.store.Lift(t.Context(), c, store.Ban{Key: []byte(key)})
				if _, banned := until[key]; err != nil || lifted != banned {
					fail("lift of %.9s: %v, %v; banned %v", key, lifted, err, banned)
				}
				delete(until, key)
			case 2:
				list, _, err := w.store.Bans(t.Context(), c, "", 100)
				if err != nil || len(list) == 0 || r.IntN(2) == 0 {
					continue
				}
				lifted, err := w.store.Lift(t.Context(), c, store.Ban{ID: list[0].ID})
				if err != nil || !lifted {
					fail("lift by ID: %v, %v", lifted, err)
				}
				for key := range until {
					if w.store.BanID(c, []byte(key)) == list[0].ID {
						delete(until, key)
					}
				}
			default:
				key := name()
				for range 1 + r.IntN(8) {
					v := w.take(c, key, 1)
					if _, banned := until[key]; banned && v.Allowed {
						fail("%.9s is admitted while it is banned", key)
					} else if !banned && !v.Allowed {
						until[key] = w.now().Add(v.ResetAfter)
					}
				}
			}
			list, _, err := w.store.Bans(t.Context(), c, "", 100)
			if err != nil || len(list) != len(until) || w.store.BanFigures(c).Active != int64(len(until)) {
				fail("%d listed, %d active, want %d: %v", len(list), w.store.BanFigures(c).Active, len(until), err)
			}
			for _, b := range list {
				found := false
				for key, end := range until {
					if w.store.BanID(c, []byte(key)) == b.ID {
						found = w.now().Add(b.Left) == end && (string(b.Key) == key || b.Key == nil && len(key) > 500)
					}
				}
				if !found {
					fail("the list has %+v", b)
				}
			}
		}
	}
}
