// Package lasthour keeps which requests limits were asked about in the latest hour, in bounded memory, and answers
// what another rate or burst would have done with them.
//
// It keeps all requests of some keys, not some requests of all keys, so that the bucket of a key that is kept can be
// played again exactly. As memory fills, a limit keeps fewer keys: those that asked most, and of the others a part that
// is chosen by a hash. From then on all its requests are counted by the minute. Requests of one key within a slot of
// time, 10 ms at first, are kept as one number. It keeps no key, only hashes of them, and decides nothing.
package lasthour

import (
	"cmp"
	"hash/maphash"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
)

const (
	// Hour is for how long requests are kept.
	Hour = time.Hour
	// Slot is how exactly times are known at first.
	Slot = 10 * time.Millisecond
	// DefaultBytes is the default bound on memory: 8 MiB. Not smaller: a hundred keys with a request in each second of
	// the hour fit. Not larger: it is there in every server.
	DefaultBytes = 8 << 20

	shards     = 16
	trackBytes = 160 // of a key, with its place in a map
	entryBytes = 16
	// fewKeys is the number of keys of a limit below which its times are kept less exactly, rather than fewer keys.
	fewKeys = 64
)

// Recorder keeps requests. Make it with [New]. It is safe for concurrent use.
type Recorder struct {
	seed   maphash.Seed
	now    func() limit.Time
	start  limit.Time
	most   int64
	bytes  atomic.Int64
	groups atomic.Uint32
	shards [shards]shard

	sweeping sync.Mutex // held by Sweep; it guards what follows
	next     int        // the shard that is swept next
	logs     []*Log
}

// Log is what is kept of one limit. Make it with [Recorder.Open]. It is safe for concurrent use.
type Log struct {
	r     *Recorder
	group uint32
	mask  atomic.Uint64 // keys are kept whose hash has none of these bits
	width atomic.Uint32 // of a slot, in units of Slot
	bytes atomic.Int64
	since atomic.Uint32           // the first unit from which all is kept
	all   atomic.Pointer[minutes] // nil while all keys are kept
}

// minutes counts the requests of all keys in the latest hour.
type minutes struct {
	sync.Mutex
	counts [countedMinutes]struct {
		minute         uint32 // since the start
		asked, refused uint64
	}
}

const (
	unitsOfAMinute = uint32(time.Minute / Slot)
	countedMinutes = uint32(Hour/time.Minute) + 2 // the parts of the first and the last
)

func (m *minutes) add(e *entry) {
	minute := e.at / unitsOfAMinute
	m.Lock()
	defer m.Unlock()
	c := &m.counts[minute%countedMinutes]
	if c.minute != minute {
		if c.minute > minute {
			return // older than an hour
		}
		c.minute, c.asked, c.refused = minute, 0, 0
	}
	c.asked += uint64(e.asked)
	c.refused += uint64(e.asked - e.took)
}

// sum returns what was counted from a minute on.
func (m *minutes) sum(from uint32) (asked, refused float64) {
	m.Lock()
	defer m.Unlock()
	for i := range m.counts {
		if c := &m.counts[i]; c.minute >= from {
			asked += float64(c.asked)
			refused += float64(c.refused)
		}
	}
	return asked, refused
}

// shard has some of the keys.
type shard struct {
	sync.Mutex
	tracks map[name]*track
}

type name struct {
	hash  uint64
	group uint32
}

// track has the requests of one key, ascending by time.
type track struct {
	log     *Log
	top     bool // it asked so much that it is kept whatever its hash
	entries []entry
}

// entry are the requests of one slot.
type entry struct {
	at                uint32 // units of Slot since the start
	asked, took, cost uint32
}

// New returns a recorder of at most so many bytes; 0 = [DefaultBytes]. now is its clock.
func New(most int64, now func() limit.Time) *Recorder {
	if most <= 0 {
		most = DefaultBytes
	}
	r := &Recorder{seed: maphash.MakeSeed(), now: now, start: now(), most: most}
	for i := range r.shards {
		r.shards[i].tracks = map[name]*track{}
	}
	return r
}

