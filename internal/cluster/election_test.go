package cluster_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
)

// player is a member with its Election.
type player struct {
	*cluster.Election
	terms []cluster.Term
	stop  func() // ends Run and waits for it
	ends  int
}

func play(t *testing.T, r cluster.Register, id string) *player {
	t.Helper()
	p := &player{}
	e, err := cluster.New(cluster.Options{
		Register: r, Scope: "default", Self: cluster.Member{ID: id, Address: id + ":1"}, First: true,
		Began:  func(_ context.Context, term cluster.Term) error { p.terms = append(p.terms, term); return nil },
		Ended:  func() { p.ends++ },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	p.Election = e
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := e.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	p.stop = func() { cancel(); <-done }
	return p
}

func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := alone.New()
		a := play(t, r, "a")
		synctest.Wait()
		if !a.Leads(time.Now()) {
			t.Fatal("the only member does not lead")
		}
		b := play(t, r, "b")
		defer b.stop()
		for _, state := range []string{"zero", "first"} {
			if err := a.Publish(t.Context(), []byte(state)); err != nil {
				t.Fatal(err)
			}
			written, err := r.Read(t.Context(), "leader/default")
			if want := fmt.Sprintf("%q", base64.StdEncoding.EncodeToString([]byte(state))); err != nil || !bytes.Contains(written.Value, []byte(want)) {
				t.Errorf("after Publish returned, the record is %s, %v", written.Value, err)
			}
		}
		time.Sleep(10 * time.Second)
		if b.Leads(time.Now()) {
			t.Fatal("both lead")
		}
		if m, ok := b.Leader(); !ok || m != (cluster.Member{ID: "a", Address: "a:1"}) {
			t.Errorf("b knows the leader %v, %t", m, ok)
		}
		if err := b.Publish(t.Context(), nil); err == nil {
			t.Error("a follower can publish")
		}
		before := time.Now()
		if err := a.Resign(t.Context(), []byte("second")); err != nil {
			t.Fatal(err)
		}
		for !b.Leads(time.Now()) {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(before); took > 50*time.Millisecond {
			t.Errorf("b led %v after a resigned", took)
		}
		term := b.terms[0]
		if term.Former != 1 || term.Epoch != 2 || string(term.State) != "second" || !term.Clean {
			t.Errorf("b got %+v", term)
		}
		if a.ends != 1 || a.Leads(time.Now()) {
			t.Errorf("a was told %d times that its term ended", a.ends)
		}
		a.stop()
	})
}

// TestStuckMember: a member whose goroutines all stand still stops leading at the end of its term.
func TestStuckMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := alone.New()
		stuck, release := make(chan struct{}), make(chan struct{})
		var once sync.Once
		blocking := &register{Register: r, swap: func(ctx context.Context) {
			if r, _ := r.Read(ctx, "leader/default"); r.Revision >= 2 {
				once.Do(func() { close(stuck) })
				<-release // longer than its context lasts
			}
		}}
		a := play(t, blocking, "a")
		<-stuck
		b := play(t, r, "b")
		if !a.Leads(time.Now()) {
			t.Fatal("a does not lead during its renewal")
		}
		if left := a.Left(time.Now()); left <= 0 || left > cluster.DefaultTTL {
			t.Errorf("%v of the term is left", left)
		}
		for !b.Leads(time.Now()) {
			time.Sleep(time.Millisecond)
			if a.Leads(time.Now()) && b.Leads(time.Now()) {
				t.Fatal("both lead")
			}
		}
		close(release)
		a.stop()
		b.stop()
		if a.ends != 1 {
			t.Errorf("a was told of %d ends", a.ends)
		}
	})
}

// register calls swap before each Swap.
type register struct {
	cluster.Register
	swap  func(context.Context)
	swaps atomic.Int64
}

func (r *register) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	r.swaps.Add(1)
	r.swap(ctx)
	return r.Register.Swap(ctx, key, revision, value)
}

