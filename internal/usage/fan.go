package usage

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

const (
	// fanEvery is how often members are looked at: what a message did not reach is sent again.
	fanEvery = time.Second
	// patience bounds one message. Not longer: a member that hangs is asked once in this time.
	patience = 2 * time.Second
	// compareEvery is how often a member that lacks nothing is compared all the same.
	compareEvery = time.Hour
	// forgetPeer is for how long a member that is gone counts, and what it lacks is noted.
	forgetPeer = time.Hour
	// maxPending bounds what is noted for a member that does not take it, some 2 MB: after that it is compared.
	maxPending = 10_000
	// comparePage is how many marks are compared at once.
	comparePage = 1000
	// maxTold bounds the marks of one message, and maxMark what an hour can have: nothing that was counted is above.
	maxTold = 1000
	maxMark = 1 << 62
	// maxAhead is how far an hour may be in the future, by clocks and time zones.
	maxAhead = 48 * time.Hour
	// keepSteps is the grain in which marks that come late are kept longer than they should be.
	keepSteps = 30 * 24 * time.Hour
)

// ErrMarks is wrapped by the errors about what a member has sent.
var ErrMarks = errors.New("these are no marks of usage")

// Message is what one member tells another.
type Message struct {
	Marks []store.Mark
	// The marks behind After up to Last are to be compared by their Sum; Last "" = none are.
	After, Last string
	Sum         []byte
}

// Reply says that the marks of a Message were taken.
type Reply struct {
	// Start is another word after each start of the process.
	Start string
	// Same says that what was to be compared is the same.
	Same bool
}

// Other is another member.
type Other struct{ Name, Address string }

// FanOptions are the parts of a [Fan]. Own, Others and Send are required.
type FanOptions struct {
	Own store.Records
	// Outlives says that what Own has outlives a kill of the process: see [Keeper].
	Outlives bool
	// Others returns the members that are there now, without this one.
	Others func() []Other
	// Send hands a message to the member at an address.
	Send func(ctx context.Context, address string, m Message) (Reply, error)
	// Keep is how long hours are kept; 0 = [DefaultKeep].
	Keep time.Duration
	// Every is the time between looks at the members; 0 = a second.
	Every time.Duration
	// Now is the clock; nil = the system's. Logger nil = slog.Default.
	Now    func() limit.Time
	Logger *slog.Logger
}

// Fan is a [store.Records] of this process whose marks of usage all members of a cluster have as well. Each of them
// keeps the marks of all, so any of them answers for all, and one that has lost its own gets them back. It is
// safe for concurrent use. Make it with [NewFan], and let Run tell the others.
type Fan struct {
	store.Records
	o     FanOptions
	start string
	kick  chan struct{}

	mu    sync.Mutex
	peers map[string]*peer // by name
}

// peer is what is known of another member. Fields are guarded by Fan.mu but for busy.
type peer struct {
	Other
	seen     time.Time         // when it was there last
	pending  map[string]uint64 // raised, and not taken by it yet
	behind   bool              // it may lack more than that
	compared time.Time
	start    string // as it said last
	failing  bool

	busy sync.Mutex // held while it is sent to
}

// NewFan returns a Fan that knows no other member before it runs.
func NewFan(o FanOptions) *Fan {
	o.Keep, o.Every = cmp.Or(max(o.Keep, 0), DefaultKeep), cmp.Or(max(o.Every, 0), fanEvery)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Now == nil {
		o.Now = func() limit.Time { return limit.At(time.Now()) }
	}
	return &Fan{Records: o.Own, o: o, start: rand.Text(), kick: make(chan struct{}, 1), peers: map[string]*peer{}}
}

// Raise implements [store.Records]. The others are told of marks of usage by Run.
func (f *Fan) Raise(ctx context.Context, table string, marks []store.Mark, keep time.Duration) error {
	if err := f.Records.Raise(ctx, table, marks, keep); err != nil || table != Table {
		return err
	}
	f.mu.Lock()
	for _, p := range f.peers {
		p.note(marks)
	}
	f.mu.Unlock()
	select {
	case f.kick <- struct{}{}:
	default:
	}
	return nil
}

