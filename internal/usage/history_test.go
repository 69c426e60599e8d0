package usage_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// hourly is what was admitted of a key of a limit in one hour.
type hourly struct {
	limit, customer, user string
	start                 int64
}

// process is one of several that count for themselves.
type process struct {
	*usage.Observer
	records store.Records
	taken   map[hourly]uint64
}

var kolkata = time.FixedZone("", 5*3600+1800)

// both are two limits, by customer and user, whose days begin at different times.
var both = []usage.Limit{
	{Name: "a", Key: []string{"customer", "user"}, Subject: subject},
	{Name: "b", Key: []string{"customer", "user"}, Zone: kolkata, Subject: subject},
}

func subject(key []byte) []limit.Attribute {
	customer, user, _ := strings.Cut(string(key), " ")
	return []limit.Attribute{{Name: "customer", Value: customer}, {Name: "user", Value: user}}
}

func newProcess(t *testing.T, log *slog.Logger) *process {
	p := &process{records: records.New(nil, 0), taken: map[hourly]uint64{}}
	p.Observer = usage.NewObserver(meter(t, usage.Options{Records: p.records, Logger: log}))
	p.Watch(both)
	return p
}

func (p *process) take(l *usage.Limit, customer, user string, n int64) {
	now := time.Now().Unix()
	start := now - now%3600
	if l.Zone == kolkata {
		start = now - (now-1800)%3600
	}
	p.Meter().Taken(usage.NewOf(l.Name, l.Zone, l.Subject), []byte(customer+" "+user), n)
	p.taken[hourly{l.Name, customer, user, start}] += uint64(n)
}

// sums are what q says of the hours, as History shows it.
func sums(q *usage.Query, hours ...map[hourly]uint64) map[string]uint64 {
	got := map[string]uint64{}
	for _, one := range hours {
		for h, n := range one {
			zone := time.UTC
			if h.limit == "b" {
				zone = kolkata
			}
			at := time.Unix(h.start, 0).In(zone)
			asked := (q.Limit == "" || q.Limit == h.limit) && (q.From.IsZero() || !at.Before(q.From)) && (q.To.IsZero() || at.Before(q.To))
			for _, a := range q.Key {
				asked = asked && a.Value == map[string]string{"customer": h.customer, "user": h.user}[a.Name]
			}
			if !asked {
				continue
			}
			step := ""
			switch q.By {
			case usage.Hour:
				step = at.Format(time.RFC3339)
			case usage.Day:
				step = at.Format(time.DateOnly)
			case usage.Month:
				step = at.Format("2006-01")
			}
			got[h.limit+" "+h.customer+" "+h.user+" "+step] += n
		}
	}
	return got
}

