package bucket

import (
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// largest is the cost of the largest recent request: of the present span and of the one before
// it.
type largest struct {
	current atomic.Int64
	before  int64 // under the owner's lock, as since
	since   limit.Time
}

// remembered is how long a span is. Not shorter: a large request that comes every few
// seconds needs its burst the next time too. Not longer: burst that is not needed here is
// missing elsewhere.
const remembered = limit.Time(10 * time.Second)

// note records n. Requests of one token, which are nearly all, cost nothing.
func (l *largest) note(n int64) {
	if n <= 1 {
		return
	}
	for was := l.current.Load(); n > was; was = l.current.Load() {
		if l.current.CompareAndSwap(was, n) {
			return
		}
	}
}

// at returns the largest recent cost, 0 if none was above 1. While there are waiters nothing is
// forgotten: the largest request may be one of them.
func (l *largest) at(now limit.Time, waiting int64) fixed.Amount {
	switch age := now - l.since; {
	case waiting > 0:
		l.since = now
	case age >= 2*remembered:
		l.current.Store(0)
		l.before, l.since = 0, now
	case age >= remembered:
		l.before, l.since = l.current.Swap(0), now
	}
	return fixed.Whole(max(l.before, l.current.Load()))
}
