package usage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

func of(name string, zone *time.Location) *usage.Of {
	return usage.NewOf(name, zone, func(key []byte) []limit.Attribute {
		return []limit.Attribute{{Name: "customer", Value: string(key)}}
	})
}

func meter(t *testing.T, o usage.Options) *usage.Meter {
	t.Helper()
	m, err := usage.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	})
	return m
}

// rows returns the history as text.
func rows(t *testing.T, from store.Records, q usage.Query) (list []string) {
	t.Helper()
	_, err := usage.History(t.Context(), from, nil, q, func(r *usage.Row) error {
		list = append(list, fmt.Sprintf("%s %s %s %d-%d", r.Limit, r.Subject(), r.Start.Format("01-02T15:04Z07:00"), r.Taken, r.Returned))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// Step by step: hours, days of a time zone that is off by half an hour, refunds, filters.
func TestWalkThrough(t *testing.T) {
	now := limit.At(time.Date(2026, 11, 23, 17, 50, 0, 0, time.UTC))
	clock := func() limit.Time { return now }
	rec := records.New(clock, 0)
	m := meter(t, usage.Options{Records: rec, Now: clock})
	india := time.FixedZone("IST", 5*3600+1800)
	month, api := of("month", india), of("api", nil)
	for range 4 { // 23:20, 23:50, 00:20, 00:50 in India
		m.Taken(month, []byte("acme"), 10)
		m.Taken(month, []byte("acme2"), 1)
		m.Taken(api, []byte("acme"), 2)
		now = now.Add(30 * time.Minute)
	}
	m.Returned(month, []byte("acme"), 3)
	m.Taken(month, []byte("acme"), 0)
	m.Taken(month, []byte("acme"), -5)
	for range 2 {
		if err := m.Report(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	zone := func(name string) *time.Location {
		if name == "month" {
			return india
		}
		return nil
	}
	for _, tt := range []struct {
		name string
		q    usage.Query
		want []string
	}{
		{"hours", usage.Query{Limit: "month", Key: []limit.Attribute{{Name: "customer", Value: "acme"}}, Zone: zone, Order: func(string) []string { return []string{"customer"} }}, []string{
			"month customer=acme 11-23T23:00+05:30 20-0", "month customer=acme 11-24T00:00+05:30 20-0", "month customer=acme 11-24T01:00+05:30 0-3",
		}},
		{"days", usage.Query{Key: []limit.Attribute{{Name: "customer", Value: "acme"}}, Zone: zone, By: usage.Day}, []string{
			"api customer=acme 11-23T00:00Z 8-0",
			"month customer=acme 11-23T00:00+05:30 20-0", "month customer=acme 11-24T00:00+05:30 20-3",
		}},
		{"total", usage.Query{By: usage.Total, From: time.Unix(0, 0), Zone: zone, Limit: "month"}, []string{
			"month customer=acme 01-01T05:30+05:30 40-3", "month customer=acme2 01-01T05:30+05:30 4-0",
		}},
		{"from", usage.Query{Limit: "api", From: time.Date(2026, 11, 23, 19, 0, 0, 0, time.UTC)}, []string{"api customer=acme 11-23T19:00Z 2-0"}},
		{"to", usage.Query{Limit: "api", To: time.Date(2026, 11, 23, 18, 0, 0, 0, time.UTC)}, []string{"api customer=acme 11-23T17:00Z 2-0"}},
		{"unknown", usage.Query{Limit: "other"}, nil},
	} {
		if got := rows(t, rec, tt.q); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %s", tt.name, strings.Join(got, "\n"))
		}
	}
}

// lossy hands batches on late, twice, out of order, or with an error although it took them.
type lossy struct {
	store.Records
	rnd  *rand.Rand
	late [][]store.Mark
}

func (l *lossy) Raise(ctx context.Context, table string, marks []store.Mark, keep time.Duration) error {
	l.late = append(l.late, slices.Clone(marks))
	switch l.rnd.IntN(4) {
	case 0:
		return store.ErrUnavailable // and it is kept for later, or not
	case 1:
		i := l.rnd.IntN(len(l.late))
		if err := l.Records.Raise(ctx, table, l.late[i], keep); err != nil {
			return err
		}
	}
	err := l.Records.Raise(ctx, table, marks, keep)
	if l.rnd.IntN(4) == 0 {
		return errors.Join(err, store.ErrUnavailable)
	}
	return err
}

// Whatever is lost, repeated or late on the way, and whenever processes end and clocks jump: once all have
// reported, each key's usage is exactly what was counted.
func TestExactlyOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 5) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		now := limit.At(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
		clock := func() limit.Time { return now }
		rec := &lossy{Records: records.New(nil, 0), rnd: rnd}
		folder := t.TempDir()
		limits := []*usage.Of{of("a", nil), of("b", time.FixedZone("x", -3*3600-1800))}
		nodes := make([]*usage.Meter, 3)
		want := map[string][2]uint64{}
		start := func() *usage.Meter {
			m, err := usage.New(usage.Options{Records: rec, Now: clock, Folder: folder})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		for range 3000 {
			i := rnd.IntN(len(nodes))
			if nodes[i] == nil {
				nodes[i] = start()
			}
			switch rnd.IntN(40) {
			case 0:
				if err := nodes[i].Close(); err != nil {
					t.Fatal(err)
				}
				nodes[i] = nil
				continue
			case 1:
				now = now.Add(time.Duration(rnd.Int64N(int64(5*time.Hour))) - 2*time.Hour)
			case 2:
				_ = nodes[i].Report(t.Context())
			}
			l, key, n := rnd.IntN(2), fmt.Sprint("c", rnd.IntN(5)), rnd.Int64N(100)
			name := string(rune('a'+l)) + " customer=" + key
			sum := want[name]
			if rnd.IntN(10) == 0 {
				nodes[i].Returned(limits[l], []byte(key), n)
				sum[1] += uint64(n)
			} else {
				nodes[i].Taken(limits[l], []byte(key), n)
				sum[0] += uint64(n)
			}
			want[name] = sum
		}
		for i := range nodes {
			if nodes[i] != nil {
				_ = nodes[i].Close()
			}
		}
		last := start()
		for last.Report(t.Context()) != nil {
		}
		if err := last.Close(); err != nil {
			t.Fatal(err)
		}
		got := map[string][2]uint64{}
		if _, err := usage.History(t.Context(), rec.Records, nil, usage.Query{By: usage.Total}, func(r *usage.Row) error {
			got[r.Limit+" "+r.Subject()] = [2]uint64{r.Taken, r.Returned}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if !maps.Equal(got, want) {
			t.Fatalf("seed %d\ngot  %v\nwant %v", seed, got, want)
		}
		if left, _ := filepath.Glob(filepath.Join(folder, "*")); len(left) > 0 {
			t.Fatal("files stay:", left)
		}
	}
}

// careless are records that take marks before they are safe, as those in a file do. A crash loses the marks that are not safe yet.
type careless struct {
	store.Records
	rnd   *rand.Rand
	marks []store.Mark
}

func (u *careless) Raise(_ context.Context, _ string, marks []store.Mark, _ time.Duration) error {
	u.marks = append(u.marks, marks...)
	return nil
}

// Kept implements [usage.Keeper].
func (u *careless) Kept(ctx context.Context) error {
	if u.rnd.IntN(2) == 0 {
		return store.ErrUnavailable
	}
	marks := u.marks
	u.marks = nil
	return u.Records.Raise(ctx, usage.Table, marks, 0)
}

// However often the records lose what was not safe yet when a process ends: each key's usage is exactly what was counted.
func TestEndsBeforeItIsSafe(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		rnd := rand.New(rand.NewPCG(seed, 9))
		now := limit.At(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
		rec := &careless{Records: records.New(nil, 0), rnd: rnd}
		folder, of, want := t.TempDir(), of("a", nil), uint64(0)
		start := func() *usage.Meter {
			m, err := usage.New(usage.Options{Records: rec, Now: func() limit.Time { return now }, Folder: folder})
			if err != nil {
				t.Fatal(err)
			}
			return m
		}
		for range 1 + rnd.IntN(5) {
			m := start()
			for range rnd.IntN(50) {
				switch rnd.IntN(5) {
				case 0:
					now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Hour))))
				case 1:
					if err := m.Report(t.Context()); err != nil {
						t.Fatal(err)
					}
				default:
					n := rnd.Int64N(100)
					m.Taken(of, []byte("c"), n)
					want += uint64(n)
				}
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			rec.marks = nil
		}
		for left := 1; left > 0; rec.marks = nil {
			last := start()
			if err := errors.Join(last.Report(t.Context()), last.Close()); err != nil {
				t.Fatal(err)
			}
			files, _ := filepath.Glob(filepath.Join(folder, "*"))
			left = len(files)
		}
		got := uint64(0)
		if _, err := usage.History(t.Context(), rec.Records, nil, usage.Query{By: usage.Total}, func(r *usage.Row) error {
			got += r.Taken
			return nil
		}); err != nil || got != want {
			t.Fatalf("seed %d: %d is reported of %d: %v", seed, got, want, err)
		}
	}
}

// Counted by many at once while hours end, nothing is lost.
func TestConcurrent(t *testing.T) {
	var mu sync.Mutex
	now := limit.Time(1e18)
	clock := func() limit.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Second)
		return now
	}
	rec := records.New(func() limit.Time { return 1 }, 0)
	m := meter(t, usage.Options{Records: rec, Now: clock, Folder: t.TempDir()})
	l := of("a", nil)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 5000 {
				m.Taken(l, fmt.Append(nil, (g+i)%17), 1)
				if i%1000 == 0 {
					_ = m.Report(t.Context())
				}
			}
		})
	}
	all.Wait()
	if err := m.Report(t.Context()); err != nil {
		t.Fatal(err)
	}
	var sum uint64
	if _, err := usage.History(t.Context(), rec, nil, usage.Query{}, func(r *usage.Row) error { sum += r.Taken; return nil }); err != nil {
		t.Fatal(err)
	}
	if sum != 40_000 {
		t.Fatal(sum)
	}
}

