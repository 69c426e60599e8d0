// Package topkeys finds the keys that are met most often in the last minutes, among any number of keys, in bounded memory.
//
// It is Space-Saving (Metwally, Agrawal and El Abbadi, 2005) with forward decay (Cormode, Shkapenyuk, Srivastava and
// Xu, 2009): an event of age a counts exp(-a/[Memory]), so that keys which become hot late overtake those that were
// hot before. It has no clock: [Sketch.Tick] says what time it is. It does not know what keys mean.
package topkeys

import (
	"cmp"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Memory is the time in which the weight of an event falls to 1/e: what happened in the latest minute counts
	// most. Not shorter: a rate of one per second is then known to 13 %. Not longer: a key that becomes hot is
	// on top within seconds.
	Memory = time.Minute

	// MaxKey is how many bytes of a key are kept to show it. Which key it is, is decided by a hash of all of it. Not
	// larger: every place has room for it. Not smaller: an IPv6 address with a path, or a hash, fits.
	MaxKey = 64

	shards = 8
	places = 512 // of a shard; a power of two
	slots  = 2 * places

	// MaxPerSecond is about how many events in a second are counted one by one. Of more, one in 2, 4, 8, ... is, for as
	// many. Not larger: each costs some 50 to 250 ns, so that they take less than 1 % of a processor.
	MaxPerSecond = 20_000

	// rescale is the exponent at which weights start from 1 again. A float64 has room for e^700.
	rescale = 300
)

// Keys is how many keys a sketch counts.
const Keys = shards * places

// Sketch counts the keys that are met most. Make it with [New]. It is safe for concurrent use, and takes less than
// 512 KiB whatever it is given.
type Sketch struct {
	seed   maphash.Seed
	shards [shards]shard
	weight atomic.Uint64 // of an event now, as math.Float64bits
	skip   atomic.Uint32 // one in skip+1 events is counted; skip+1 is a power of two

	ticking  sync.Mutex // held by Tick; it guards what follows
	origin   time.Time  // when an event weighed 1
	last     time.Time
	lastSeen uint64
}

// shard has the keys whose hash ends on its number.
type shard struct {
	sync.Mutex
	used  int
	seen  uint64  // events that were counted one by one
	total float64 // weight of all events

	heap  [places]uint16 // places, the least first
	at    [places]uint16 // where a place is in heap
	n     [places]float64
	over  [places]float64
	hash  [places]uint64
	group [places]uint32
	size  [places]uint16 // of the whole key, at most 65535
	key   [places][MaxKey]byte
	index [slots]uint16 // place+1 by hash, open addressing with linear probes
}

// New returns an empty sketch. now is when it begins.
func New(now time.Time) *Sketch {
	s := &Sketch{seed: maphash.MakeSeed(), origin: now, last: now}
	s.weight.Store(math.Float64bits(1))
	return s
}

// Add counts an event of a key. Keys of different groups are different keys. It keeps no reference to key.
func (s *Sketch) Add(group uint32, key []byte) {
	skip := s.skip.Load()
	if skip != 0 && rand.Uint32()&skip != 0 {
		return
	}
	h := maphash.Bytes(s.seed, key) ^ uint64(group)*0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	sh := &s.shards[h>>61]
	sh.Lock()
	sh.add(h|1, group, key, math.Float64frombits(s.weight.Load())*float64(skip+1))
	sh.Unlock()
}

// Tick says what time it is; call it every second or more often. Time that goes back is ignored.
func (s *Sketch) Tick(now time.Time) {
	s.ticking.Lock()
	defer s.ticking.Unlock()
	elapsed := now.Sub(s.last)
	if elapsed <= 0 {
		return
	}
	s.last = now
	exponent := float64(now.Sub(s.origin)) / float64(Memory)
	if exponent > rescale {
		s.origin = now
		for i := range s.shards {
			s.shards[i].scale(math.Exp(-exponent))
		}
		exponent = 0
	}
	s.weight.Store(math.Float64bits(math.Exp(exponent)))
	seen := uint64(0)
	for i := range s.shards {
		s.shards[i].Lock()
		seen += s.shards[i].seen
		s.shards[i].Unlock()
	}
	rate := float64(seen-s.lastSeen) / elapsed.Seconds()
	s.lastSeen = seen
	skip := s.skip.Load()
	switch {
	case rate > MaxPerSecond*1.25 && skip < 1<<16:
		for rate > MaxPerSecond*1.25 && skip < 1<<16 {
			skip, rate = 2*skip+1, rate/2
		}
	case rate < MaxPerSecond/2.5 && skip > 0:
		skip /= 2
	}
	s.skip.Store(skip)
}

// Key is one of those met most.
type Key struct {
	Group uint32
	// Text is the beginning of the key, at most MaxKey bytes; Size is how many bytes the whole key has, at most 65535.
	Text []byte
	Size int
	// Rate is how many events a second there are now, and Over by how much it may be too high. It is never too low,
	// but for chance where events are sampled: see [View].
	Rate, Over float64
	// Sure says that the key is met more than every key that is not in the list, whatever the errors are; where events
	// are sampled by three standard deviations.
	Sure bool
}

// View is what a sketch has at a moment.
type View struct {
	// Keys are those of each group that are met most, the most first.
	Keys map[uint32][]Key
	// Rate is that of all events.
	Rate float64
	// Error bounds Key.Over of every key, and the rate of every key that is not among Keys.
	Error float64
	// One says that one in so many events was counted, for as many. The rates of keys with n counted events in a minute
	// are then also off by chance, by some 100/sqrt(n) %.
	One int
}

