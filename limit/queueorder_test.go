package limit

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// slowAnswer is a leaky bucket of which some answers take a while, as from far away or from
// a goroutine that gets no processor: the delay counts from when it decided.
type slowAnswer struct {
	k     *keyed
	calls int
	slow  func(call int) time.Duration
}

func (s *slowAnswer) Take(ctx context.Context, req Request) (Decision, error) {
	d, err := s.k.Take(ctx, req)
	s.calls++
	time.Sleep(s.slow(s.calls))
	return d, err
}

// TestQueueOrderOfSlowAnswers: in one line no request is released before an earlier one, even if
// its answer came faster.
func TestQueueOrderOfSlowAnswers(t *testing.T) {
	for every := 2; every < 6; every++ {
		synctest.Test(t, func(t *testing.T) {
			k := &keyed{p: Policy{Algorithm: LeakyBucket, Rate: PerHour(1)}}
			slow := &slowAnswer{k: k, slow: func(call int) time.Duration {
				if call%every == 0 {
					return time.Millisecond
				}
				return 0
			}}
			queue, q := newQueue(t, slow, QueueOptions{}), told{start: time.Now()}
			for i := range 60 {
				q.joinQueue(queue, i, requestOf("a", 1), []time.Duration{Never, 1000 * time.Hour}[i%3/2])
			}
			time.Sleep(10 * time.Second)
			k.set(t, Policy{Algorithm: LeakyBucket, Rate: PerSecond(1_000_000), Burst: 30})
			time.Sleep(time.Minute)
			last := -1
			for _, f := range q.all() {
				if f.err != nil || f.who < last {
					t.Errorf("every %dth is slow: %d after %d: %v", every, f.who, last, f.err)
				}
				last = f.who
			}
			if last != 59 {
				t.Errorf("%d was the last", last)
			}
		})
	}
}
