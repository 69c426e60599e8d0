package plans_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/audit"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// files are those of most tests: everybody has free, and acme has pro.
var files = plans.Files{Plans: []string{"free", "pro", "gold"}, Default: "free", By: []string{"user", "customer"}, List: map[string]string{"acme": "pro"}}

// office is a server's side: a directory, its desk, and a clock.
type office struct {
	*plans.Desk
	t   *testing.T
	dir *plans.Directory
	log *audit.Log
	now time.Time
}

func newOffice(t *testing.T, rec store.Records, f plans.Files) *office {
	t.Helper()
	o := &office{t: t, now: time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC)}
	o.dir = plans.NewDirectory(func() time.Time { return o.now })
	o.log = audit.New(rec, nil, 0)
	o.Desk = plans.NewDesk(o.dir, rec, o.log, nil, func(string) []string { return []string{"messages", "tokens"} })
	o.read(f)
	return o
}

func (o *office) read(f plans.Files) {
	o.t.Helper()
	v, err := o.dir.Read(f)
	if err != nil {
		o.t.Fatal(err)
	}
	o.Use(v)
}

func of(pairs ...string) (attrs []limit.Attribute) {
	for i := 0; i < len(pairs); i += 2 {
		attrs = append(attrs, limit.Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	return attrs
}

// has checks the plan of a customer, and its count of messages where the plan's is 100.
func (o *office) has(name, plan string, count int64) {
	o.t.Helper()
	attrs := of("customer", name)
	got, _ := o.View().Plan(attrs)
	if n := o.View().Count(attrs, "messages", 100); got != plan || n != count {
		o.t.Errorf("%s has plan %s and %d messages, want %s and %d", name, got, n, plan, count)
	}
}

// A walk: what the files say, what is set, until when, and what follows.
func TestWalk(t *testing.T) {
	rec := records.New(nil, 0)
	o := newOffice(t, rec, files)
	o.has("acme", "pro", 100)
	o.has("bob", "free", 100)
	if plan, known := o.View().Plan(nil); plan != "free" || known {
		t.Errorf("who names no customer has %s, known %v", plan, known)
	}
	set := func(name string, a plans.Assignment) plans.Changed {
		t.Helper()
		c, err := o.Set(t.Context(), name, a, "ann")
		if err != nil || c.Who != "ann" || c.Name != name {
			t.Errorf("%+v, %v", c, err)
		}
		return c
	}
	friday := o.now.Add(96 * time.Hour)
	double := map[string]plans.Count{"messages": {Percent: 200, Until: friday}}
	if c := set("acme", plans.Assignment{Plan: "pro", Counts: double}); c.Before != "pro" || c.BeforeFrom != "files" {
		t.Errorf("%+v", c)
	}
	o.has("acme", "pro", 200)
	if n := o.View().Count(of("customer", "acme"), "tokens", 7); n != 7 {
		t.Errorf("%d tokens", n)
	}
	if c := set("bob", plans.Assignment{Plan: "gold", Until: friday, Then: "pro", Counts: map[string]plans.Count{"messages": {N: 5000}}}); c.BeforeFrom != "default" {
		t.Errorf("%+v", c)
	}
	o.has("bob", "gold", 5000)
	o.now = friday.Add(-time.Nanosecond)
	o.has("acme", "pro", 200)
	o.has("bob", "gold", 5000)
	o.now = friday
	o.has("acme", "pro", 100)
	o.has("bob", "pro", 100) // other counts end with their plan
	set("acme", plans.Assignment{Plan: "free", Until: friday.Add(time.Hour)})
	o.has("acme", "free", 100)
	o.now = friday.Add(time.Hour)
	o.has("acme", "pro", 100) // what the files say
	set("acme", plans.Assignment{Plan: "gold"})
	if err := o.Remove(t.Context(), "acme", "eve"); err != nil {
		t.Error(err)
	}
	o.has("acme", "pro", 100)
	if err := o.Remove(t.Context(), "acme", ""); !errors.Is(err, plans.ErrUnknown) {
		t.Error(err)
	}
	// A plan that is gone: the customer has what the files say, and is counted.
	set("bob", plans.Assignment{Plan: "gold"})
	fewer := files
	fewer.Plans = []string{"free", "pro"}
	o.read(fewer)
	o.has("bob", "free", 100)
	if s := o.View().Stats(); s != (plans.Stats{Customers: 1, Live: 1, Lost: 1}) {
		t.Errorf("%+v", s)
	}
	o.read(files)
	o.has("bob", "gold", 100)
	list, _, err := o.log.List(t.Context(), "customer acme", "", 10)
	if err != nil || len(list) != 4 || list[0].Action != "customer.remove" || list[0].Who != "eve" || list[0].After != "" || !strings.Contains(list[1].After, `"plan":"gold"`) || !strings.Contains(list[1].Before, `"plan":"free"`) {
		t.Errorf("%+v, %v", list, err)
	}
}

// The first attribute counts whose value is a customer; the names of header fields have no case.
func TestWhichCustomer(t *testing.T) {
	f := files
	f.By = []string{"header:x-user", "customer"}
	f.List = map[string]string{"acme": "pro", "ann": "gold", "": "pro"}
	if _, err := plans.NewDirectory(nil).Read(f); err == nil || !strings.Contains(err.Error(), "has no name") {
		t.Error(err)
	}
	delete(f.List, "")
	o := newOffice(t, records.New(nil, 0), f)
	for _, c := range []struct {
		attrs []limit.Attribute
		plan  string
		known bool
	}{
		{of("customer", "acme", "Header:X-User", "ann"), "gold", true},
		{of("header:x-user", "zed", "customer", "acme"), "pro", true},
		{of("header:x-user", "zed"), "free", false},
		{of("customer", "zed", "customer", "acme"), "free", false}, // the first of one name, as for limits
		{of("Customer", "acme"), "free", false},
	} {
		if plan, known := o.View().Plan(c.attrs); plan != c.plan || known != c.known {
			t.Errorf("%v: %s, %v", c.attrs, plan, known)
		}
	}
}

// What cannot be is refused with a reason, and changes nothing.
func TestBadChanges(t *testing.T) {
	rec := records.New(nil, 0)
	o := newOffice(t, rec, files)
	past := o.now
	many := make(map[string]plans.Count)
	for i := range 33 {
		many[fmt.Sprint(i)] = plans.Count{N: 1}
	}
	count := func(c plans.Count) plans.Assignment {
		return plans.Assignment{Plan: "pro", Counts: map[string]plans.Count{"messages": c}}
	}
	for _, c := range []struct {
		name string
		a    plans.Assignment
		want string
	}{
		{"", plans.Assignment{Plan: "pro"}, "has no name"},
		{"a\nb", plans.Assignment{Plan: "pro"}, "control characters"},
		{"a\xff", plans.Assignment{Plan: "pro"}, "not UTF-8"},
		{strings.Repeat("x", 1<<20), plans.Assignment{Plan: "pro"}, "1048576 bytes, want at most 512"},
		{"a", plans.Assignment{}, `no plan ""`},
		{"a", plans.Assignment{Plan: "platinum"}, `no plan "platinum": stint plan ls`},
		{"a", plans.Assignment{Plan: "pro", Then: "silver", Until: past.Add(1)}, `no plan "silver"`},
		{"a", plans.Assignment{Plan: "pro", Then: "free"}, "without until"},
		{"a", plans.Assignment{Plan: "pro", Until: past}, "which is over"},
		{"a", count(plans.Count{}), "neither a number"},
		{"a", count(plans.Count{N: -1}), "neither a number"},
		{"a", count(plans.Count{N: 1, Percent: 1}), "neither a number"},
		{"a", count(plans.Count{Percent: 1_000_001}), "neither a number"},
		{"a", count(plans.Count{N: limit.MaxCount + 1}), "neither a number"},
		{"a", count(plans.Count{N: 1, Until: past}), "which is over"},
		{"a", plans.Assignment{Plan: "pro", Counts: map[string]plans.Count{"calls": {N: 1}}}, "it has messages, tokens"},
		{"a", plans.Assignment{Plan: "pro", Counts: many}, "33 other counts, want at most 32"},
	} {
		if _, err := o.Set(t.Context(), c.name, c.a, ""); !errors.Is(err, plans.ErrBad) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q %+v: %.300v, want %s", c.name, c.a, err, c.want)
		}
	}
	if err := o.Remove(t.Context(), "\x00", ""); !errors.Is(err, plans.ErrBad) {
		t.Error(err)
	}
	if _, err := o.Find(t.Context(), "\x00"); !errors.Is(err, plans.ErrBad) {
		t.Error(err)
	}
	list, _, _ := o.log.List(t.Context(), "", "", 10)
	if all, next, err := o.List(t.Context(), "", 10); err != nil || len(all) != 0 || next != "" || len(list) != 0 {
		t.Errorf("%v %v %v", all, list, err)
	}
}

// A percentage is rounded down, and does not overflow.
func TestPercent(t *testing.T) {
	o := newOffice(t, records.New(nil, 0), files)
	for _, c := range []struct{ nominal, percent, want int64 }{{99, 150, 148}, {1, 50, 0}, {limit.MaxCount, 1_000_000, limit.MaxCount}, {limit.MaxCount, 100, limit.MaxCount}} {
		if _, err := o.Set(t.Context(), "a", plans.Assignment{Plan: "pro", Counts: map[string]plans.Count{"messages": {Percent: c.percent}}}, ""); err != nil {
			t.Fatal(err)
		}
		if n := o.View().Count(of("customer", "a"), "messages", c.nominal); n != c.want {
			t.Errorf("%d%% of %d is %d, want %d", c.percent, c.nominal, n, c.want)
		}
	}
}

// What customers are assigned together: by files and changes, with other counts; those of the default plan are not known.
func TestAssigned(t *testing.T) {
	f := files
	f.From = filepath.Join(t.TempDir(), "c.csv")
	if err := os.WriteFile(f.From, []byte("\ufeffcustomer,plan,until\n# a comment\nbolt , pro\ncalm,gold,2026-12-01\nover,gold,2026-01-01\n\"x,y\",free\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := newOffice(t, records.New(nil, 0), f)
	check := func(sum int64, customers int) {
		t.Helper()
		if s, n := o.View().Assigned("messages", map[string]int64{"pro": 100, "gold": 1000}); s != sum || n != customers {
			t.Errorf("%d are assigned to %d, want %d to %d", s, n, sum, customers)
		}
	}
	o.has("bolt", "pro", 100)
	o.has("over", "free", 100)
	o.has("x,y", "free", 100)
	check(1200, 3) // acme and bolt, and calm
	set := func(name string, a plans.Assignment) {
		t.Helper()
		if _, err := o.Set(t.Context(), name, a, ""); err != nil {
			t.Fatal(err)
		}
	}
	set("bolt", plans.Assignment{Plan: "gold", Counts: map[string]plans.Count{"messages": {N: 7}}})
	check(1107, 3)
	set("calm", plans.Assignment{Plan: "free"})
	check(107, 2)
	set("dora", plans.Assignment{Plan: "gold"})
	check(1107, 3)
	set("dora", plans.Assignment{Plan: "gold", Counts: map[string]plans.Count{"messages": {N: limit.MaxCount}}})
	set("eric", plans.Assignment{Plan: "gold", Counts: map[string]plans.Count{"messages": {N: limit.MaxCount}}})
	if s, _ := o.View().Assigned("messages", map[string]int64{"pro": 1 << 62, "gold": 1 << 62}); s < 1<<62 {
		t.Errorf("the sum is %d: it went over", s)
	}
}

// A file of customers that is wrong is refused with lines, and at most ten of them.
func TestBadFiles(t *testing.T) {
	f := files
	f.From = filepath.Join(t.TempDir(), "c.csv")
	for text, want := range map[string]string{
		"a,pro\nb,platinum\n":                  `line 2: customer "b": there is no plan "platinum", want one of free, pro, gold`,
		"a,pro\na,gold\n":                      `line 2: customer "a" is there twice`,
		"acme,pro\n":                           `customer "acme" is there twice`,
		"a,pro,2026,x\n":                       "line 1 has 4 fields",
		"\x00\xff\xfe\x1b,pro\n":               "line 1: ",
		"a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n":    "line 10 has 1 fields",
		"a,pro,tomorrow\n":                     `"tomorrow" is no time from 1970`,
		"a,pro,0001-01-01\n":                   "is no time from 1970",
		"a,\"pro\nb,pro\n":                     "line 1: its quotes are wrong",
		strings.Repeat("n", 600) + ",pro\n":    "has 600 bytes, want at most 512",
		strings.Repeat("n", 1<<20) + ",pro\n":  "line 1 has more than 4096 bytes",
		"a,pro\n" + strings.Repeat("n", 1<<20): "line 2 has more than 4096 bytes",
	} {
		if err := os.WriteFile(f.From, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := plans.NewDirectory(nil).Read(f)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "line 11") || len(err.Error()) > 4000 {
			t.Errorf("%.40q: %.400v, want %s", text, err, want)
		}
	}
	f.From = filepath.Join(t.TempDir(), "none.csv")
	if _, err := plans.NewDirectory(nil).Read(f); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

// What one server changes the others see within two seconds, also those that start later or were cut off, and whatever
// their clocks say.
func TestFollowers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec := &cuttable{Records: records.New(nil, 0)}
		a, b := newOffice(t, records2(rec), files), newOffice(t, rec, files)
		b.now = b.now.Add(-24 * time.Hour) // a clock that is a day late
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{}, 3)
		run := func(o *office) { go func() { o.Run(ctx); ended <- struct{}{} }() }
		run(a)
		run(b)
		set := func(o *office, name, plan string) {
			t.Helper()
			if _, err := o.Set(ctx, name, plans.Assignment{Plan: plan}, ""); err != nil {
				t.Fatal(err)
			}
		}
		soon := func() { time.Sleep(2 * time.Second); synctest.Wait() }
		synctest.Wait()
		set(a, "bob", "gold")
		soon()
		b.has("bob", "gold", 100)
		set(b, "bob", "pro") // by the server whose clock is late
		soon()
		a.has("bob", "pro", 100)
		a.now = a.now.Add(24 * time.Hour) // and one jumps
		set(a, "cleo", "gold")
		soon()
		b.has("cleo", "gold", 100)
		if err := b.Remove(ctx, "cleo", ""); err != nil {
			t.Fatal(err)
		}
		soon()
		a.has("cleo", "free", 100)
		late := newOffice(t, rec, files)
		if err := late.Open(ctx); err != nil {
			t.Fatal(err)
		}
		late.has("bob", "pro", 100)
		// b is cut off for longer than changes are listed.
		rec.cut(true)
		for i := range 1500 {
			set(a, fmt.Sprint("n", i), "pro")
		}
		set(a, "bob", "gold")
		time.Sleep(2 * time.Hour)
		b.has("bob", "pro", 100)
		rec.cut(false)
		soon()
		b.has("bob", "gold", 100)
		b.has("n1499", "pro", 100)
		stop()
		<-ended
		<-ended
	})
}