// rowsOf are the rows of a history, in the same form. No row comes twice.
func rowsOf(t *testing.T, p *process, q usage.Query) (got map[string]uint64, missing []string) {
	t.Helper()
	got = map[string]uint64{}
	missing, err := p.History(t.Context(), q, func(r *usage.Row) error {
		step := map[usage.Step]string{usage.Hour: r.Start.Format(time.RFC3339), usage.Day: r.Start.Format(time.DateOnly), usage.Month: r.Start.Format("2006-01")}[q.By]
		name := r.Limit + " " + r.Key[0].Value + " " + r.Key[1].Value + " " + step
		if _, twice := got[name]; twice {
			t.Errorf("the row %s comes twice", name)
		}
		got[name] = r.Taken
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, missing
}

// faults are answers that are none, by what is wrong with them. Each comes in the place of a page.
var faults = map[string]func(ctx context.Context, good usage.Page, after string) (usage.Page, error){
	"an error": func(context.Context, usage.Page, string) (usage.Page, error) { return usage.Page{}, errors.New("away") },
	"no answer": func(ctx context.Context, _ usage.Page, _ string) (usage.Page, error) {
		<-ctx.Done()
		return usage.Page{}, ctx.Err()
	},
	"out of order": func(context.Context, usage.Page, string) (usage.Page, error) {
		const mark = "\x00customer=1&user=1\x0000946684800torigin"
		return usage.Page{Marks: []store.Mark{{Key: "z" + mark, N: 7}, {Key: "y" + mark, N: 7}}}, nil
	},
	"no mark": func(_ context.Context, good usage.Page, _ string) (usage.Page, error) {
		return usage.Page{Marks: []store.Mark{{Key: "z", N: 7}}}, nil
	},
	"a mark twice": func(_ context.Context, good usage.Page, _ string) (usage.Page, error) {
		mark := store.Mark{Key: "z\x00customer=1&user=1\x0001795518000torigin", N: 7}
		return usage.Page{Marks: []store.Mark{mark, mark}}, nil
	},
	"it goes back": func(context.Context, usage.Page, string) (usage.Page, error) { return usage.Page{Next: "\x01"}, nil },
	"it does not move": func(_ context.Context, _ usage.Page, after string) (usage.Page, error) {
		return usage.Page{Next: cmp.Or(after, "\x00")}, nil
	},
}

// Invariant: whichever process is asked, each row is the sum of what all have counted. Copies that one had
// from another count once. A process that does not answer is named, and what it said before counts once or not at all.
func TestHistoryIsTheSumOfAll(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 20) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 21))
			log := slog.New(slog.DiscardHandler)
			all := make([]*process, 2+r.IntN(3))
			for i := range all {
				all[i] = newProcess(t, log)
			}
			start := time.Now()
			keys := 1 + r.IntN(400)
			for range 60 {
				p := all[r.IntN(len(all))]
				for range r.IntN(100) {
					p.take(&both[r.IntN(2)], fmt.Sprint(r.IntN(keys)), fmt.Sprint(r.IntN(3)), 1+r.Int64N(9))
				}
				<-time.After(time.Duration(r.Int64N(int64(90 * time.Minute))))
				if r.IntN(10) == 0 { // a member of an earlier version had a copy of what another has counted
					from, to := all[r.IntN(len(all))], all[r.IntN(len(all))]
					if err := from.Meter().Report(t.Context()); err != nil {
						t.Fatal(err)
					}
					marks, err := from.records.Marks(t.Context(), usage.Table, "", "", 100_000)
					if err != nil {
						t.Fatal(err)
					}
					if err := to.records.Raise(t.Context(), usage.Table, marks, usage.DefaultKeep); err != nil {
						t.Fatal(err)
					}
				}
			}
			for range 20 {
				q := usage.Query{Limit: []string{"", "a", "b", "c"}[r.IntN(4)], By: usage.Step(r.IntN(4))}
				if r.IntN(2) == 0 {
					q.From = start.Add(time.Duration(r.IntN(40)) * time.Hour)
				}
				if r.IntN(2) == 0 {
					q.To = start.Add(time.Duration(41+r.IntN(40)) * time.Hour)
				}
				for i, name := range []string{"customer", "user"} {
					if r.IntN(3) == 0 {
						q.Key = append(q.Key, limit.Attribute{Name: name, Value: fmt.Sprint(r.IntN([]int{keys, 3}[i]))})
					}
				}
				at := r.IntN(len(all))
				var sound, every []map[hourly]uint64
				var faulty []string
				var others []usage.Member
				for i, p := range all {
					every = append(every, p.taken)
					if i == at {
						sound = append(sound, p.taken)
						continue
					}
					m := usage.Member{Name: fmt.Sprint("n", i), Page: p.Page}
					if r.IntN(4) == 0 {
						fault, goods := faults[slices.Sorted(maps.Keys(faults))[r.IntN(len(faults))]], r.IntN(2)
						m.Page = func(ctx context.Context, q usage.Query, after string) (usage.Page, error) {
							good, err := p.Page(ctx, q, after)
							if goods--; goods >= 0 && good.Next != "" || err != nil {
								return good, err
							}
							return fault(ctx, good, after)
						}
						faulty = append(faulty, m.Name)
					} else {
						sound = append(sound, p.taken)
					}
					others = append(others, m)
				}
				all[at].Others = func() []usage.Member { return others }
				got, missing := rowsOf(t, all[at], q)
				least, most := sums(&q, sound...), sums(&q, every...)
				if !slices.Equal(missing, faulty) {
					t.Fatalf("seed %d: %+v: %q do not answer, and %q are missing", seed, q, faulty, missing)
				}
				if len(faulty) == 0 && !maps.Equal(got, most) {
					t.Fatalf("seed %d: %+v:\n%v, want\n%v", seed, q, got, most)
				}
				for name, n := range least {
					if got[name] < n {
						t.Fatalf("seed %d: %+v: %s: %d, want at least %d", seed, q, name, got[name], n)
					}
				}
				for name, n := range got {
					if n > most[name] {
						t.Fatalf("seed %d: %+v: %s: %d, want at most %d", seed, q, name, n, most[name])
					}
				}
			}
		})
	}
}