// View returns the n keys of each group that were met most; all of them for n <= 0.
func (s *Sketch) View(n int) View {
	v := View{Keys: map[uint32][]Key{}, One: int(s.skip.Load()) + 1}
	unit := 1 / (math.Float64frombits(s.weight.Load()) * Memory.Seconds())
	for i := range s.shards {
		v.Error = max(v.Error, s.shards[i].collect(v.Keys, unit, &v.Rate))
	}
	// deviations is three times the standard deviation of a rate by sampling.
	deviations := func(rate float64) float64 { return 3 * math.Sqrt(rate*float64(v.One-1)/(2*Memory.Seconds())) }
	for group, list := range v.Keys {
		slices.SortFunc(list, func(a, b Key) int {
			return cmp.Or(cmp.Compare(b.Rate-b.Over/2, a.Rate-a.Over/2), slices.Compare(a.Text, b.Text))
		})
		next := v.Error // the most that a key which is not shown may have
		if n > 0 && len(list) > n {
			for _, k := range list[n:] {
				next = max(next, k.Rate)
			}
			list = list[:n:n]
		}
		for i := range list {
			list[i].Sure = list[i].Rate-list[i].Over-deviations(list[i].Rate) > next+deviations(next)
		}
		v.Keys[group] = list
	}
	return v
}

// collect adds the keys of a shard, and returns how much its counts may be too high.
func (sh *shard) collect(to map[uint32][]Key, unit float64, total *float64) (least float64) {
	sh.Lock()
	defer sh.Unlock()
	*total += sh.total * unit
	for p := range sh.used {
		k := Key{Group: sh.group[p], Size: int(sh.size[p]), Rate: sh.n[p] * unit, Over: sh.over[p] * unit}
		if k.Rate < 1e-6 {
			continue // it has not been met for a quarter of an hour
		}
		k.Text = slices.Clone(sh.key[p][:min(k.Size, MaxKey)])
		to[k.Group] = append(to[k.Group], k)
	}
	if sh.used < places {
		return 0
	}
	return sh.n[sh.heap[0]] * unit
}

// add counts weight for a key.
func (sh *shard) add(h uint64, group uint32, key []byte, weight float64) {
	sh.seen++
	sh.total += weight
	slot := int(h>>8) & (slots - 1)
	for sh.index[slot] != 0 {
		if p := sh.index[slot] - 1; sh.hash[p] == h {
			sh.n[p] += weight
			sh.down(int(sh.at[p]))
			return
		}
		slot = (slot + 1) & (slots - 1)
	}
	p := uint16(sh.used)
	if sh.used < places {
		sh.used++
		sh.heap[p], sh.at[p] = p, p
		sh.n[p], sh.over[p] = weight, 0
		sh.index[slot] = p + 1
		sh.hold(p, h, group, key)
		sh.up(int(p))
		return
	}
	p = sh.heap[0]
	sh.forget(p)
	for slot = int(h>>8) & (slots - 1); sh.index[slot] != 0; slot = (slot + 1) & (slots - 1) {
	}
	sh.index[slot] = p + 1
	sh.over[p] = sh.n[p]
	sh.n[p] += weight
	sh.hold(p, h, group, key)
	sh.down(0)
}

// hold notes which key has a place.
func (sh *shard) hold(p uint16, h uint64, group uint32, key []byte) {
	sh.hash[p], sh.group[p], sh.size[p] = h, group, uint16(min(len(key), math.MaxUint16))
	copy(sh.key[p][:], key)
}

// forget takes a place out of the index, and moves those behind it that would not be found otherwise.
func (sh *shard) forget(p uint16) {
	hole := int(sh.hash[p]>>8) & (slots - 1)
	for sh.index[hole] != p+1 {
		hole = (hole + 1) & (slots - 1)
	}
	for next := (hole + 1) & (slots - 1); sh.index[next] != 0; next = (next + 1) & (slots - 1) {
		home := int(sh.hash[sh.index[next]-1]>>8) & (slots - 1)
		if (next-home)&(slots-1) >= (next-hole)&(slots-1) {
			sh.index[hole] = sh.index[next]
			hole = next
		}
	}
	sh.index[hole] = 0
}

// scale multiplies all weights.
func (sh *shard) scale(f float64) {
	sh.Lock()
	defer sh.Unlock()
	sh.total *= f
	for p := range sh.used {
		sh.n[p] *= f
		sh.over[p] *= f
	}
}

func (sh *shard) up(i int) {
	for i > 0 && sh.n[sh.heap[i]] < sh.n[sh.heap[(i-1)/2]] {
		sh.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (sh *shard) down(i int) {
	for {
		least := 2*i + 1
		if least >= sh.used {
			return
		}
		if least+1 < sh.used && sh.n[sh.heap[least+1]] < sh.n[sh.heap[least]] {
			least++
		}
		if sh.n[sh.heap[i]] <= sh.n[sh.heap[least]] {
			return
		}
		sh.swap(i, least)
		i = least
	}
}

func (sh *shard) swap(i, j int) {
	a, b := sh.heap[i], sh.heap[j]
	sh.heap[i], sh.heap[j] = b, a
	sh.at[a], sh.at[b] = uint16(j), uint16(i)
}