// Records that are lost, such as by a Redis that was emptied, are seen as lost; who made a change and ended before the
// list's number was raised hides none.
func TestLostRecords(t *testing.T) {
	rec := &cuttable{Records: records.New(nil, 0)}
	a, b := newOffice(t, rec, files), newOffice(t, rec, files)
	look := func(o *office) {
		t.Helper()
		if err := o.Open(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	set := func(name string) {
		t.Helper()
		if _, err := a.Set(t.Context(), name, plans.Assignment{Plan: "gold"}, ""); err != nil {
			t.Fatal(err)
		}
	}
	look(b)
	for i := range 5 {
		set(fmt.Sprint("n", i))
	}
	look(b)
	rec.Records = records.New(nil, 0)
	set("zoe")
	look(b)
	b.has("n1", "free", 100)
	b.has("zoe", "gold", 100)
	rec.unraised = true
	for i := range 3 {
		set(fmt.Sprint("m", i))
		look(b)
		b.has(fmt.Sprint("m", i), "gold", 100)
	}
	rec.unraised = false
	set("last")
	look(b)
	b.has("last", "gold", 100)
}

// A change that was made is in the list of changes, with who made it and what it changed, also where other servers cannot
// be told of it and its caller gets an error.
func TestChangesOfWhichOthersAreNotToldAreListed(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		r := rand.New(rand.NewPCG(seed, 24))
		rec := &cuttable{Records: records.New(nil, 0)}
		o := newOffice(t, rec, files)
		type change struct{ who, action, what, after string }
		var want []change
		set := map[string]bool{}
		for n := range 20 {
			rec.untold = r.IntN(2) == 0
			name, who := customers[r.IntN(len(customers))], fmt.Sprint("operator", n)
			action, after := "customer.remove", ""
			var err error
			if set[name] && r.IntN(2) == 0 {
				err = o.Remove(t.Context(), name, who)
				delete(set, name)
			} else {
				plan := []string{"free", "pro", "gold"}[r.IntN(3)]
				action, after = "customer.set", `"plan":"`+plan+`"`
				_, err = o.Set(t.Context(), name, plans.Assignment{Plan: plan}, who)
				set[name] = true
			}
			if rec.untold != errors.Is(err, store.ErrUnavailable) || !rec.untold && err != nil {
				t.Fatalf("seed %d: %v; others cannot be told: %v", seed, err, rec.untold)
			}
			want = append(want, change{who, action, "customer " + name, after})
		}
		list, _, err := o.log.List(t.Context(), "", "", 100)
		if err != nil || len(list) != len(want) {
			t.Fatalf("seed %d: %d changes are listed, want %d; %v", seed, len(list), len(want), err)
		}
		for i, e := range list {
			w := want[len(want)-1-i] // the latest is the first
			if e.Who != w.who || e.Action != w.action || e.What != w.what || !strings.Contains(e.After, w.after) || (e.After == "") != (w.after == "") {
				t.Errorf("seed %d: %+v, want %+v", seed, e, w)
			}
		}
	}
}