// A member that says more than was asked for is not believed.
func TestMarksThatWereNotAskedFor(t *testing.T) {
	now := time.Now().Truncate(time.Hour)
	p := newProcess(t, slog.New(slog.DiscardHandler))
	for name, q := range map[string]usage.Query{
		"":              {},
		"another limit": {Limit: "b"},
		"another key":   {Key: []limit.Attribute{{Name: "user", Value: "eve"}}},
		"before":        {From: now.Add(time.Hour)},
		"after":         {To: now},
	} {
		p.Others = func() []usage.Member {
			return []usage.Member{{Name: "liar", Page: func(context.Context, usage.Query, string) (usage.Page, error) {
				return usage.Page{Marks: []store.Mark{{Key: fmt.Sprintf("a\x00customer=acme&user=bob\x00%011dtorigin", now.Unix()), N: 7}}}, nil
			}}}
		}
		q.By = usage.Total
		got, missing := rowsOf(t, p, q)
		if believed := name == ""; believed != (got["a acme bob "] == 7) || believed != (missing == nil) {
			t.Errorf("%s: %v, %q are missing", name, got, missing)
		}
	}
}

// Members that do not answer are asked at once and waited for together; they are logged once a minute.
func TestMembersThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := newProcess(t, slog.New(slog.NewTextHandler(&log, nil)))
		p.take(&both[0], "acme", "bob", 5)
		p.Others = func() (list []usage.Member) {
			for _, name := range []string{"c", "a", "b"} {
				list = append(list, usage.Member{Name: name, Page: func(ctx context.Context, _ usage.Query, _ string) (usage.Page, error) {
					<-ctx.Done()
					return usage.Page{}, ctx.Err()
				}})
			}
			return list
		}
		begun := time.Now()
		for range 30 {
			if got, missing := rowsOf(t, p, usage.Query{By: usage.Total}); got["a acme bob "] != 5 || !slices.Equal(missing, []string{"a", "b", "c"}) {
				t.Fatal(got, missing)
			}
		}
		if took := time.Since(begun); took != time.Minute {
			t.Errorf("30 answers took %v, want 2 s for each", took)
		}
		if lines := strings.Count(log.String(), "lacks what other members have counted"); lines != 1 || p.Incomplete() != 30 {
			t.Errorf("%d incomplete answers, %d lines:\n%s", p.Incomplete(), lines, log.String())
		}
	})
}

// More keys than a page has, in three hours, at several processes, each with keys of its own and some of all. A question
// about few of them is answered by few pages.
func TestHistoryOfManyPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 2_000
		all := []*process{newProcess(t, nil), newProcess(t, nil), newProcess(t, nil)}
		begun := time.Now()
		for range 3 {
			for i, p := range all {
				for k := range keys {
					p.take(&both[k%2], fmt.Sprint(i*keys*2/3+k), "bob", 1)
				}
			}
			<-time.After(time.Hour)
		}
		var others []usage.Member
		pages := 0
		for i, p := range all[1:] {
			others = append(others, usage.Member{Name: fmt.Sprint(i), Page: func(ctx context.Context, q usage.Query, after string) (usage.Page, error) {
				if i == 0 {
					pages++
				}
				return p.Page(ctx, q, after)
			}})
		}
		all[0].Others = func() []usage.Member { return others }
		for _, q := range []usage.Query{
			{},
			{Limit: "a"},
			{Key: []limit.Attribute{{Name: "customer", Value: "1500"}}},
			{Key: []limit.Attribute{{Name: "user", Value: "nobody"}}},
			{From: begun.Add(90 * time.Minute)},
			{To: begun.Add(90 * time.Minute)},
			{To: begun.Add(20 * time.Minute)},
			{From: begun.Add(time.Hour), To: begun.Add(2 * time.Hour)},
			{From: begun.Add(5 * time.Hour)},
		} {
			pages = 0
			got, missing := rowsOf(t, all[0], q)
			if want := sums(&q, all[0].taken, all[1].taken, all[2].taken); !maps.Equal(got, want) || missing != nil {
				t.Errorf("%+v: %d rows, want %d; %q are missing", q, len(got), len(want), missing)
			}
			if most := 1 + len(sums(&q, all[1].taken))/1000; pages > most {
				t.Errorf("%+v: a member was asked for %d pages, want at most %d", q, pages, most)
			}
		}
	})
}
