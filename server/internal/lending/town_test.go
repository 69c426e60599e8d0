package lending

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/server/internal/access"
)

// town has the members of a cluster, and the instances that reach them by wires in memory.
type town struct {
	t            *testing.T
	register     *alone.Register
	kept         map[string]cluster.Record // what the register held at an earlier moment
	lost         bool                      // it has lost records
	forgets      bool                      // it says that it may, as Redis does; then members have state folders
	folders      map[string]folder         // by address
	mu           sync.Mutex
	fuse         int                    // how many more events of members until blown is called; 0 = it is not
	lines        bool                   // only lines of the log count
	blown        func(m *townMember)    // with the member of the last of them
	members      map[string]*townMember // by address
	serial       int
	bucket       reference
	more         []reference // of limits beside shared
	config       string
	shards       int
	slow         time.Duration // what it takes to write to the register
	who          *access.Session
	unreplicated bool                       // no member has a replica
	heard        func(address, line string) // takes what members log; nil = nothing does
	step         time.Duration              // between requests of an instance, at least; 0 = 5 ms
}

// folder is a state folder: the epoch of each shard.
type folder [4]uint64

// townMember is one run of a member.
type townMember struct {
	*shard  // of the first shard
	others  []*shard
	town    *town
	address string
	stop    func()
	down    bool // it was killed: nothing reaches it, and nothing comes from it
	cut     bool // it does not reach the register
	deaf    bool // nothing reaches it from the leader's replication
	wires   map[*cable]bool
	copies  map[*replication]bool
}

var errCut = errors.New("cut off")

// Read implements cluster.Register, for this member.
func (m *townMember) Read(ctx context.Context, key string) (cluster.Record, error) {
	if m.event(false); m.isCut() {
		return cluster.Record{}, errCut
	}
	pass(m.town.delay())
	r, err := m.town.register.Read(ctx, key)
	pass(m.town.delay())
	m.event(false)
	return r, err
}

// Swap implements cluster.Register.
func (m *townMember) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	if m.event(false); m.isCut() {
		return 0, errCut
	}
	pass(m.town.delay())
	if m.isCut() {
		return 0, errCut
	}
	at, err := m.town.register.Swap(ctx, key, revision, value)
	pass(m.town.delay())
	m.event(false)
	return at, err
}

// event is one of a member that lives: a call of the register, the answer to it, or a line of the log.
func (m *townMember) event(line bool) {
	m.town.mu.Lock()
	defer m.town.mu.Unlock()
	if m.town.fuse == 0 || m.down || m.town.lines && !line {
		return
	}
	if m.town.fuse--; m.town.fuse == 0 {
		go m.town.blown(m)
	}
}

// Enabled, Handle, WithAttrs and WithGroup implement slog.Handler: a line of the log is an event.
func (m *townMember) Enabled(context.Context, slog.Level) bool { return true }

func (m *townMember) Handle(_ context.Context, r slog.Record) error {
	m.event(true)
	if m.town.heard != nil {
		line := r.Message
		r.Attrs(func(a slog.Attr) bool {
			line += " " + a.String()
			return true
		})
		m.town.heard(m.address, line)
	}
	return nil
}
func (m *townMember) WithAttrs([]slog.Attr) slog.Handler { return m }
func (m *townMember) WithGroup(string) slog.Handler      { return m }

func (m *townMember) List(ctx context.Context, prefix string) (map[string]cluster.Record, error) {
	return m.town.register.List(ctx, prefix)
}

func (m *townMember) Watch(ctx context.Context, prefix string) <-chan struct{} {
	return m.town.register.Watch(ctx, prefix)
}
func (m *townMember) Forgets() bool { return m.town.forgets }
func (m *townMember) Close() error  { return nil }

// keep remembers what the register holds.
func (w *town) keep() {
	w.kept, _ = w.register.List(context.Background(), "")
}

// put has the register hold other records from now on.
func (w *town) put(records map[string]cluster.Record) {
	present, _ := w.register.List(context.Background(), "")
	w.mu.Lock()
	w.lost = true
	w.mu.Unlock()
	for key, r := range present {
		_, _ = w.register.Swap(context.Background(), key, r.Revision, records[key].Value)
	}
	for key, r := range records {
		if _, ok := present[key]; !ok {
			_, _ = w.register.Swap(context.Background(), key, 0, r.Value)
		}
	}
}

// write says what it takes to write to the register from now on.
func (w *town) write(takes time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.slow = takes
}

func (w *town) delay() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.slow
}

func (m *townMember) isCut() bool {
	m.town.mu.Lock()
	defer m.town.mu.Unlock()
	return m.cut || m.down
}

