package client

import "github.com/stint-io/stint/limit"

// together is how long before its time one that is unsure may be checked. It is so long
// that a line is gone through a few times only while all in it are; and short, beside
// the patience of one that is unsure.
const together = limit.Time(shortestAsk / 10)

// expire is what the checker does: it removes the waiters whose deadline has passed. Of
// those that waited for an answer it keeps the ones that may be in time yet.
func (l *leasedLimit) expire() {
	l.mu.Lock()
	defer l.unlock()
	l.checker.Fired()
	now := l.client.now()
	unsure := false
	for {
		at, of := l.line.checks.First()
		if of == nil {
			break
		}
		t := of.(*waiter)
		if at := limit.Time(at); at > now && (!t.unsure || at > now+together) {
			break
		}
		if !t.unsure || now >= t.latest {
			l.dismiss(t, errLate)
			continue
		}
		unsure = true
		t.unsure, t.checked = false, true
		l.line.check(t, t.latest)
	}
	if unsure {
		l.review(func(t *waiter, cost int64) error {
			if !t.checked {
				return nil
			}
			t.checked = false
			if l.late(now, cost, t) {
				return errLate
			}
			l.line.wait(t, t.ends)
			return nil
		})
	}
	l.settle(now)
}
