package usage_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// members are processes of a cluster in virtual time.
type members struct {
	t       *testing.T
	lossy   atomic.Bool
	cut     atomic.Bool // no member reaches another
	records []store.Records
	fans    []*usage.Fan                // nil = it does not run
	reached []atomic.Pointer[usage.Fan] // the same, as others see it
	meters  []*usage.Meter
	stop    []func()
}

var errLost = errors.New("lost")

func newMembers(t *testing.T, n int) *members {
	all := noMembers(t, n)
	for i := range n {
		all.start(i, true)
	}
	return all
}

// noMembers has room for n members, and none of them runs.
func noMembers(t *testing.T, n int) *members {
	all := &members{t: t, records: make([]store.Records, n), fans: make([]*usage.Fan, n), reached: make([]atomic.Pointer[usage.Fan], n), meters: make([]*usage.Meter, n), stop: make([]func(), n)}
	t.Cleanup(func() {
		for i := range n {
			all.end(i)
		}
	})
	return all
}

// start starts a member, with what it had or with nothing.
func (m *members) start(i int, empty bool) {
	if empty {
		m.records[i] = records.New(nil, 0)
	}
	m.fans[i] = usage.NewFan(usage.FanOptions{
		Own: m.records[i],
		Others: func() (list []usage.Other) {
			for j := range m.reached {
				if j != i && m.reached[j].Load() != nil {
					list = append(list, usage.Other{Name: fmt.Sprint(j), Address: fmt.Sprint(j)})
				}
			}
			return list
		},
		Send: func(ctx context.Context, address string, msg usage.Message) (usage.Reply, error) {
			to := m.reached[address[0]-'0'].Load()
			if to == nil || m.cut.Load() || m.lossy.Load() && rand.IntN(4) == 0 {
				return usage.Reply{}, errLost
			}
			r, err := to.Told(ctx, msg)
			if m.lossy.Load() && rand.IntN(4) == 0 {
				return usage.Reply{}, errLost // it was taken all the same
			}
			return r, err
		},
	})
	m.reached[i].Store(m.fans[i])
	m.meters[i] = meter(m.t, usage.Options{Records: m.fans[i]})
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	fan, meter := m.fans[i], m.meters[i]
	running.Go(func() {
		defer func() {
			for meter.Report(context.Background()) != nil {
			}
		}()
		fan.Run(ctx)
	})
	m.stop[i] = func() { cancel(); running.Wait() }
}

func (m *members) end(i int) {
	if m.fans[i] != nil {
		m.stop[i]()
		m.reached[i].Store(nil)
		m.fans[i] = nil
	}
}

// Invariant: whatever is lost, said twice or forgotten by a member that begins anew, once messages arrive again all
// members have the same history, and each key's sum in it is what was counted.
func TestMembersHaveTheSameHistory(t *testing.T) {
	for seed := range seeding.Draw(t, 10) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 14))
			all := newMembers(t, 4)
			of, want := of("month", nil), map[string]uint64{}
			for range 300 {
				i := r.IntN(4)
				switch n := r.IntN(20); {
				case n == 0 && all.fans[i] != nil:
					if err := all.meters[i].Report(t.Context()); err != nil {
						t.Fatal(err)
					}
					all.lossy.Store(false)
					<-time.After(5 * time.Second) // what a member without a file is told by others has to be told before it goes
					all.end(i)
					all.start(i, r.IntN(2) == 0)
				case n == 1:
					all.lossy.Store(!all.lossy.Load())
				case n < 6:
					<-time.After(time.Duration(r.IntN(1500)) * time.Millisecond)
				case n == 6:
					<-time.After(20 * time.Second)
				case n < 10:
					if err := all.meters[i].Report(t.Context()); err != nil {
						t.Fatal(err)
					}
				default:
					key, cost := fmt.Sprint(r.IntN(5)), 1+r.Int64N(9)
					all.meters[i].Taken(of, []byte(key), cost)
					want["customer="+key] += uint64(cost)
				}
			}
			all.lossy.Store(false)
			for _, m := range all.meters {
				if err := m.Report(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(10 * time.Second)
			first := rows(t, all.records[0], usage.Query{})
			for i := range all.fans {
				if got := rows(t, all.records[i], usage.Query{}); !slices.Equal(got, first) {
					t.Fatalf("seed %d: member %d has\n%q, and member 0\n%q", seed, i, got, first)
				}
				if s := all.fans[i].Stats(); s.Others != 3 || s.UpToDate != 3 {
					t.Errorf("seed %d: member %d: %+v", seed, i, s)
				}
				err := usage.History(t.Context(), all.records[i], usage.Query{By: usage.Total}, func(row *usage.Row) error {
					if row.Used() != want[row.Subject()] {
						t.Errorf("seed %d: member %d: %s used %d, want %d", seed, i, row.Subject(), row.Used(), want[row.Subject()])
					}
					return nil
				})
				if err != nil || len(first) == 0 {
					t.Fatal(err, len(first))
				}
			}
		})
	}
}