// start begins a run of the member at an address.
func (w *town) start(address string) *townMember {
	w.serial++
	m := &townMember{town: w, address: address, wires: map[*cable]bool{}, copies: map[*replication]bool{}}
	o := Options{Limits: limits(w.t, w.config), State: State{Epoch: epochAbove(0), Key: []byte("all have it")}, Logger: slog.New(m)}
	keys := func(ctx context.Context) ([][]byte, error) {
		_, err := m.Read(ctx, "lease-key") // as the members of package server do
		return [][]byte{[]byte("all have it")}, err
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var running sync.WaitGroup
	m.stop = func() { cancel(); running.Wait() }
	for shard := range w.shards {
		o.shard, o.shards = shard, w.shards
		if w.forgets {
			o.State.former = w.folder(address, shard)
			o.Raise = func(epoch uint64) error { return m.raise(shard, epoch) }
		}
		s := newShard(o)
		if m.shard == nil {
			m.shard = s
		} else {
			m.others = append(m.others, s)
		}
		err := s.join(Cluster{Register: m, Self: cluster.Member{ID: fmt.Sprint(address, "-", w.serial), Address: address}, Replicate: m.replicate, Keys: keys, First: w.serial <= 3})
		if err != nil {
			w.t.Fatal(err)
		}
	}
	for shard := range w.shards {
		running.Go(func() { m.nth(shard).run(ctx) })
	}
	w.t.Cleanup(m.stop)
	w.mu.Lock()
	w.members[address] = m
	w.mu.Unlock()
	return m
}

// nth returns the shard of a number.
func (m *townMember) nth(shard int) *shard {
	if shard == 0 {
		return m.shard
	}
	return m.others[shard-1]
}

// folder is the epoch of a shard in the state folder of an address; 0 = it is empty.
func (w *town) folder(address string, shard int) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.folders[address][shard]
}

// raise is Options.Raise of a shard, of a member that lives.
func (m *townMember) raise(shard int, epoch uint64) error {
	m.town.mu.Lock()
	defer m.town.mu.Unlock()
	if !m.down {
		folder := m.town.folders[m.address]
		folder[shard] = epoch
		m.town.folders[m.address] = folder
	}
	return nil
}

// kill ends a run without a word.
func (m *townMember) kill() {
	m.town.mu.Lock()
	m.down = true
	wires, copies := m.wires, m.copies
	m.wires, m.copies = nil, nil
	m.town.mu.Unlock()
	for k := range wires {
		k.cancel()
	}
	for k := range copies {
		k.cancel()
	}
}

// leader returns the member that leads, as far as one does.
func (w *town) leader() *townMember {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.members {
		if !m.down && m.lends() {
			return m
		}
	}
	return nil
}

// Connect implements client.Transport.
func (r *resident) Connect(ctx context.Context, address string) (client.Stream, error) {
	w := r.town
	w.mu.Lock()
	m := w.members[address]
	if m == nil || m.down || r.cut {
		w.mu.Unlock()
		return nil, errCut
	}
	own, cancel := context.WithCancel(ctx)
	k := &cable{town: w, of: r, shard: client.StreamShard(ctx), ctx: own, cancel: cancel, up: make(chan *leasepb.Report, 64), back: make(chan *leasepb.Grant, 64), over: make(chan struct{})}
	m.wires[k] = true
	w.mu.Unlock()
	go func() {
		k.err = m.nth(k.shard).hold(k)
		close(k.over)
	}()
	return (*clientEnd)(k), nil
}

// cable is a stream in memory: the server's side.
type cable struct {
	town   *town
	of     *resident
	shard  int
	ctx    context.Context
	cancel context.CancelFunc
	up     chan *leasepb.Report
	back   chan *leasepb.Grant
	over   chan struct{} // the handler has returned err
	err    error
	member atomic.Pointer[lease.Member] // nil before the first report
}

func (k *cable) Recv() (*leasepb.Report, error) {
	select {
	case r, ok := <-k.up:
		if !ok {
			return nil, io.EOF
		}
		return r, nil
	case <-k.ctx.Done():
		return nil, k.ctx.Err()
	case <-k.over:
		return nil, io.EOF
	}
}

func (k *cable) Send(g *leasepb.Grant) error {
	k.covered(g)
	select {
	case k.back <- g:
		return nil
	case <-k.ctx.Done():
		return k.ctx.Err()
	}
}

// covered checks what a successor relies on: who is lent something stands in the record.
func (k *cable) covered(g *leasepb.Grant) {
	member := k.member.Load()
	k.town.mu.Lock()
	lost := k.town.lost
	k.town.mu.Unlock()
	if member == nil || lost || !slices.ContainsFunc(g.GetShares(), func(s *leasepb.Share) bool { return s.GetLease() != 0 }) {
		return
	}
	record, err := k.town.register.Read(context.Background(), "leader/"+Scope(k.shard, k.town.shards))
	var claim struct {
		State []byte
		Lost  bool
	}
	if err == nil {
		err = json.Unmarshal(record.Value, &claim)
	}
	if err != nil {
		k.town.t.Error(err)
		return
	}
	known, err := coordinator.DecodeRecord(claim.State)
	if claim.Lost || k.town.forgets && len(claim.State) == 0 {
		return // the successor waits for everybody
	}
	covers := func(limit string) bool { return known.Holders.Covers(member.Session, limit) }
	if err != nil || !covers("daily") && !slices.ContainsFunc(k.town.names(), covers) {
		k.town.t.Errorf("session %x is sent a lease, and the record does not have it (%v)", member.Session, err)
	}
}