// Open returns a log for another limit.
func (r *Recorder) Open() *Log {
	l := &Log{r: r, group: r.groups.Add(1)}
	l.width.Store(1)
	l.since.Store(r.unit())
	r.sweeping.Lock()
	r.logs = append(r.logs, l)
	r.sweeping.Unlock()
	return l
}

// Close drops what is kept of a limit, which is not used afterwards.
func (r *Recorder) Close(l *Log) {
	r.sweeping.Lock()
	defer r.sweeping.Unlock()
	r.logs = slices.DeleteFunc(r.logs, func(other *Log) bool { return other == l })
	l.mask.Store(math.MaxUint64)
	l.each(func(sh *shard, id name, t *track) {
		l.shrink(trackBytes + int64(cap(t.entries))*entryBytes)
		delete(sh.tracks, id)
	})
}

// unit is the time now.
func (r *Recorder) unit() uint32 {
	return uint32(min(max(int64(r.now()-r.start)/int64(Slot), 0), math.MaxUint32))
}

// Add keeps a request of a key, with its cost from 0, and whether it was admitted. It keeps no reference to key.
func (l *Log) Add(key []byte, cost int64, admitted bool) {
	h := maphash.Bytes(l.r.seed, key)
	at := l.r.unit()
	at -= at % l.width.Load()
	e := entry{at: at, asked: 1, cost: uint32(min(max(cost, 0), math.MaxUint32))}
	if admitted {
		e.took = 1
	}
	sh := &l.r.shards[h>>60]
	sh.Lock()
	defer sh.Unlock()
	if all := l.all.Load(); all != nil {
		all.add(&e)
	}
	t := sh.tracks[name{h, l.group}]
	if t == nil {
		if h&l.mask.Load() != 0 {
			return
		}
		if !l.grow(trackBytes) {
			return
		}
		t = &track{log: l}
		sh.tracks[name{h, l.group}] = t
	}
	if n := len(t.entries); n > 0 && t.entries[n-1].merge(e) {
		return
	}
	if before := cap(t.entries); len(t.entries) == before {
		if !l.grow(int64(max(before, 1)) * entryBytes) {
			return
		}
		larger := make([]entry, len(t.entries), max(2*before, 1))
		copy(larger, t.entries)
		t.entries = larger
	}
	t.entries = append(t.entries, e)
}

// grow accounts for bytes. It reports false where there is no room: then what is kept begins anew, after now.
func (l *Log) grow(n int64) bool {
	if l.r.bytes.Add(n) > l.r.most {
		l.r.bytes.Add(-n)
		l.since.Store(l.r.unit() + 1)
		return false
	}
	l.bytes.Add(n)
	return true
}

func (l *Log) shrink(n int64) {
	l.r.bytes.Add(-n)
	l.bytes.Add(-n)
}

// merge adds the requests of another entry of the same slot, or of one before. It reports false where it cannot.
func (e *entry) merge(o entry) bool {
	cost := uint64(e.cost) + uint64(o.cost)
	if o.at > e.at || cost > math.MaxUint32 || e.asked > math.MaxUint32-o.asked {
		return false
	}
	e.asked, e.took, e.cost = e.asked+o.asked, e.took+o.took, uint32(cost)
	return true
}

// Sweep drops what is older than an hour from a part of the keys, and makes room; call it every 100 ms.
func (r *Recorder) Sweep() {
	r.sweeping.Lock()
	defer r.sweeping.Unlock()
	r.sweepLocked(&r.shards[r.next])
	r.next = (r.next + 1) % shards
	for range 64 {
		if r.bytes.Load() <= r.most/2 { // any slice has room to double
			return
		}
		var largest *Log
		for _, l := range r.logs {
			if largest == nil || l.bytes.Load() > largest.bytes.Load() {
				largest = l
			}
		}
		if largest == nil {
			return
		}
		r.thin(largest)
	}
}