// A member that takes nothing for long is compared when it comes back: what was noted for it is bounded.
func TestMemberThatWasAwayIsCompared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newMembers(t, 2)
		<-time.After(3 * time.Second)
		all.end(1)
		of := of("month", nil)
		for i := range 12_000 {
			all.meters[0].Taken(of, fmt.Append(nil, i), 1)
		}
		if err := all.meters[0].Report(t.Context()); err != nil {
			t.Fatal(err)
		}
		all.start(1, false)
		<-time.After(5 * time.Second)
		if a, b := rows(t, all.records[0], usage.Query{}), rows(t, all.records[1], usage.Query{}); len(a) != 12_000 || !slices.Equal(a, b) {
			t.Errorf("%d and %d rows", len(a), len(b))
		}
	})
}

// Counts in memory alone are safe once a majority has them; alone nothing is.
func TestKeptByAMajority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := noMembers(t, 4)
		all.start(0, true)
		synctest.Wait()
		if err := all.fans[0].Kept(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Error("alone:", err)
		}
		all.cut.Store(true)
		for i := 1; i < 4; i++ {
			all.start(i, true)
		}
		<-time.After(3 * time.Second)
		if err := all.fans[0].Kept(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Error("before anybody was told:", err)
		}
		all.cut.Store(false)
		<-time.After(3 * time.Second)
		if err := all.fans[0].Kept(t.Context()); err != nil {
			t.Error(err)
		}
		all.end(1)
		all.end(2)
		all.end(3)
		all.meters[0].Taken(of("month", nil), []byte("a"), 1)
		if err := all.meters[0].Report(t.Context()); err != nil {
			t.Error("what is counted is there for those who ask here:", err)
		}
		<-time.After(10 * time.Second)
		if err := all.fans[0].Kept(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Error("while three of four are gone:", err)
		}
	})
}

// What cannot be is refused whole; what a newer version may send is left out.
func TestTold(t *testing.T) {
	now := limit.At(time.Date(2026, 11, 24, 12, 0, 0, 0, time.UTC))
	own := records.New(func() limit.Time { return now }, 0)
	f := usage.NewFan(usage.FanOptions{Own: own, Now: func() limit.Time { return now }})
	key := func(at time.Time, kind string) string {
		return fmt.Sprintf("month\x00customer=a\x00%011d%sorigin", at.Unix(), kind)
	}
	today, good := time.Date(2026, 11, 24, 11, 0, 0, 0, time.UTC), store.Mark{Key: "month\x00customer=a\x0001795518000torigin", N: 5}
	for _, bad := range []store.Mark{
		{Key: "", N: 1},
		{Key: "month", N: 1},
		{Key: "month\x00a\x00x", N: 1},
		{Key: "month\x00a\x00-0000000001t", N: 1},
		{Key: key(today.AddDate(0, 0, 4), "t"), N: 1},
		{Key: key(today, "t"), N: 1 << 63},
		{Key: strings.Repeat("x", 2000) + key(today, "t"), N: 1},
	} {
		if _, err := f.Told(t.Context(), usage.Message{Marks: []store.Mark{good, bad}}); !errors.Is(err, usage.ErrMarks) {
			t.Errorf("%.40q: %v", bad.Key, err)
		}
	}
	if _, err := f.Told(t.Context(), usage.Message{Marks: make([]store.Mark, 1001)}); !errors.Is(err, usage.ErrMarks) {
		t.Error(err)
	}
	if got := rows(t, own, usage.Query{}); len(got) != 0 {
		t.Errorf("refused, and yet there: %q", got)
	}
	_, err := f.Told(t.Context(), usage.Message{Marks: []store.Mark{
		{Key: key(today, "t"), N: 5}, {Key: key(today, "q"), N: 7}, {Key: key(today.AddDate(-2, 0, 0), "t"), N: 9},
	}})
	if got := rows(t, own, usage.Query{}); err != nil || !slices.Equal(got, []string{"month customer=a 11-24T11:00Z 5-0"}) {
		t.Errorf("%v, %q", err, got)
	}
	// What a member says again with less changes nothing.
	if _, err := f.Told(t.Context(), usage.Message{Marks: []store.Mark{{Key: key(today, "t"), N: 3}}}); err != nil {
		t.Error(err)
	}
	if got := rows(t, own, usage.Query{}); !slices.Equal(got, []string{"month customer=a 11-24T11:00Z 5-0"}) {
		t.Errorf("%q", got)
	}
}