func (k *cable) Context() context.Context     { return k.ctx }
func (k *cable) SetHeader(metadata.MD) error  { return nil }
func (k *cable) SendHeader(metadata.MD) error { return nil }
func (k *cable) SetTrailer(metadata.MD)       {}
func (k *cable) SendMsg(any) error            { return errCut }
func (k *cable) RecvMsg(any) error            { return errCut }

// clientEnd is the instance's side.
type clientEnd cable

func (k *clientEnd) Send(r *lease.Report) error {
	k.member.Store(&r.Member)
	m := new(leasepb.Report)
	if err := leasewire.ToReport(m, r); err != nil {
		return err
	}
	select {
	case k.up <- m:
		return nil
	case <-k.ctx.Done():
		return k.ctx.Err()
	case <-k.over:
		return io.EOF
	}
}

func (k *clientEnd) CloseSend() error { close(k.up); return nil }

func (k *clientEnd) Receive() (*lease.Grant, error) {
	select {
	case m := <-k.back:
		return k.grant(m)
	default:
	}
	select {
	case m := <-k.back:
		return k.grant(m)
	case <-k.ctx.Done():
		return nil, k.ctx.Err()
	case <-k.over:
		if k.err == nil {
			return nil, io.EOF
		}
		return nil, k.err
	}
}

func (k *clientEnd) grant(m *leasepb.Grant) (*lease.Grant, error) {
	g := new(lease.Grant)
	if member := k.member.Load(); member != nil {
		g.To = *member
	}
	return g, leasewire.FromGrant(g, m)
}

func (k *clientEnd) Close() { k.cancel() }

// reference is one bucket, which every admission is held against.
type reference struct {
	rate, burst, level float64
	at                 time.Time
	least              float64 // the lowest level; below 0 is over
	admitted           int
}

func (r *reference) take(now time.Time) {
	r.level = min(r.burst, r.level+r.rate*now.Sub(r.at).Seconds()) - 1
	r.at, r.least = now, min(r.least, r.level)
	r.admitted++
}

// resident is an instance with a load.
type resident struct {
	town     *town
	name     string
	cut      bool // it reaches no member
	admitted int
	limiter  *client.Limiter
	others   []*client.Limiter // of the other limits
	demand   float64           // per second, of each limit
	owed     float64
	stop     func()
}

// names are those of the limits that residents use.
func (w *town) names() []string {
	names := []string{"shared"}
	for i := range w.more {
		names = append(names, fmt.Sprint("shared-", i))
	}
	return names
}

func (w *town) resident(i int) *resident {
	r := &resident{town: w, name: fmt.Sprint("i", i)}
	c, err := client.New(client.Options{Transport: r, Address: "a", Others: []string{"b", "c"}, Instance: fmt.Sprint("i", i), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	ended := make(chan struct{})
	go func() { c.Run(ctx); close(ended) }()
	r.stop = sync.OnceFunc(func() { cancel(); <-ended })
	w.t.Cleanup(r.stop)
	for _, name := range w.names() {
		l, err := c.Limit(name, client.LimitOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		r.others = append(r.others, l)
	}
	r.limiter, r.others = r.others[0], r.others[1:]
	return r
}

// part cuts it off from all members, or lets it reach them again.
func (r *resident) part(cut bool) {
	r.town.mu.Lock()
	defer r.town.mu.Unlock()
	r.cut = cut
	for _, m := range r.town.members {
		for k := range m.wires {
			if k.of == r && cut {
				k.cancel()
			}
		}
	}
}

// live lets time pass, with the load of all.
func (w *town) live(d time.Duration, all []*resident) (admitted int) {
	step := cmp.Or(w.step, 5*time.Millisecond)
	before := w.admitted()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(step) {
		for _, r := range all {
			for r.owed += r.demand * step.Seconds(); r.owed >= 1; r.owed-- {
				if r.limiter.Allow() {
					r.admitted++
					w.bucket.take(time.Now())
				}
				for i, l := range r.others {
					if l.Allow() {
						r.admitted++
						w.more[i].take(time.Now())
					}
				}
			}
		}
	}
	return w.admitted() - before
}

// admitted is how many were, of all limits.
func (w *town) admitted() int {
	n := w.bucket.admitted
	for i := range w.more {
		n += w.more[i].admitted
	}
	return n
}

func inTown(t *testing.T, f func(w *town)) {
	synctest.Test(t, func(t *testing.T) {
		w := &town{t: t, register: alone.New(), members: map[string]*townMember{}, folders: map[string]folder{}, config: config, shards: 1}
		w.bucket = reference{rate: 100, burst: 10, level: 10, at: time.Now()}
		f(w)
		for _, b := range append(w.more, w.bucket) {
			if b.least < -1e-6 {
				t.Errorf("%v more than one bucket was admitted", -b.least)
			}
		}
	})
}

// pass lets time pass.
func pass(d time.Duration) { time.Sleep(d) }
