package redis

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/store"
)

func TestSentinel(t *testing.T) {
	t.Parallel()
	t.Run("master killed", func(t *testing.T) {
		t.Parallel()
		group := redistest.StartSentinel(t)
		testSentinel(t, group, group.Master.Kill, nil)
	})
	t.Run("master frozen", func(t *testing.T) {
		t.Parallel()
		group := redistest.StartSentinel(t)
		testSentinel(t, group, group.Master.Freeze, group.Master.Thaw)
	})
}

// awaitStream waits until a replica has acknowledged something that came after its
// first copy. A master sends nothing before: what it admits in the first second
// would be lost with it, which is a matter of how it was started.
func awaitStream(t *testing.T, master *redistest.Server) {
	t.Helper()
	await(t, "the replica of "+master.Addr()+" to follow", func() bool {
		for field := range strings.SplitSeq(master.Info("slave0"), ",") {
			if offset, ok := strings.CutPrefix(field, "offset="); ok {
				return offset != "0"
			}
		}
		return false
	})
}

// testSentinel has requests under way while the master goes, and comes back as a
// replica.
func testSentinel(t *testing.T, group *redistest.Group, leave, comeBack func()) {
	awaitStream(t, group.Master)
	lines := new(journal)
	var addrs []string
	for _, s := range group.Sentinels {
		addrs = append(addrs, s.Addr())
	}
	s := connected(t, Options{Topology: Sentinel, Addrs: addrs, Master: redistest.MasterName, Timeout: unhurried, Logger: lines.logger()}, nil)
	const workers = 8
	c := bind(t, s, "l", still(1<<40))
	var admitted [workers]atomic.Int64
	l := startLoad(t, workers, 2*time.Millisecond, func(worker int) (store.Charge, bool, error) {
		one := []store.Charge{charge(c, fmt.Sprint("k", worker), 1)}
		ok, err := s.Take(context.Background(), one)
		if ok && err == nil {
			admitted[worker].Add(1)
		}
		return one[0], ok, err
	})
	l.each(t, 50)
	w, late := l.cut()
	punctual(t, "before", w, s.opts.Timeout, late)
	fails := l.errs.Load()
	leave()
	gone := time.Now()
	await(t, "the loss to be noticed", func() bool { return l.errs.Load() > fails })
	before := l.admitted.Load()
	await(t, "the new master to decide", func() bool { return l.admitted.Load() > before })
	t.Logf("decided again after %v, master %s", time.Since(gone).Round(time.Millisecond), group.Current())
	if comeBack != nil {
		comeBack()
		// It is a master for itself until a sentinel tells it otherwise.
		await(t, "the old master to be a replica", func() bool { return group.Master.Info("role") == "slave" })
		l.each(t, 50)
	}
	await(t, "Ready", func() bool { return s.Ready() == nil })
	w, late = l.cut()
	punctual(t, "from then to the new master", w, s.opts.Timeout, late)
	l.each(t, 2) // those that were under way
	l.cut()
	errs := l.errs.Load()
	l.each(t, 100)
	if _, late := l.cut(); l.errs.Load() != errs && late < s.opts.Timeout/2 { // what the machine does not explain
		got := l.errs.Load()
		t.Errorf("%d requests failed after the failover", got-errs)
	}
	l.end()
	if group.Current() == group.Master.Addr() {
		t.Error("the sentinels did not fail over")
	}
	var over, under, most int64
	for n := range admitted {
		diff := admitted[n].Load() - used(t, s, c, fmt.Sprint("k", n))
		over, under, most = over+max(diff, 0), under+max(-diff, 0), max(most, diff)
	}
	t.Logf("admitted %d, errors %d, lines %d; admitted and lost: %d in all, at most %d for one key; charged and not told: %d",
		l.admitted.Load(), l.errs.Load(), len(lines.all()), over, most, under)
	if most > 100 {
		t.Errorf("%d admissions of one key were lost", most)
	}
	if n := len(lines.all()); n > 12 {
		t.Errorf("%d lines were logged:\n%s", n, lines)
	}
}
