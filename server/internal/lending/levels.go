package lending

import (
	"errors"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease/coordinator"
)

// isHeld stands for the age of a bucket of which instances hold a part.
const isHeld = -1

// maxLevels is how many buckets one message has: at some 45 bytes each it is below the 4 MiB that gRPC takes.
const maxLevels = 4096

func toLevels(m *leasepb.Levels, levels []coordinator.Level) {
	m.Buckets = make([]byte, 0, len(levels)*len(coordinator.BucketID{}))
	m.Tokens, m.Age, m.Fills = make([]int64, 0, len(levels)), make([]int64, 0, len(levels)), make([]int64, 0, len(levels))
	m.Leased = make([]bool, 0, len(levels))
	for i := range levels {
		l := &levels[i]
		age := int64(l.Age)
		if l.Held {
			age = isHeld
		}
		m.Buckets = append(m.Buckets, l.Bucket[:]...)
		m.Leased = append(m.Leased, l.Leased)
		m.Tokens, m.Age, m.Fills = append(m.Tokens, int64(l.Tokens)), append(m.Age, age), append(m.Fills, int64(l.Fills))
	}
}

var errLevels = errors.New("lending: levels of the leader cannot be read: their lists differ in length, or an amount is out of range")

// fromLevels appends the levels of m.
func fromLevels(to []coordinator.Level, m *leasepb.Levels) ([]coordinator.Level, error) {
	const size = len(coordinator.BucketID{})
	n := len(m.Tokens)
	if len(m.Buckets) != n*size || len(m.Age) != n || len(m.Fills) != n || len(m.Leased) != n {
		return nil, errLevels
	}
	for i := range n {
		l := coordinator.Level{
			Bucket: coordinator.BucketID(m.Buckets[i*size:]), Tokens: fixed.Amount(m.Tokens[i]),
			Held: m.Age[i] == isHeld, Leased: m.Leased[i], Age: time.Duration(max(0, m.Age[i])), Fills: time.Duration(m.Fills[i]),
		}
		if m.Age[i] < isHeld || l.Age > coordinator.MaxAge || l.Fills < 0 || l.Tokens > fixed.MaxAmount || l.Tokens < -fixed.MaxAmount {
			return nil, errLevels
		}
		to = append(to, l)
	}
	return to, nil
}
