//go:build linux

package client_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
)

// spendMain is an instance that takes all that it can get of messages. It prints, for
// each that it took, the nanosecond before it asked and the one after it was answered,
// and for each that it did not get that before it asked.
func spendMain() error {
	c, err := client.New(client.Options{Address: os.Getenv("STINT_TEST_ADDRESS"), Instance: os.Getenv("STINT_TEST_INSTANCE")})
	if err != nil {
		return err
	}
	messages, err := c.Limit("messages", client.LimitOptions{})
	if err != nil {
		return err
	}
	go func() {
		for range time.Tick(2 * time.Millisecond) {
			if before := time.Now().UnixNano(); messages.Allow() {
				fmt.Println(before, time.Now().UnixNano())
			} else {
				fmt.Println(before)
			}
		}
	}()
	return c.Run(context.Background())
}

// admitted is one admission, which happened in between.
type admitted struct {
	by            string
	before, after int64
}

// book is what the limit protects: it notes who is let through.
type book struct {
	mu      sync.Mutex
	all     []admitted
	refused map[string]int64   // the last time that each was refused
	asked   map[string][]int64 // when each asked
}

func (b *book) note(a admitted) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.all = append(b.all, a)
}

func (b *book) refuse(by string, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refused == nil {
		b.refused = map[string]int64{}
	}
	b.refused[by] = at
}

// watch notes what a process does until it ends.
func (b *book) watch(by string, p *process) {
	for p.out.Scan() {
		a := admitted{by: by}
		n, _ := fmt.Sscan(p.out.Text(), &a.before, &a.after)
		switch n {
		case 2:
			b.note(a)
		case 1:
			b.refuse(by, a.before)
		}
		if n > 0 {
			b.ask(by, a.before)
		}
	}
}

// ask notes when an instance asked.
func (b *book) ask(by string, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked == nil {
		b.asked = map[string][]int64{}
	}
	b.asked[by] = append(b.asked[by], at)
}

// enough is what must be admitted within an interval at least; "" = to all. It is a part of
// what a bucket of so many tokens per second for each instance, which keeps two, would have
// admitted of the same requests: a busy machine makes instances ask less often.
func (b *book) enough(by string, part, rate float64, from, to time.Time) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for name, asked := range b.asked {
		tokens, last := 1.0, from.UnixNano()
		for _, at := range asked {
			if by != "" && name != by || at < from.UnixNano() || at > to.UnixNano() {
				continue
			}
			tokens, last = min(2, tokens+rate*time.Duration(at-last).Seconds()), at
			if tokens >= 1 {
				tokens--
				n++
			}
		}
	}
	return int(part * float64(n))
}

// between counts what was admitted within an interval for certain; "" = by all.
func (b *book) between(by string, from, to time.Time) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.all {
		if (by == "" || a.by == by) && a.before >= from.UnixNano() && a.after <= to.UnixNano() {
			n++
		}
	}
	return n
}

// asks waits until each has asked so many times more.
func (b *book) asks(t *testing.T, more int, names ...string) {
	t.Helper()
	count := func(name string) int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.asked[name])
	}
	for _, name := range names {
		enough := count(name) + more
		await(t, fmt.Sprintf("%d requests of %s", more, name), func() bool { return count(name) >= enough })
	}
}

// parted waits until each of two instances has had its half of the limit for two seconds.
func (b *book) parted(t *testing.T, names ...string) {
	t.Helper()
	begin := time.Now()
	await(t, "each to have its part", func() bool {
		now := time.Now()
		from := now.Add(-2 * time.Second)
		return !from.Before(begin) && !slices.ContainsFunc(names, func(name string) bool {
			return b.between(name, from, now) < b.enough(name, 0.8, perSecond/2, from, now)
		})
	})
}