// Keys beyond the bound are counted together, and said so.
func TestManyKeys(t *testing.T) {
	rec := records.New(nil, 0)
	m := meter(t, usage.Options{Records: rec, MaxKeys: 10})
	l := of("a", nil)
	for i := range 1000 {
		m.Taken(l, fmt.Append(nil, i), 2)
	}
	if err := m.Report(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := rows(t, rec, usage.Query{By: usage.Total})
	if len(got) != 11 || !strings.Contains(got[0], "a * ") || !strings.HasSuffix(got[0], " 1980-0") || m.Stats().Overflows != 990 {
		t.Fatal(got, m.Stats())
	}
}

// The files of a folder that nobody can read, and those of a newer version, are left alone, and that is said.
func TestStrangeFiles(t *testing.T) {
	folder := t.TempDir()
	write := func(name string, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("1.usage", "")
	write("2.usage", strings.Repeat("x", 100))
	write("notes.txt", "mine")
	write("3.usage", "stintusg\x02\x00\x00\x00"+strings.Repeat("\x00", 100))
	var said bytes.Buffer
	m := meter(t, usage.Options{Folder: folder, Records: records.New(nil, 0), Logger: slog.New(slog.NewTextHandler(&said, nil))})
	m.Taken(of("a", nil), []byte("acme"), 1)
	if err := m.Report(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text := said.String(); !strings.Contains(text, "newer version") || strings.Count(text, "has no header") != 2 {
		t.Error(text)
	}
	for _, name := range []string{"1.usage", "2.usage", "3.usage", "notes.txt"} {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			t.Error(err)
		}
	}
}
