package cluster

// Preferred returns the member that should lead a scope: the one of the highest weight, where the weight
// of each is a hash of its ID and the scope (rendezvous hashing: Thaler and Ravishankar, "Using
// name-based mappings to increase hit rates", 1998). So a member that leaves moves only the scopes that
// it had, and one that joins takes only scopes for itself; of equal weights the lower ID counts. It does
// not depend on the order of members, and is the same in every version. ok is false without members.
func Preferred(members []Member, scope string) (preferred Member, ok bool) {
	var highest uint64
	for _, m := range members {
		w := weight(m.ID, scope)
		if !ok || w > highest || w == highest && m.ID < preferred.ID {
			preferred, highest, ok = m, w, true
		}
	}
	return preferred, ok
}

// weight is FNV-1a of both with a zero byte in between, which no scope has, and the finish of MurmurHash3,
// which has every bit depend on all.
func weight(id, scope string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i := range len(scope) {
		h = (h ^ uint64(scope[i])) * prime
	}
	h *= prime
	for i := range len(id) {
		h = (h ^ uint64(id[i])) * prime
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
