package memory

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// budget counts the bytes of all tables against a bound, and keeps the limits apart. Half of it
// is divided equally among the counters that are bound: each has a part of its own. The other
// half goes to the tables that grow first. So a flood of keys on some limits leaves the others
// room for their own keys, and no key with a state is dropped for it. Not less than half in
// parts: with ten limits each then has a twentieth. Not more: a limit that is alone under load
// could use less.
type budget struct {
	max int64

	// Read without the lock, changed under it.
	used    atomic.Int64 // by all accounts
	claimed atomic.Int64 // the same, where an account counts with its part at least

	mu       sync.Mutex
	accounts map[*account]struct{}
	part     int64 // of each account
}

// account is what the counters of one ID use of the budget.
type account struct {
	budget *budget
	used   atomic.Int64
	part   atomic.Int64 // 0 once it is closed

	overflowed atomic.Int64  // Takes decided on the overflow bucket
	overflowAt atomic.Uint64 // about when the last was, since the store's beginning
}

// open adds an account; close removes it once its tables are dropped.
func (b *budget) open() *account {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.accounts == nil {
		b.accounts = map[*account]struct{}{}
	}
	a := &account{budget: b}
	b.accounts[a] = struct{}{}
	a.setPart(b.part)
	b.divide()
	return a
}

func (a *account) close() {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.accounts, a)
	a.setPart(0)
	b.divide()
}

// divide sets the part of every account. It divides by the next power of two of their number, so
// that opening thousands one by one changes the parts only a few times.
func (b *budget) divide() {
	part := b.max / 2
	if n := len(b.accounts); n > 0 {
		part >>= bits.Len(uint(n - 1))
	}
	if part == b.part {
		return
	}
	b.part = part
	for a := range b.accounts {
		a.setPart(part)
	}
}

// setPart sets the part. The budget's lock is held.
func (a *account) setPart(part int64) {
	used := a.used.Load()
	a.budget.claimed.Add(max(part, used) - max(a.part.Load(), used))
	a.part.Store(part)
}

// reserve adds n bytes if they fit and spare bytes remain of what is in no part.
func (a *account) reserve(n, spare int64) bool {
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if !a.fits(n, spare) {
		return false
	}
	a.add(n)
	return true
}

// fits reports whether there is room for n bytes: within the account's part, or in what is in no
// part.
func (a *account) fits(n, spare int64) bool {
	b := a.budget
	used, part := a.used.Load(), a.part.Load()
	more := max(part, used+n) - max(part, used) // of what is in no part
	switch {
	case n <= 0:
		return true
	case b.used.Load()+n > b.max:
		return false
	default:
		return more == 0 || b.claimed.Load()+more+spare <= b.max
	}
}

// charge adds n bytes, which may be negative, whether they fit or not.
func (a *account) charge(n int64) {
	if n == 0 {
		return
	}
	b := a.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	a.add(n)
}

// add adds n bytes. The budget's lock is held.
func (a *account) add(n int64) {
	used, part := a.used.Load(), a.part.Load()
	a.used.Store(used + n)
	a.budget.used.Add(n)
	a.budget.claimed.Add(max(part, used+n) - max(part, used))
}

// spare is what growing tables leave free, in bytes: a full table needs it to be swept, which
// copies one shard at a time.
func (a *account) spare() int64 { return a.budget.max / 8 }

// quiet is how long no Take was decided on an overflow bucket before the next one counts as
// another flood. Not shorter: each flood is a line in the log. Not longer: that line says when
// the flood began.
const quiet = uint64(time.Minute)

// overflow records a Take decided on the overflow bucket at since, a time since the store's
// beginning. It reports whether a flood begins with it.
func (a *account) overflow(since uint64) (begins bool) {
	a.overflowed.Add(1)
	since = max(since, 1)
	last := a.overflowAt.Load()
	if last > 0 && since < last+quiet/60 {
		return false
	}
	return a.overflowAt.CompareAndSwap(last, since) && (last == 0 || since >= last+quiet)
}
