// Package holding says who may hold leases, for the successor of a coordinator: whose claims it has to wait for.
package holding

import (
	"cmp"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"maps"
	"slices"
)

// Holders says which sessions may hold leases of which limits. A coordinator publishes it before
// it sends the first lease of a limit to a session, so that its successor knows whose claims to
// wait for: when all of them have reported, what nobody claimed is free. The zero value says
// that nobody holds anything.
//
// Limits are known by a hash, since only this question is asked of them. Two limits of one hash
// are waited for together, which is longer and never less.
type Holders struct {
	// Unknown says that anybody may hold anything.
	Unknown bool
	of      map[uint64][]uint32 // hashes of limits by session, ascending; allLimits alone = any
}

// The bounds of Holders. A session that has leases of more limits than MaxLimits counts as
// a holder of any, and more sessions than MaxSessions as unknown. With fewer limits for each they fit into a
// record of a coordinator.
const (
	MaxSessions = 8192
	MaxLimits   = 4
)

// allLimits stands for every limit. No limit has this hash.
const allLimits = 0

func limitHash(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name)) // a hash never fails
	return max(h.Sum32(), allLimits+1)
}

// Covers says whether the session may hold leases of the limit.
func (h *Holders) Covers(session uint64, limit string) bool {
	if h.Unknown {
		return true
	}
	limits, ok := h.of[session]
	if !ok {
		return false
	}
	_, found := slices.BinarySearch(limits, limitHash(limit))
	return found || limits[0] == allLimits
}

// Sessions is how many sessions are named.
func (h *Holders) Sessions() int { return len(h.of) }

// Named says whether the session is named.
func (h *Holders) Named(session uint64) bool {
	_, ok := h.of[session]
	return ok
}

// Include says that the session may hold leases of the limit.
func (h *Holders) Include(session uint64, limit string) {
	if !h.Covers(session, limit) {
		h.include(session, limitHash(limit))
	}
}

func (h *Holders) include(session uint64, limits ...uint32) {
	if h.of == nil {
		h.of = map[uint64][]uint32{}
	}
	if _, ok := h.of[session]; !ok && len(h.of) >= MaxSessions {
		h.Unknown, h.of = true, nil
	}
	if h.Unknown {
		return
	}
	all := slices.Concat(h.of[session], limits)
	slices.Sort(all)
	if all = slices.Compact(all); all[0] == allLimits || len(all) > MaxLimits {
		all = []uint32{allLimits}
	}
	h.of[session] = all
}

// merge adds what o says.
func (h *Holders) merge(o *Holders) {
	if o.Unknown {
		h.Unknown, h.of = true, nil
	}
	for session, limits := range o.of {
		h.include(session, limits...)
	}
}

// Remove says that the session holds nothing.
func (h *Holders) Remove(session uint64) { delete(h.of, session) }

// Intersect leaves out what o does not say.
func (h *Holders) Intersect(o *Holders) {
	switch {
	case o.Unknown:
		return
	case h.Unknown:
		*h = o.Clone()
		return
	}
	for session, limits := range h.of {
		others := o.of[session]
		switch {
		case len(others) > 0 && limits[0] == allLimits:
			h.of[session] = others
		case len(others) > 0 && others[0] == allLimits:
		default:
			// Not in place: sets share their lists.
			both := slices.DeleteFunc(slices.Clone(limits), func(l uint32) bool { return !slices.Contains(others, l) })
			if h.of[session] = both; len(both) == 0 {
				delete(h.of, session)
			}
		}
	}
}

// May says whether any session may hold leases of the limit.
func (h *Holders) May(limit string) bool {
	if h.Unknown {
		return true
	}
	for session := range h.of {
		if h.Covers(session, limit) {
			return true
		}
	}
	return false
}

// holdersVersion is the first byte of the encoding.
const holdersVersion = 1

var errHolders = errors.New("lease: the record of holders cannot be read: it is of another version, or damaged")

// Encode returns the holders as bytes: 9 for each session and 4 for each of its limits.
func (h *Holders) Encode() []byte {
	if h.Unknown {
		return []byte{holdersVersion, 1}
	}
	b := []byte{holdersVersion, 0}
	for _, session := range slices.SortedFunc(maps.Keys(h.of), cmp.Compare[uint64]) {
		b = binary.BigEndian.AppendUint64(b, session)
		b = append(b, byte(len(h.of[session])))
		for _, limit := range h.of[session] {
			b = binary.BigEndian.AppendUint32(b, limit)
		}
	}
	return b
}

// DecodeHolders reads what [Holders.Encode] returned. Where it cannot, the holders are unknown, and
// the error says so.
func DecodeHolders(b []byte) (Holders, error) {
	unknown := Holders{Unknown: true}
	if len(b) < 2 || b[0] != holdersVersion || b[1] > 1 {
		return unknown, errHolders
	}
	if b[1] == 1 {
		return unknown, nil
	}
	h := Holders{of: map[uint64][]uint32{}}
	for b = b[2:]; len(b) > 0; {
		if len(b) < 9 {
			return unknown, errHolders
		}
		session, n := binary.BigEndian.Uint64(b), int(b[8])
		if b = b[9:]; n == 0 || len(b) < 4*n {
			return unknown, errHolders
		}
		limits := make([]uint32, n)
		for i := range limits {
			limits[i] = binary.BigEndian.Uint32(b[4*i:])
		}
		h.include(session, limits...)
		b = b[4*n:]
	}
	return h, nil
}

// Clone returns a copy that shares nothing with h.
func (h *Holders) Clone() Holders {
	c := Holders{Unknown: h.Unknown}
	c.merge(h)
	return c
}
