// Package clustertest is what every backend of a cluster must do, as one suite that runs against the
// real thing: the calls of a [cluster.Register], many callers at once, elections on it, and elections
// while the backend stands still. Nothing but tests imports it.
package clustertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/cluster"
)

// patience bounds every wait for something that is sure to come, on a machine that is busy with
// other things.
const patience = 30 * time.Second

// Backend is what a suite runs against.
type Backend struct {
	// Table returns a function that opens further Registers on one new, empty table, as so many
	// processes would. The suite closes what it has opened.
	Table func(t *testing.T) func() cluster.Register

	// Freeze has the backend answer nothing until Thaw. nil = it is in this process.
	Freeze, Thaw func()

	// Fail has the backend lose the server that takes writes and go on with another. nil = it cannot.
	Fail func()
}

// Run runs the suite.
func Run(t *testing.T, b Backend) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := &harness{T: t, open: b.Table(t), explanation: c.explanation}
			c.run(h)
		})
	}
	t.Run("Presence", func(t *testing.T) { presence(t, b.Table(t)) })
	t.Run("Elections", func(t *testing.T) { elections(t, b.Table(t)) })
	if b.Freeze != nil {
		t.Run("ElectionsWithoutAnswers", func(t *testing.T) { outage(t, b) })
	}
	if b.Fail != nil {
		t.Run("ElectionsOverFailover", func(t *testing.T) { failover(t, b) })
	}
}

// cases are the contract of a Register.
var cases = []struct {
	name, explanation string
	run               func(*harness)
}{
	{"Absent", "a key that was never written has revision 0 and no value", testAbsent},
	{"Create", "revision 0 creates a record, once", testCreate},
	{"Replace", "a record is replaced by its present revision alone", testReplace},
	{"Delete", "a nil value deletes, and no revision comes back afterwards", testDelete},
	{"Values", "a value comes back as it was written, also an empty one", testValues},
	{"Keys", "keys do not meet, and a prefix lists what begins with it", testKeys},
	{"Fresh", "a read that begins after a write has ended sees it, by whichever Register", testFresh},
	{"Concurrent", "of several swaps of one revision one succeeds", testConcurrent},
	{"Watch", "a change gives a hint, and the end of the context closes the channel", testWatch},
	{"Context", "a call ends with its context", testContext},
}

// harness is one case on one table.
type harness struct {
	*testing.T
	open        func() cluster.Register
	explanation string
}

func (h *harness) register() cluster.Register {
	r := h.open()
	h.Cleanup(func() {
		if err := r.Close(); err != nil {
			h.Errorf("Close: %v", err)
		}
	})
	return r
}

// fail reports a fault with the part of the contract that it is against.
func (h *harness) fail(format string, args ...any) {
	h.Helper()
	h.Fatalf("%s: %s", fmt.Sprintf(format, args...), h.explanation)
}

func (h *harness) ctx() context.Context {
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	h.Cleanup(cancel)
	return ctx
}

func (h *harness) read(r cluster.Register, key string) cluster.Record {
	h.Helper()
	record, err := r.Read(h.ctx(), key)
	if err != nil {
		h.fail("Read: %v", err)
	}
	return record
}

func (h *harness) want(r cluster.Register, key string, revision uint64, value []byte) {
	h.Helper()
	if got := h.read(r, key); got.Revision != revision || !bytes.Equal(got.Value, value) {
		h.fail("Read of %s = %d %.40q, want %d %.40q", key, got.Revision, got.Value, revision, value)
	}
}

func (h *harness) swap(r cluster.Register, key string, revision uint64, value []byte) uint64 {
	h.Helper()
	got, err := r.Swap(h.ctx(), key, revision, value)
	if err != nil {
		h.fail("Swap of revision %d: %v", revision, err)
	}
	if value != nil && (got == 0 || got == revision) {
		h.fail("Swap of revision %d = revision %d", revision, got)
	}
	return got
}

func (h *harness) refused(r cluster.Register, key string, revision uint64, value []byte) {
	h.Helper()
	if got, err := r.Swap(h.ctx(), key, revision, value); !errors.Is(err, cluster.ErrChanged) {
		h.fail("Swap of revision %d = %d, %v, want ErrChanged", revision, got, err)
	}
}

func (h *harness) list(r cluster.Register, prefix string) []string {
	h.Helper()
	list, err := r.List(h.ctx(), prefix)
	if err != nil {
		h.fail("List: %v", err)
	}
	return slices.Sorted(maps.Keys(list))
}

func testAbsent(h *harness) {
	r := h.register()
	h.want(r, "leader/default", 0, nil)
	if got := h.list(r, ""); len(got) != 0 {
		h.fail("List of an empty table = %q", got)
	}
	h.refused(r, "leader/default", 7, []byte("x"))
	h.refused(r, "leader/default", 7, nil)
	if revision, err := r.Swap(h.ctx(), "leader/default", 0, nil); err != nil || revision != 0 {
		h.fail("deleting no record = %d, %v", revision, err)
	}
}

func testCreate(h *harness) {
	r, other := h.register(), h.register()
	first := h.swap(r, "leader/default", 0, []byte("first"))
	h.want(r, "leader/default", first, []byte("first"))
	h.want(other, "leader/default", first, []byte("first"))
	h.refused(other, "leader/default", 0, []byte("second"))
	h.want(r, "leader/default", first, []byte("first"))
}

func testReplace(h *harness) {
	r, other := h.register(), h.register()
	first := h.swap(r, "leader/default", 0, []byte("1"))
	second := h.swap(other, "leader/default", first, []byte("2"))
	h.refused(r, "leader/default", first, []byte("3"))
	h.refused(r, "leader/default", second+1, []byte("3"))
	h.want(r, "leader/default", second, []byte("2"))
	// The same value is another revision: a renewal may change nothing else.
	third := h.swap(r, "leader/default", second, []byte("2"))
	if third == first || third == second {
		h.fail("revisions %d, %d, %d", first, second, third)
	}
	h.want(other, "leader/default", third, []byte("2"))
}