func (p *peer) note(marks []store.Mark) {
	if p.behind && p.pending == nil {
		return // it will be compared
	}
	if p.pending == nil {
		p.pending = map[string]uint64{}
	}
	for _, m := range marks {
		p.pending[m.Key] = max(p.pending[m.Key], m.N)
	}
	if len(p.pending) > maxPending {
		p.pending, p.behind = nil, true
	}
}

// Kept implements [Keeper]: what was raised is in the records of this process, where those outlive it, or a majority of
// the members have it, and at least one other.
func (f *Fan) Kept(ctx context.Context) error {
	if f.o.Outlives {
		if k, ok := f.Records.(Keeper); ok {
			return k.Kept(ctx)
		}
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	members, have := len(f.peers)+1, 1
	for _, p := range f.peers {
		if !p.behind && len(p.pending) == 0 {
			have++
		}
	}
	if have < 2 || have <= members/2 {
		return fmt.Errorf("usage: %d of %d members have what was counted, want more than a half: %w", have, members, store.ErrUnavailable)
	}
	return nil
}

// Run tells the others what they lack until ctx ends, and then once more.
func (f *Fan) Run(ctx context.Context) {
	tick := time.NewTicker(f.o.Every)
	defer tick.Stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	for {
		for _, p := range f.there() {
			if !p.busy.TryLock() {
				continue // the next look finds what it lacks
			}
			sending.Go(func() {
				defer p.busy.Unlock()
				f.say(p, f.bring(ctx, p), ctx.Err() != nil)
			})
		}
		select {
		case <-ctx.Done():
			f.last(&sending)
			return
		case <-tick.C:
		case <-f.kick:
		}
	}
}

// last tells those that are there what was raised at the end.
func (f *Fan) last(sending *sync.WaitGroup) {
	sending.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, p := range f.there() {
		sending.Go(func() { _ = f.deliver(ctx, p) }) // whoever does not answer now has it from the others, or later
	}
	sending.Wait()
}

// there returns the members that are there, and forgets those that have been gone for long.
func (f *Fan) there() (list []*peer) {
	others := f.o.Others()
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	for _, o := range others {
		p := f.peers[o.Name]
		if p == nil {
			p = &peer{behind: true}
			f.peers[o.Name] = p
		}
		p.Other, p.seen = o, now
		list = append(list, p)
	}
	maps.DeleteFunc(f.peers, func(_ string, p *peer) bool { return now.Sub(p.seen) > forgetPeer })
	return list
}

// say logs when a member stops taking usage, and when it takes it again.
func (f *Fan) say(p *peer, err error, ending bool) {
	f.mu.Lock()
	was := p.failing
	if p.failing = err != nil && !ending; p.failing == was || ending {
		f.mu.Unlock()
		return
	}
	name, address := p.Name, p.Address
	f.mu.Unlock()
	if was {
		f.o.Logger.Info("the member takes usage again", "member", name)
	} else {
		f.o.Logger.Warn("a member does not take usage for now: nothing is lost, it is tried again", "member", name, "address", address, "err", err)
	}
}

// bring tells a member what it lacks.
func (f *Fan) bring(ctx context.Context, p *peer) error {
	if err := f.deliver(ctx, p); err != nil {
		return err
	}
	f.mu.Lock()
	now := time.Now()
	due := p.behind || now.Sub(p.compared) > compareEvery
	if due {
		p.behind, p.compared = false, now
		if p.pending == nil {
			p.pending = map[string]uint64{} // from here on it is noted what is raised
		}
	}
	f.mu.Unlock()
	if !due {
		return nil
	}
	err := f.compare(ctx, p)
	if err != nil {
		f.mu.Lock()
		p.behind = true
		f.mu.Unlock()
	}
	return err
}

// deliver sends what is noted for a member; when nothing is, it asks whether the member began anew.
func (f *Fan) deliver(ctx context.Context, p *peer) error {
	f.mu.Lock()
	marks := make([]store.Mark, 0, len(p.pending))
	for key, n := range p.pending {
		marks = append(marks, store.Mark{Key: key, N: n})
	}
	f.mu.Unlock()
	for first := true; first || len(marks) > 0; first = false {
		part := marks[:min(len(marks), batch)]
		marks = marks[len(part):]
		if _, err := f.send(ctx, p, Message{Marks: part}); err != nil {
			return err
		}
		f.mu.Lock()
		for _, m := range part {
			if p.pending[m.Key] == m.N {
				delete(p.pending, m.Key)
			}
		}
		f.mu.Unlock()
	}
	return nil
}

func (f *Fan) send(ctx context.Context, p *peer, m Message) (Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	f.mu.Lock()
	address := p.Address
	f.mu.Unlock()
	r, err := f.o.Send(ctx, address, m)
	if err != nil {
		return r, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Start != p.start { // it may have lost what it had
		p.start, p.behind = r.Start, true
	}
	return r, nil
}

// compare goes through all marks of this process, and sends those pages that the member has not alike.
func (f *Fan) compare(ctx context.Context, p *peer) error {
	for after := ""; ; {
		marks, err := f.Marks(ctx, Table, "", after, comparePage)
		if err != nil || len(marks) == 0 {
			return err
		}
		m := Message{After: after, Last: marks[len(marks)-1].Key, Sum: sumOf(marks)}
		r, err := f.send(ctx, p, m)
		for rest := marks; err == nil && !r.Same && len(rest) > 0; {
			part := rest[:min(len(rest), batch)]
			rest = rest[len(part):]
			_, err = f.send(ctx, p, Message{Marks: part})
		}
		if err != nil {
			return err
		}
		after = m.Last
	}
}

// sumOf is the Sum of marks.
func sumOf(marks []store.Mark) []byte {
	h := sha256.New()
	for _, m := range marks {
		h.Write([]byte(m.Key))
		h.Write([]byte{0})
		h.Write(binary.BigEndian.AppendUint64(nil, m.N))
	}
	return h.Sum(nil)
}

// Told takes what another member has sent. After an error that wraps [ErrMarks] nothing was changed: what was sent
// cannot be.
func (f *Fan) Told(ctx context.Context, m Message) (Reply, error) {
	now := f.o.Now()
	byKeep := map[time.Duration][]store.Mark{}
	if len(m.Marks) > maxTold {
		return Reply{}, fmt.Errorf("usage: %w: %d in one message, want at most %d", ErrMarks, len(m.Marks), maxTold)
	}
	for _, mark := range m.Marks {
		_, _, start, kind, ok := cutMark(mark.Key)
		hour := limit.Time(start) * limit.Time(time.Second)
		if !ok || len(mark.Key) > store.MaxRecordKey || start < 0 || start > int64(now.Add(maxAhead))/1e9 || mark.N > maxMark {
			return Reply{}, fmt.Errorf("usage: %w: %.200q = %d", ErrMarks, mark.Key, mark.N)
		}
		left := time.Duration(hour.Add(f.o.Keep) - now)
		if kind != markTaken && kind != markReturned || left <= 0 {
			continue // of a newer version, or not kept any more
		}
		keep := min(f.o.Keep, (left+keepSteps-1)/keepSteps*keepSteps)
		byKeep[keep] = append(byKeep[keep], mark)
	}
	for _, keep := range slices.Sorted(maps.Keys(byKeep)) {
		if err := f.Records.Raise(ctx, Table, byKeep[keep], keep); err != nil {
			return Reply{}, err
		}
	}
	r := Reply{Start: f.start}
	if m.Last == "" {
		return r, nil
	}
	own, err := f.Marks(ctx, Table, "", m.After, comparePage+1)
	if err != nil {
		return Reply{}, err
	}
	n := len(own)
	for n > 0 && own[n-1].Key > m.Last {
		n--
	}
	r.Same = string(sumOf(own[:n])) == string(m.Sum)
	return r, nil
}

// FanStats are figures of a [Fan].
type FanStats struct {
	// Others is how many other members count, and UpToDate how many of them lack nothing.
	Others, UpToDate int
}

// Stats returns figures.
func (f *Fan) Stats() (s FanStats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		if s.Others++; !p.behind && len(p.pending) == 0 {
			s.UpToDate++
		}
	}
	return s
}