// TestPublishTogether: calls that come while a write is under way share the next one, and each
// returns when a state as late as its own is written.
func TestPublishTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := &register{Register: alone.New(), swap: func(context.Context) { time.Sleep(20 * time.Millisecond) }}
		a := play(t, slow, "a")
		defer a.stop()
		for !a.Leads(time.Now()) {
			time.Sleep(time.Millisecond)
		}
		before := slow.swaps.Load()
		var all sync.WaitGroup
		for i := range 100 {
			all.Go(func() {
				if err := a.Publish(t.Context(), fmt.Append(nil, i)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if swaps := slow.swaps.Load() - before; swaps > 2 {
			t.Errorf("%d writes for 100 calls at the same time", swaps)
		}
	})
}

// TestPublishWithoutTerm: Publish and Resign fail without a term, also when it ends while they wait.
func TestPublishWithoutTerm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		r := alone.New()
		first := &register{Register: r, swap: func(ctx context.Context) {
			if cut.Load() {
				<-ctx.Done()
			}
		}}
		a := play(t, first, "a")
		synctest.Wait()
		cut.Store(true)
		if err := a.Publish(t.Context(), []byte("x")); !errors.Is(err, cluster.ErrNotLeader) {
			t.Errorf("Publish that cannot be written: %v", err)
		}
		if err := a.Resign(t.Context(), nil); !errors.Is(err, cluster.ErrNotLeader) {
			t.Errorf("Resign without a term: %v", err)
		}
		cut.Store(false)
		for !a.Leads(time.Now()) {
			time.Sleep(time.Millisecond)
		}
		cut.Store(true)
		if err := a.Resign(t.Context(), nil); err == nil || errors.Is(err, cluster.ErrNotLeader) {
			t.Errorf("Resign that cannot be written: %v", err)
		}
		a.stop()
		if err := a.Publish(t.Context(), nil); !errors.Is(err, cluster.ErrNotLeader) {
			t.Errorf("Publish after Run: %v", err)
		}
		if err := a.Run(t.Context()); err == nil {
			t.Error("an Election runs twice")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		never, err := cluster.New(cluster.Options{Register: r, Scope: "x", Self: cluster.Member{ID: "x"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := never.Publish(ctx, nil); !errors.Is(err, context.Canceled) {
			t.Errorf("Publish before Run: %v", err)
		}
	})
}

// TestLog: what an operator has to know is said once.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		r := alone.New()
		var out bytes.Buffer
		e, err := cluster.New(cluster.Options{
			Register: &register{Register: r, swap: func(ctx context.Context) {
				if cut.Load() {
					<-ctx.Done()
				}
			}},
			Scope: "default", Self: cluster.Member{ID: "a"}, First: true,
			Logger: slog.New(slog.NewTextHandler(&out, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		synctest.Wait()
		cut.Store(true)
		time.Sleep(2 * time.Second)
		cut.Store(false)
		time.Sleep(2 * time.Second)
		record, err := r.Read(ctx, "leader/default")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Swap(ctx, "leader/default", record.Revision, []byte("damaged")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for line, times := range map[string]int{
			"a term begins": 2, "the term has ended": 2, "not renewed in time": 1, "another member has the record": 1,
			"nobody can be elected": 1,
		} {
			if got := bytes.Count(out.Bytes(), []byte(line)); got != times {
				t.Errorf("%q is logged %d times, want %d", line, got, times)
			}
		}
		// Reads work during that time, so each swap that fails is news.
		lost, back := bytes.Count(out.Bytes(), []byte("does not answer")), bytes.Count(out.Bytes(), []byte("answers again"))
		if lost == 0 || lost != back {
			t.Errorf("the loss of the register is logged %d times, its return %d times", lost, back)
		}
		if t.Failed() {
			t.Log(out.String())
		}
	})
}

// TestTermContext: the context of a term ends with the term, and Began and Ended come in turn.
func TestTermContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var calls []string
		add := func(format string, args ...any) {
			mu.Lock()
			defer mu.Unlock()
			calls = append(calls, fmt.Sprintf(format, args...))
		}
		var e *cluster.Election
		e, err := cluster.New(cluster.Options{
			Register: alone.New(), Scope: "default", Self: cluster.Member{ID: "a"}, First: true,
			Began: func(ctx context.Context, term cluster.Term) error {
				add("began %d leads %t", term.Epoch, e.Leads(time.Now()))
				if err := e.Publish(ctx, []byte("first")); err != nil {
					t.Error(err)
				}
				context.AfterFunc(ctx, func() { add("context %d", term.Epoch) })
				return nil
			},
			Ended: func() {
				time.Sleep(time.Millisecond)
				add("ended leads %t", e.Leads(time.Now()))
			},
			Observed: func(m cluster.Member, known bool) { add("leader %q %t", m.ID, known) },
			Logger:   slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- e.Run(ctx) }()
		synctest.Wait()
		if !e.Leads(time.Now()) || e.Epoch() != 1 {
			t.Errorf("epoch %d", e.Epoch())
		}
		if err := e.Resign(ctx, nil); err != nil {
			t.Error(err)
		}
		time.Sleep(3 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		want := []string{
			`leader "a" true`, "began 1 leads false", `leader "" false`, "context 1", "ended leads false",
			`leader "a" true`, "began 2 leads false", `leader "" false`, "context 2", "ended leads false",
		}
		if !slices.Equal(calls, want) {
			t.Errorf("calls %q, want %q", calls, want)
		}
	})
}