// What is raised while a message is under way, of keys that are in it and of others, the member has after the next
// message: until then it is not said to be up to date, nor that a majority has what was counted.
func TestRaisedWhileAMessageIsUnderWay(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		synctest.Test(t, func(t *testing.T) {
			r, waits := rand.New(rand.NewPCG(seed, 27)), rand.New(rand.NewPCG(seed, 28))
			own, other := records.New(nil, 0), records.New(nil, 0)
			to := usage.NewFan(usage.FanOptions{Own: other, Others: func() []usage.Other { return nil }})
			m := meter(t, usage.Options{Records: own})
			for i := range 3 {
				m.Taken(of("month", nil), fmt.Append(nil, i), 1)
			}
			if err := m.Report(t.Context()); err != nil {
				t.Fatal(err)
			}
			marks, err := own.Marks(t.Context(), usage.Table, "", "", 10)
			if err != nil || len(marks) != 3 {
				t.Fatal(marks, err)
			}
			var fan *usage.Fan
			left := 1 + r.IntN(20) // messages during which something is raised
			raise := func() {
				for i := range marks {
					if marks[i].N += uint64(r.IntN(3)); r.IntN(2) == 0 {
						continue
					}
					if err := fan.Raise(t.Context(), usage.Table, marks[i:i+1], usage.DefaultKeep); err != nil {
						t.Error(err)
					}
				}
			}
			fan = usage.NewFan(usage.FanOptions{
				Own:    own,
				Others: func() []usage.Other { return []usage.Other{{Name: "other", Address: "other"}} },
				Send: func(ctx context.Context, _ string, m usage.Message) (usage.Reply, error) {
					reply, err := to.Told(ctx, m)
					if left > 0 {
						left--
						raise()
					}
					return reply, err
				},
			})
			ctx, cancel := context.WithCancel(t.Context())
			var running sync.WaitGroup
			running.Go(func() { fan.Run(ctx) })
			for range 30 {
				<-time.After(time.Duration(waits.Int64N(int64(2 * time.Second))))
				synctest.Wait()
				same := slices.Equal(rows(t, own, usage.Query{}), rows(t, other, usage.Query{}))
				if s := fan.Stats(); !same && s.UpToDate != 0 {
					t.Fatalf("seed %d: the other member lacks usage, and is said to be up to date: %+v", seed, s)
				}
				if err := fan.Kept(t.Context()); !same && err == nil {
					t.Fatalf("seed %d: the other member lacks usage, and a majority is said to have it", seed)
				}
			}
			if s := fan.Stats(); s.UpToDate != 1 || left != 0 {
				t.Errorf("seed %d: %+v, %d messages to come", seed, s, left)
			}
			if a, b := rows(t, own, usage.Query{}), rows(t, other, usage.Query{}); !slices.Equal(a, b) {
				t.Errorf("seed %d: the other member has\n%q, want\n%q", seed, b, a)
			}
			cancel()
			running.Wait()
		})
	}
}
