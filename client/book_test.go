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
	refused map[string]int64 // the last time that each asked in vain
	asked   map[string]int64 // the last time that each process asked
	still   []admitted       // the times in which one did not, though it should
}

// standstill is a pause between two requests of a process that only a machine with other
// work makes. What is lent to it in a longer one may be more than its bucket holds.
const standstill = 100 * time.Millisecond

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

// ask notes that a process asked, and since when it had not if that is long ago.
func (b *book) ask(by string, at int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.asked == nil {
		b.asked = map[string]int64{}
	}
	if last, known := b.asked[by]; known && at-last > int64(standstill) {
		b.still = append(b.still, admitted{by, last, at})
	}
	b.asked[by] = at
}

// stood is how long processes stood still within an interval, added up.
func (b *book) stood(from, to time.Time) (sum time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, a := range b.still {
		sum += time.Duration(max(0, min(a.after, to.UnixNano())-max(a.before, from.UnixNano())))
	}
	return sum
}

// enough is what so many instances must be admitted within an interval at least: a part of the
// limit, for as long as they did not stand still, on average.
func (b *book) enough(part float64, instances int, from, to time.Time) int {
	ran := to.Sub(from) - b.stood(from, to)/time.Duration(instances)
	return int(part * perSecond * ran.Seconds())
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

// refusedSince says whether somebody has asked in vain since then.
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
			if before := time.Now().UnixNano(); messages.Allow() {
				b.note(admitted{instance, before, time.Now().UnixNano()})
			}
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