func (r *Recorder) sweepLocked(sh *shard) {
	now := r.unit()
	if now < uint32(Hour/Slot) {
		return
	}
	oldest := now - uint32(Hour/Slot)
	sh.Lock()
	defer sh.Unlock()
	for id, t := range sh.tracks {
		n := 0
		for n < len(t.entries) && t.entries[n].at < oldest {
			n++
		}
		switch {
		case n == len(t.entries):
			t.log.shrink(trackBytes + int64(cap(t.entries))*entryBytes)
			delete(sh.tracks, id)
		case n > len(t.entries)/2:
			t.fit(t.entries[n:])
		case n > 0:
			t.entries = t.entries[:copy(t.entries, t.entries[n:])]
		}
	}
}

// fit keeps these entries alone, and no room beside them.
func (t *track) fit(entries []entry) {
	before := cap(t.entries)
	t.entries = append(make([]entry, 0, len(entries)), entries...)
	t.log.shrink(int64(before-cap(t.entries)) * entryBytes)
}

// thin halves what is kept of a limit: every other key, but for those that asked most, or times that are half as exact.
func (r *Recorder) thin(l *Log) {
	if keys := l.pickTop(); keys >= fewKeys {
		mask := l.mask.Load()<<1 | 1
		l.mask.Store(mask)
		l.each(func(sh *shard, id name, t *track) {
			if id.hash&mask != 0 && !t.top {
				l.shrink(trackBytes + int64(cap(t.entries))*entryBytes)
				delete(sh.tracks, id)
			}
		})
		return
	}
	width := min(l.width.Load()*2, uint32(Hour/Slot))
	l.width.Store(width)
	l.each(func(_ *shard, _ name, t *track) {
		var joined []entry
		for _, e := range t.entries {
			e.at -= e.at % width
			if n := len(joined); n == 0 || !joined[n-1].merge(e) {
				joined = append(joined, e)
			}
		}
		t.fit(joined)
	})
}

// pickTop chooses the keys that asked most, as many as half of fewKeys, and returns how many others there are; 0 where
// those take most of the memory. It begins to count all requests.
func (l *Log) pickTop() (others int) {
	type one struct {
		id    name
		asked uint64
		bytes int64
	}
	var keys []one
	count := new(minutes)
	lockAll := l.all.Load() == nil
	if lockAll {
		for i := range l.r.shards {
			l.r.shards[i].Lock()
		}
	}
	visit := func(_ *shard, id name, t *track) {
		k := one{id: id, bytes: trackBytes + int64(cap(t.entries))*entryBytes}
		for i := range t.entries {
			k.asked += uint64(t.entries[i].asked)
			if lockAll {
				count.add(&t.entries[i])
			}
		}
		keys = append(keys, k)
	}
	if lockAll { // what comes meanwhile would be counted twice or not at all
		l.visit(visit)
		l.all.Store(count)
		for i := range l.r.shards {
			l.r.shards[i].Unlock()
		}
	} else {
		l.each(visit)
	}
	slices.SortFunc(keys, func(a, b one) int { return cmp.Compare(b.asked, a.asked) })
	top, bytes := map[name]bool{}, int64(0)
	for _, k := range keys[:min(len(keys), fewKeys/2)] {
		top[k.id] = true
		bytes += k.bytes
	}
	l.each(func(_ *shard, id name, t *track) { t.top = top[id] })
	if bytes > l.bytes.Load()/2 {
		return 0
	}
	return len(keys) - len(top)
}

// visit calls f for every key of the limit, whose shards are locked.
func (l *Log) visit(f func(sh *shard, id name, t *track)) {
	for i := range l.r.shards {
		for id, t := range l.r.shards[i].tracks {
			if id.group == l.group {
				f(&l.r.shards[i], id, t)
			}
		}
	}
}

// each calls f for every key of the limit, with its shard locked.
func (l *Log) each(f func(sh *shard, id name, t *track)) {
	for i := range l.r.shards {
		sh := &l.r.shards[i]
		sh.Lock()
		for id, t := range sh.tracks {
			if id.group == l.group {
				f(sh, id, t)
			}
		}
		sh.Unlock()
	}
}
