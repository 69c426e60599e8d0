package configstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/internal/configstore"
)

// text is a draft of one file.
func text(s string) configstore.Draft {
	return configstore.Draft{Files: []configstore.File{{Name: "a.yaml", Text: s}}, Limits: 1, Author: "anna@host", Message: "why"}
}

func push(t *testing.T, s *configstore.Store, d configstore.Draft) configstore.Meta {
	t.Helper()
	m, err := s.Push(t.Context(), d)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func keys(t *testing.T, r cluster.Register, prefix string) []string {
	t.Helper()
	list, err := r.List(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for k := range list {
		all = append(all, k)
	}
	return all
}

// TestVersions: each push makes a version above the one before, which stays; a rollback makes another one
// with the old content.
func TestVersions(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := configstore.New(alone.New())
	if _, err := s.Latest(t.Context()); !errors.Is(err, configstore.ErrNone) {
		t.Fatalf("of nothing: %v", err)
	}
	for i, want := range []uint64{1, 2, 3} {
		if m := push(t, s, text(fmt.Sprint("content ", i))); m.Version != want || m.SHA256 == "" || m.Time.IsZero() || m.Bytes != 15 {
			t.Errorf("push %d: %+v", i, m)
		}
	}
	again, err := s.Rollback(t.Context(), 1, "ben@host", "too low", nil)
	if err != nil || again.Version != 4 || again.From != 1 {
		t.Fatalf("rollback: %+v %v", again, err)
	}
	v, err := s.Latest(t.Context())
	if err != nil || v.Version != 4 || v.Files[0].Text != "content 0" || v.Author != "ben@host" {
		t.Errorf("latest: %+v %v", v, err)
	}
	if v, err := s.Get(t.Context(), 2); err != nil || v.Files[0].Text != "content 1" || v.Author != "anna@host" || v.Message != "why" {
		t.Errorf("version 2: %+v %v", v, err)
	}
	if m, err := s.Push(t.Context(), text("content 0")); !errors.Is(err, configstore.ErrUnchanged) || m.Version != 4 {
		t.Errorf("the same content: %+v %v", m, err)
	}
	if _, changed, err := s.Next(t.Context(), again); changed || err != nil {
		t.Errorf("the known version is another one: %v", err)
	}
	var kept *configstore.NotKept
	if _, err := s.Rollback(t.Context(), 9, "a", "", nil); !errors.As(err, &kept) || !strings.Contains(err.Error(), "from 1 to 4") {
		t.Errorf("a version that never was: %v", err)
	}
}

// TestPushAfterAnother: one that names the version which it replaces is refused when that is not the
// latest, and the error says who was faster.
func TestPushAfterAnother(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := configstore.New(alone.New())
	after := func(n uint64, content string) configstore.Draft {
		d := text(content)
		d.After = &n
		return d
	}
	push(t, s, after(0, "one"))
	var conflict *configstore.Conflict
	for _, n := range []uint64{0, 2} {
		if _, err := s.Push(t.Context(), after(n, "two")); !errors.As(err, &conflict) || !strings.Contains(err.Error(), "anna@host pushed version 1") {
			t.Errorf("after %d: %v", n, err)
		}
	}
	if m := push(t, s, after(1, "two")); m.Version != 2 {
		t.Errorf("after 1: %+v", m)
	}
}

// TestPushesAtTheSameTime: each version that is listed has the content of exactly one push, and each push
// that was refused is a conflict and leaves no record.
func TestPushesAtTheSameTime(t *testing.T) {
	r := alone.New()
	made := map[uint64]string{}
	var mu sync.Mutex
	var running sync.WaitGroup
	for i := range 16 {
		running.Go(func() {
			content := fmt.Sprint("content ", i)
			for {
				m, err := configstore.New(r).Push(context.Background(), text(content))
				var conflict *configstore.Conflict
				switch {
				case errors.As(err, &conflict):
					continue
				case err != nil:
					t.Error(err)
				default:
					mu.Lock()
					made[m.Version] = content
					mu.Unlock()
				}
				return
			}
		})
	}
	running.Wait()
	s := configstore.New(r)
	history, err := s.History(t.Context())
	if err != nil || len(history) != 16 || len(made) != 16 {
		t.Fatalf("%d versions were made, %d are listed: %v", len(made), len(history), err)
	}
	for _, m := range history {
		if v, err := s.Get(t.Context(), m.Version); err != nil || v.Files[0].Text != made[m.Version] {
			t.Errorf("version %d is %q, want %q: %v", m.Version, v.Files[0].Text, made[m.Version], err)
		}
	}
	if n := len(keys(t, r, "config/versions/")); n != 16 {
		t.Errorf("there are %d records of 16 versions", n)
	}
}

// TestOldVersionsAreDeleted: the last 50 are kept, or fewer where they are large, and always the one before
// the latest.
func TestOldVersionsAreDeleted(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, c := range map[string]struct{ size, kept int }{"small": {1, 50}, "large": {900_000, 18}} {
		r := alone.New()
		s := configstore.New(r)
		for i := range 60 {
			push(t, s, text(fmt.Sprint(i)+strings.Repeat("x", c.size)))
		}
		history, err := s.History(t.Context())
		if err != nil || len(history) != c.kept || history[0].Version != uint64(61-c.kept) || len(keys(t, r, "config/versions/")) != c.kept {
			t.Errorf("%s: %d versions are kept, with %d records: %v", name, len(history), len(keys(t, r, "config/versions/")), err)
		}
		if _, err := s.Get(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "kept are versions from") {
			t.Errorf("%s: version 1: %v", name, err)
		}
	}
}

// TestRefusedDrafts: nothing is written of what is too large or is no text.
func TestRefusedDrafts(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := alone.New()
	s := configstore.New(r)
	for want, change := range map[string]func(*configstore.Draft){
		"want at most 1048576":   func(d *configstore.Draft) { d.Files[0].Text = strings.Repeat("x", 10<<20) },
		"bytes or more":          func(d *configstore.Draft) { d.Files[0].Text = strings.Repeat("\n", configstore.MaxBytes*2/3) },
		"not UTF-8":              func(d *configstore.Draft) { d.Files[0].Text = "\xff" },
		"the name of a file":     func(d *configstore.Draft) { d.Files[0].Name = "a\x1b[2J" },
		"0 files":                func(d *configstore.Draft) { d.Files = nil },
		"the author is":          func(d *configstore.Draft) { d.Author = "" },
		"the message has":        func(d *configstore.Draft) { d.Message = "two\nlines" },
		"message has 501 bytes,": func(d *configstore.Draft) { d.Message = strings.Repeat("x", 501) },
	} {
		d := text("x")
		change(&d)
		if _, err := s.Push(t.Context(), d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %.200v", want, err)
		}
	}
	if all := keys(t, r, ""); len(all) != 0 {
		t.Errorf("there are records: %v", all)
	}
}

// set writes a record whatever it was; a nil value deletes it.
func set(t *testing.T, r cluster.Register, key string, value []byte) {
	t.Helper()
	record, err := r.Read(t.Context(), key)
	if err == nil {
		_, err = r.Swap(t.Context(), key, record.Revision, value)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestDamagedRecords are said, and never read as a configuration.
func TestDamagedRecords(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for want, c := range map[string]struct{ key, value string }{
		"version 1 is missing":            {"config/versions/1", ""},
		"version 1 cannot be read":        {"config/versions/1", "{"},
		"version 1 is not what was":       {"config/versions/1", `{"version":1,"files":[{"name":"a.yaml","text":"other"}]}`},
		"config/head is damaged; delete":  {"config/head", "{"},
		"config/head is damaged; ":        {"config/head", `{"versions":[]}`},
		"record config/head is damaged; ": {"config/head", `{"versions":[{"version":3},{"version":3}]}`},
	} {
		r := alone.New()
		s := configstore.New(r)
		push(t, s, text("one"))
		var value []byte
		if c.value != "" {
			value = []byte(c.value)
		}
		set(t, r, c.key, value)
		var damaged *configstore.Damaged
		if _, err := s.Latest(t.Context()); !errors.As(err, &damaged) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s = %s: %v, want %q", c.key, c.value, err, want)
		}
	}
}

// TestHeadThatWasDeleted: numbers go on where they were, as members know the versions before.
func TestHeadThatWasDeleted(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := alone.New()
	s := configstore.New(r)
	push(t, s, text("one"))
	push(t, s, text("two"))
	set(t, r, "config/head", nil)
	if _, err := s.Latest(t.Context()); !errors.Is(err, configstore.ErrNone) {
		t.Errorf("without a head: %v", err)
	}
	if m := push(t, s, text("three")); m.Version != 3 {
		t.Errorf("the next version is %d, want 3", m.Version)
	}
}

// fickle is a register whose swaps of the head fail, before they are done or after.
type fickle struct {
	cluster.Register
	fail string
}

var errLost = errors.New("the connection was lost")

func (f *fickle) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	if key != "config/head" || f.fail == "" {
		return f.Register.Swap(ctx, key, revision, value)
	}
	if f.fail == "after" {
		if _, err := f.Register.Swap(ctx, key, revision, value); err != nil {
			return 0, err
		}
	}
	return 0, errLost
}

// TestPushThatIsCutOff: a push that was done is a success though its answer was lost; one of which that is
// not known says so, and the number of one that was not done is not used again.
func TestPushThatIsCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := &fickle{Register: alone.New()}
	s := configstore.New(r)
	push(t, s, text("one"))
	r.fail = "before"
	if _, err := s.Push(t.Context(), text("two")); !errors.Is(err, errLost) || !strings.Contains(err.Error(), "not known whether version 2") {
		t.Errorf("cut off before: %v", err)
	}
	r.fail = "after"
	if m := push(t, s, text("three")); m.Version != 3 {
		t.Errorf("cut off after: %+v", m)
	}
	history, err := s.History(t.Context())
	if err != nil || len(history) != 2 || len(keys(t, r, "config/versions/")) != 2 {
		t.Errorf("%v %v, records %v", history, err, keys(t, r, "config/versions/"))
	}
}

// TestCopy: what was written is read; what was changed since is not believed.
func TestCopy(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := configstore.New(alone.New())
	push(t, s, text("one"))
	v, err := s.Latest(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	name := configstore.CopyName(dir+"/state", "etcd://a")
	if other := configstore.CopyName(dir+"/state", "etcd://b"); other == name {
		t.Error("two places have one copy")
	}
	if err := configstore.WriteCopy(name, &v); err != nil {
		t.Fatal(err)
	}
	if got, err := configstore.ReadCopy(name); err != nil || !got.Same(v.Meta) || got.Files[0].Text != "one" {
		t.Errorf("%+v %v", got, err)
	}
	v.Files[0].Text = "other"
	if err := configstore.WriteCopy(name, &v); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{name, dir + "/none", ""} {
		if _, err := configstore.ReadCopy(name); err == nil {
			t.Errorf("%q was read", name)
		}
	}
}

// TestRegisterThatWasSetBack: the next version is above those that members enforce, also with the content that
// the head has, since members keep out what is lower. A report that nobody can have written is ignored.
func TestRegisterThatWasSetBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := alone.New()
	s := configstore.New(r)
	push(t, s, text("one"))
	record, err := r.Read(t.Context(), "config/head")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		push(t, s, text(fmt.Sprint("later ", i)))
	}
	report := func(member string, version uint64) {
		set(t, r, "member/"+member, fmt.Appendf(nil, `{"version":%d,"time":%q}`, version, time.Now().Format(time.RFC3339)))
	}
	report("a", 9)
	report("b", 7)
	report("forged", 1<<60)
	set(t, r, "config/head", record.Value)
	if m := push(t, s, text("one")); m.Version != 10 {
		t.Errorf("version %d, want 10", m.Version)
	}
	if m, err := s.Push(t.Context(), text("one")); !errors.Is(err, configstore.ErrUnchanged) || m.Version != 10 {
		t.Errorf("the same again: %+v %v", m, err)
	}
	set(t, r, "config/head", nil)
	set(t, r, "config/versions/10", nil)
	if m := push(t, s, text("one")); m.Version != 10 {
		t.Errorf("without a head: version %d, want 10, as 9 is enforced and 10 is not", m.Version)
	}
}
