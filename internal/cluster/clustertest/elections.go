package clustertest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/cluster"
)

// ttl of the elections here. Not shorter: a machine that stands still for three quarters of it ends
// terms that the tests count on. Not longer: the tests wait for terms that lapse.
const ttl = 2 * time.Second

// watchdog notes whether two Elections ever believed at the same time that they lead.
type watchdog struct {
	scope string // of the elections; "" = default

	mu      sync.Mutex
	members []*member
	epochs  []uint64 // of the terms, in the order in which they began
	faults  []string
}

// member is an Election on a Register that can be cut off.
type member struct {
	*cluster.Election
	id       string
	register *cuttable
	dog      *watchdog
	terms    chan cluster.Term
	stop     func() // ends Run and waits for it
}

// cuttable is a Register whose calls fail while it is cut off. Its Watch fires no more then.
type cuttable struct {
	cluster.Register
	cut atomic.Bool
}

var errCut = errors.New("cut off")

func (c *cuttable) Read(ctx context.Context, key string) (cluster.Record, error) {
	if c.cut.Load() {
		<-ctx.Done()
		return cluster.Record{}, errCut
	}
	return c.Register.Read(ctx, key)
}

func (c *cuttable) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	if c.cut.Load() {
		<-ctx.Done()
		return 0, errCut
	}
	return c.Register.Swap(ctx, key, revision, value)
}

// join starts a member.
func (w *watchdog) join(t *testing.T, id string, r cluster.Register) *member {
	t.Helper()
	m := &member{id: id, register: &cuttable{Register: r}, dog: w, terms: make(chan cluster.Term, 100)}
	e, err := cluster.New(cluster.Options{
		Register: m.register, Scope: cmp.Or(w.scope, "default"), Self: cluster.Member{ID: id, Address: id + ":8081"}, TTL: ttl,
		Began:  m.began,
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Election = e
	w.mu.Lock()
	w.members = append(w.members, m)
	w.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	var once sync.Once
	m.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run of %s: %v", id, err)
			}
			if err := r.Close(); err != nil {
				t.Errorf("Close of %s: %v", id, err)
			}
		})
	}
	t.Cleanup(m.stop)
	return m
}

// began checks that nobody else leads when this member is about to.
func (m *member) began(_ context.Context, term cluster.Term) error {
	w := m.dog
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, other := range w.members {
		if other != m && other.Leads(time.Now()) {
			w.faults = append(w.faults, fmt.Sprintf("%s leads while epoch %d of %s begins", other.id, term.Epoch, m.id))
		}
	}
	if n := len(w.epochs); n > 0 && term.Epoch <= w.epochs[n-1] {
		w.faults = append(w.faults, fmt.Sprintf("epoch %d after %v", term.Epoch, w.epochs))
	}
	w.epochs = append(w.epochs, term.Epoch)
	m.terms <- term
	return nil
}

// next waits for the next term of m.
func (m *member) next(t *testing.T) cluster.Term {
	t.Helper()
	select {
	case term := <-m.terms:
		eventually(t, m.id+" leads in its term", func() bool { return m.Leads(time.Now()) })
		return term
	case <-time.After(patience):
		t.Fatalf("%s did not begin a term in %v", m.id, patience)
		return cluster.Term{}
	}
}

