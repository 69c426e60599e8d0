package lease

// MaxShards bounds the shards: each costs every instance a stream and every member an election.
const MaxShards = 64

// FNV-1a, 64 bits.
const (
	fnvOffset = 14695981039346656037
	fnvPrime  = 1099511628211
)

// Shard returns which of n shards the resource belongs to, from 0 to n-1; n is at least 1. Members of
// one cluster divide all resources among n coordinators by it, so it is a part of the protocol: every
// version returns the same.
//
// Key has to be that of the bucket's values as the coordinator spells them, and not what an instance
// sent: two spellings of one address are one bucket, and a bucket with two coordinators would be lent
// twice.
func (r ResourceID) Shard(n int) int {
	h := uint64(fnvOffset)
	for i := range len(r.Limit) {
		h = (h ^ uint64(r.Limit[i])) * fnvPrime
	}
	h *= fnvPrime // a byte 0: no name holds one, so name and key are told apart
	for i := range len(r.Key) {
		h = (h ^ uint64(r.Key[i])) * fnvPrime
	}
	// The low bits of FNV-1a depend on the low bits of the input alone, and n is often a power of 2. The
	// finish of MurmurHash3 has every bit depend on all.
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	h ^= h >> 33
	return int(h % uint64(n))
}