func testDelete(h *harness) {
	r := h.register()
	used := map[uint64]bool{}
	for range 3 {
		first := h.swap(r, "leader/default", 0, []byte("1"))
		second := h.swap(r, "leader/default", first, []byte("2"))
		if used[first] || used[second] {
			h.fail("revisions %d and %d after %v", first, second, used)
		}
		used[first], used[second] = true, true
		h.refused(r, "leader/default", first, nil)
		if got := h.swap(r, "leader/default", second, nil); got != 0 {
			h.fail("deleting = revision %d", got)
		}
		h.want(r, "leader/default", 0, nil)
		h.refused(r, "leader/default", second, []byte("3"))
	}
}

func testValues(h *harness) {
	r := h.register()
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	var revision uint64
	for _, value := range [][]byte{{}, {0}, all, []byte("\"'\n\r\\{}"), bytes.Repeat(all, 128)} {
		revision = h.swap(r, "leader/default", revision, value)
		h.want(r, "leader/default", revision, value)
	}
}

func testKeys(h *harness) {
	r := h.register()
	keys := []string{
		"config/1", "leader/default", "leader/default/x", "leader/other", "leader/Other", "leader/o_ther",
		"leader/" + strings.Repeat("long", 40), "member/a", "member/a-b", "member/a.b", "member/a/b", "member/ab",
	}
	slices.Sort(keys)
	for _, key := range keys {
		h.swap(r, key, 0, []byte(key))
	}
	for _, key := range keys {
		if got := h.read(r, key); string(got.Value) != key {
			h.fail("Read of %s = %q", key, got.Value)
		}
	}
	for _, prefix := range []string{"", "leader/", "leader/default", "member/", "member/a", "member/a/", "nothing/"} {
		want := slices.DeleteFunc(slices.Clone(keys), func(key string) bool { return !strings.HasPrefix(key, prefix) })
		if got := h.list(r, prefix); !slices.Equal(got, want) {
			h.fail("List of %q = %q, want %q", prefix, got, want)
		}
	}
	list, err := r.List(h.ctx(), "member/a-b")
	if record := h.read(r, "member/a-b"); err != nil || list["member/a-b"].Revision != record.Revision {
		h.fail("List gives %v, %v and Read %v", list, err, record)
	}
}

func testFresh(h *harness) {
	const rounds = 100
	writer, reader := h.register(), h.register()
	var revision uint64
	for i := range rounds {
		value := binary.AppendUvarint(nil, uint64(i))
		revision = h.swap(writer, "leader/default", revision, value)
		h.want(reader, "leader/default", revision, value)
		writer, reader = reader, writer
	}
}

// testConcurrent counts in a record from several Registers: no count is lost or made twice.
func testConcurrent(h *harness) {
	const callers, each = 6, 15
	ctx := h.ctx()
	var all sync.WaitGroup
	revisions := make([][]uint64, callers)
	for i := range callers {
		r := h.register()
		all.Go(func() {
			for done := 0; done < each; {
				record, err := r.Read(ctx, "count")
				if err != nil {
					h.Errorf("Read: %v", err)
					return
				}
				n, _ := binary.Uvarint(record.Value)
				revision, err := r.Swap(ctx, "count", record.Revision, binary.AppendUvarint(nil, n+1))
				switch {
				case err == nil:
					revisions[i] = append(revisions[i], revision)
					done++
				case !errors.Is(err, cluster.ErrChanged):
					h.Errorf("Swap: %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	n, _ := binary.Uvarint(h.read(h.register(), "count").Value)
	if n != callers*each {
		h.fail("%d swaps counted to %d", callers*each, n)
	}
	used := slices.Sorted(slices.Values(slices.Concat(revisions...)))
	if unique := slices.Compact(slices.Clone(used)); len(unique) != len(used) {
		h.fail("a revision came twice: %v", used)
	}
}

func testWatch(h *harness) {
	r, other := h.register(), h.register()
	ctx, cancel := context.WithCancel(h.Context())
	defer cancel()
	hints := r.Watch(ctx, "leader/")
	var revision uint64
	for i := range 3 {
		// The watch may begin later than Watch returns: changes until it has.
		deadline := time.After(patience)
		for hinted := false; !hinted; {
			revision = h.swap(other, "leader/default", revision, []byte{byte(i)})
			select {
			case _, ok := <-hints:
				if !ok {
					h.fail("the channel was closed")
				}
				hinted = true
			case <-time.After(time.Second):
			case <-deadline:
				h.fail("no hint in %v", patience)
			}
		}
	}
	cancel()
	deadline := time.After(patience)
	for {
		select {
		case _, ok := <-hints:
			if !ok {
				return
			}
		case <-deadline:
			h.fail("the channel was not closed in %v", patience)
		}
	}
}

func testContext(h *harness) {
	r := h.register()
	ctx, cancel := context.WithCancel(h.Context())
	cancel()
	if _, err := r.Read(ctx, "leader/default"); err == nil {
		h.fail("Read succeeds after its context has ended")
	}
	if _, err := r.Swap(ctx, "leader/default", 0, []byte("x")); err == nil || errors.Is(err, cluster.ErrChanged) {
		h.fail("Swap after its context has ended: %v", err)
	}
	if _, err := r.List(ctx, ""); err == nil {
		h.fail("List succeeds after its context has ended")
	}
	h.swap(r, "leader/other", 0, []byte("x"))
}