func (w *watchdog) verdict(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, fault := range w.faults {
		t.Error(fault)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// elections has members take over from each other: after one that resigns, one that ends, and one
// that is cut off. A machine that stands still for most of a TTL ends terms that nobody meant to
// end, and then all begins anew with other records. Never two lead, whatever it does.
func elections(t *testing.T, open func() cluster.Register) {
	const tries = 3
	for try := range tries {
		dog := &watchdog{scope: fmt.Sprint("try-", try)}
		err := succession(t, dog, open)
		dog.verdict(t)
		dog.mu.Lock()
		terms := len(dog.epochs)
		dog.mu.Unlock()
		for _, m := range dog.members {
			m.register.cut.Store(false)
			m.stop()
		}
		switch {
		case err == nil:
			return
		case terms <= successionTerms && !errors.Is(err, cluster.ErrNotLeader) || try == tries-1:
			t.Fatal(err)
		default:
			t.Logf("the machine has ended a term, so it begins anew: %v", err)
		}
	}
}

// successionTerms is how many terms a succession has that nothing disturbs.
const successionTerms = 4

// succession is one course of elections. It returns what is not as it should be.
func succession(t *testing.T, dog *watchdog, open func() cluster.Register) error {
	a := dog.join(t, "a", open())
	if term := a.next(t); term.Former != 0 || term.State != nil || term.Clean {
		return fmt.Errorf("the first term is %+v", term)
	}
	b := dog.join(t, "b", open())
	if err := publish(t, a, "one"); err != nil {
		return err
	}
	eventually(t, "b knows the leader", func() bool {
		leader, known := b.Leader()
		return known && leader.Address == leader.ID+":8081"
	})
	if leader, _ := b.Leader(); leader.ID != "a" {
		return fmt.Errorf("b takes %s for the leader, want a", leader.ID)
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := a.Resign(ctx, []byte("two")); err != nil {
		return fmt.Errorf("resign: %w", err)
	}
	term := b.next(t)
	if string(term.State) != "two" || !term.Clean || term.Former == 0 || term.Former >= term.Epoch {
		return fmt.Errorf("after a resigned, b begins %+v", term)
	}

	if err := publish(t, b, "three"); err != nil {
		return err
	}
	b.stop()
	term = a.next(t)
	if string(term.State) != "three" || !term.Clean {
		return fmt.Errorf("after b ended, a begins %+v", term)
	}

	if err := publish(t, a, "four"); err != nil {
		return err
	}
	c := dog.join(t, "c", open())
	a.register.cut.Store(true)
	term = c.next(t)
	if string(term.State) != "four" || term.Clean {
		return fmt.Errorf("after a was cut off, c begins %+v", term)
	}
	if a.Leads(time.Now()) {
		t.Error("a leads after c has taken over")
	}
	a.register.cut.Store(false)
	eventually(t, "a knows a leader again", func() bool { _, known := a.Leader(); return known })
	if leader, _ := a.Leader(); leader.ID != "c" || !c.Leads(time.Now()) {
		return fmt.Errorf("c lost its term to %s when a came back", leader.ID)
	}
	return nil
}

func publish(t *testing.T, m *member, state string) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := m.Publish(ctx, []byte(state)); err != nil {
		return fmt.Errorf("publish by %s: %w", m.id, err)
	}
	return nil
}

// three has three members on one table. leader returns the one that leads, or nil.
func three(t *testing.T, b Backend) (dog *watchdog, leader func() *member) {
	open := b.Table(t)
	dog = &watchdog{}
	members := []*member{dog.join(t, "a", open()), dog.join(t, "b", open()), dog.join(t, "c", open())}
	leader = func() *member {
		for _, m := range members {
			if m.Leads(time.Now()) {
				return m
			}
		}
		return nil
	}
	eventually(t, "one leads", func() bool { return leader() != nil })
	return dog, leader
}

// outage has nobody lead while the backend does not answer, and one afterwards.
func outage(t *testing.T, b Backend) {
	dog, leader := three(t, b)
	for range 2 {
		b.Freeze()
		eventually(t, "nobody leads without the backend", func() bool { return leader() == nil })
		b.Thaw()
		eventually(t, "one leads again", func() bool { return leader() != nil })
	}
	dog.verdict(t)
}

// failover has one lead and publish when the backend has lost a server.
func failover(t *testing.T, b Backend) {
	dog, leader := three(t, b)
	b.Fail()
	eventually(t, "one leads and publishes after a failover", func() bool {
		m := leader()
		if m == nil {
			return false
		}
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		defer cancel()
		return m.Publish(ctx, []byte("after")) == nil
	})
	dog.verdict(t)
}