// alone waits until an instance has nine tenths of the limit for a second, and returns how long that took.
func (b *book) alone(t *testing.T, name string) time.Duration {
	t.Helper()
	begin := time.Now()
	await(t, name+" to have all of the limit", func() bool {
		now := time.Now()
		from := now.Add(-time.Second)
		least := b.enough(name, 0.9, perSecond, from, now)
		return !from.Before(begin) && least > perSecond/2 && b.between(name, from, now) >= least
	})
	return time.Since(begin)
}

// share is how many per second one of two instances is lent: what it was admitted in the two
// seconds before, and not more than a half of the limit.
func (b *book) share(by string, at time.Time) float64 {
	return min(perSecond/2, float64(b.between(by, at.Add(-2*time.Second), at))/2)
}

// evenly waits until each has asked for 300 ms without a pause of 25 ms: one whose process
// was not run for that long has given its lease back, and a coordinator that is lost in that
// moment leaves it without one. It reports false where 20 s did not bring that: what an
// instance has on such a machine nobody knows.
func (b *book) evenly(t *testing.T, names ...string) bool {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(20 * time.Second); ; {
		if !slices.ContainsFunc(names, func(name string) bool { return !b.askedEvenly(name, time.Now()) }) {
			return true
		}
		select {
		case <-tick.C:
		case <-late:
			t.Logf("the machine does not run %v evenly: what they have is not known", names)
			return false
		}
	}
}

func (b *book) askedEvenly(name string, now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := now.UnixNano()
	for _, at := range slices.Backward(b.asked[name]) {
		if next-at > int64(25*time.Millisecond) {
			return false
		}
		if next = at; now.UnixNano()-at > int64(300*time.Millisecond) {
			return true
		}
	}
	return false
}

// first is when one was admitted that was asked for from then on; now if none was.
func (b *book) first(from time.Time) time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := time.Now().UnixNano()
	for _, a := range b.all {
		if a.before >= from.UnixNano() {
			first = min(first, a.after)
		}
	}
	return time.Unix(0, first)
}

// refusedSince says whether somebody has been refused since then.
func (b *book) refusedSince(by string, from time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refused[by] > from.UnixNano()
}

// check holds every interval, from before a request until after an admission, against
// burst + rate x T.
func (b *book) check(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	slices.SortFunc(b.all, func(a, b admitted) int { return cmp.Compare(a.after, b.after) })
	for i, first := range b.all {
		// Those that were answered before it and asked after it are none of this interval.
		n := 0.0
		for _, a := range b.all[max(0, i-100):] {
			if a.before < first.before {
				continue
			}
			n++
			took := time.Duration(a.after - first.before)
			if most := burst + perSecond*took.Seconds(); n > most+1e-6 {
				t.Fatalf("%.0f admitted in %v, at most %.1f are allowed", n, took, most)
			}
		}
	}
	if n := len(b.all); n > 0 {
		t.Logf("%d admitted in %v", n, time.Duration(b.all[n-1].after-b.all[0].before).Round(time.Millisecond))
	}
}

// spend takes all that there is of messages in this process, until the test ends.
func (b *book) spend(t *testing.T, address, instance string) {
	t.Helper()
	c, leave := join(t, address, instance)
	messages, err := c.Limit("messages", client.LimitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-done:
				return
			}
			before := time.Now().UnixNano()
			if messages.Allow() {
				b.note(admitted{instance, before, time.Now().UnixNano()})
			}
			b.ask(instance, before)
		}
	}()
	t.Cleanup(func() {
		close(done)
		<-ended
		leave()
	})
}

// spendApart is spend in a process of its own.
func (b *book) spendApart(t *testing.T, address, instance string) *process {
	t.Helper()
	p := launch(t, "STINT_TEST_PROCESS=spend", "STINT_TEST_ADDRESS="+address, "STINT_TEST_INSTANCE="+instance)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		b.watch(instance, p)
	}()
	t.Cleanup(func() {
		p.kill()
		<-ended
	})
	return p
}
