package spending

import (
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
)

const (
	// recentSlots is how many keys are counted at a time, in 8 bytes each. Two in one slot are counted by turns, so
	// that a key which deserves a lease has it later.
	recentSlots = 1 << 16
	// oftenEnough is how many requests for a key in a second make it one with a lease. A lease takes about as
	// much work as so many questions.
	oftenEnough = 5
)

// recent counts the requests for a key in the present second. The zero value has counted nothing. It is safe
// for concurrent use.
type recent struct {
	slots [recentSlots]atomic.Uint64 // a hash of 32 bits, the second in 24, and the count in 8
}

// often counts a request, and says whether its key deserves a lease.
func (r *recent) often(seed maphash.Seed, now limit.Time, key []byte) bool {
	hash := maphash.Bytes(seed, key)
	slot := &r.slots[hash%recentSlots]
	begun := hash&^(1<<32-1) | uint64(now/limit.Time(time.Second))&(1<<24-1)<<8
	for {
		was := slot.Load()
		next := begun | 1
		if was&^(1<<8-1) == begun {
			if was-begun >= oftenEnough-1 {
				return true
			}
			next = was + 1
		}
		if slot.CompareAndSwap(was, next) {
			return false
		}
	}
}
