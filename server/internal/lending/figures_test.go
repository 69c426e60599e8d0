package lending

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// The figures follow what happens within a second: for how long a limit was saturated, which
// instances ran out, what was refused with which status, and what is not configured any more
// is gone.
func TestFiguresOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t, func(o *Options) { o.State.Recovery = 3 * time.Second })
		a, b := s.dial(t), s.dial(t)
		b.report("b", 1, demand(1, "shared", 1))
		time.Sleep(time.Second / 2) // between two samples
		of := func(name string) LimitFigures {
			f := s.figures.Load().Limits
			at := slices.IndexFunc(f, func(l LimitFigures) bool { return l.Limit == name })
			if at < 0 {
				return LimitFigures{}
			}
			return f[at]
		}
		pass := func(seconds int, rate float64) {
			for range seconds {
				a.report("a", 1, demand(1, "shared", rate), demand(2, "nobody", 1), demand(3, "exact", 1), demand(4, "per-user", 1))
				time.Sleep(time.Second)
			}
		}
		if pass(2, 300); !s.figures.Load().Recovering {
			t.Error("it does not learn")
		}
		pass(3, 300)
		before := of("shared")
		if !before.Saturated || before.SaturatedSeconds <= 0 || before.SaturatedSeconds > 5 || s.figures.Load().Recovering {
			t.Errorf("%+v", before)
		}
		b.hangUp() // without a word
		pass(20, 300)
		if got := of("shared"); got.SaturatedSeconds-before.SaturatedSeconds != 20 || got.Resources != 1 || got.SaturatedResources != 1 {
			t.Errorf("20 s later %+v, before %+v", got, before)
		}
		f := s.figures.Load()
		if f.Expired != 1 || f.Instances != 1 || f.Streams != 1 || f.Grants == 0 || f.Broken != 0 {
			t.Errorf("%+v", f)
		}
		for _, status := range []string{"unknown_limit", "not_leased", "bad_key"} {
			if n := f.Refused[status]; n < 20 || n > 30 {
				t.Errorf("%d are refused as %s", n, status)
			}
		}
		if len(f.Refused) != 3 {
			t.Errorf("refused are %v", f.Refused)
		}
		pass(10, 1) // which the limit allows
		after := of("shared")
		pass(10, 1)
		if got := of("shared"); got.Saturated || got.SaturatedSeconds != after.SaturatedSeconds || got.SaturatedResources != 0 {
			t.Errorf("%+v, ten seconds before %+v", got, after)
		}
		s.reconfigure(limits(t, "limits: [{name: other, rate: 1/s, sharing: leased}]"))
		pass(3, 300)
		s.reconfigure(limits(t, config))
		pass(3, 300)
		if got := of("shared").SaturatedSeconds; got > 3 {
			t.Errorf("%v s of a limit that was configured 3 s ago", got)
		}
	})
}

// Of a suppressed limit the figures have the largest fraction of a key that is refused, which
// the page has of each key.
func TestFiguresOfSuppression(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t, func(o *Options) {
			o.Limits = limits(t, "limits:\n  - {name: beyond, key: [user], rate: 10/s, sharing: suppressed}\n")
		})
		c := s.dial(t)
		attempted := map[string]int64{}
		ask := func(handle uint32, user string, perSecond int64) *leasepb.Demand {
			attempted[user] += perSecond * 1e6 / 10
			d := demand(handle, "beyond", float64(perSecond), user)
			d.Attempted, d.Admitted = attempted[user], min(attempted[user], 1e6)
			return d
		}
		for range 200 {
			c.number++
			c.reports <- &leasepb.Report{
				Instance: "a", Session: 1, Version: lease.ProtocolVersion, Number: c.number, Stamp: int64(c.number) * 1e8,
				Demands: []*leasepb.Demand{ask(1, "calm", 1), ask(2, "hot", 40), ask(3, "warm", 20), ask(4, "last", 1)},
			}
			time.Sleep(100 * time.Millisecond)
		}
		r := served{shard: s.shard, t: t}
		page, largest := r.page(""), 0.0
		for _, l := range page.Resources {
			if busy := l.Key == `user="hot"` || l.Key == `user="warm"`; busy != (l.Reject > 0) || l.Reject > 1 || l.Sharing != "suppressed" {
				t.Errorf("%+v", l)
			}
			largest = max(largest, l.Reject)
			for _, one := range l.Leases {
				if one.Attempted <= 0 || one.Admitted <= 0 || one.Attempted < one.Admitted {
					t.Errorf("%s: %+v", l.Key, one)
				}
			}
		}
		f := s.figures.Load()
		if len(page.Resources) != 4 || len(f.Limits) != 1 || !f.Limits[0].Suppressed || largest < 0.6 || f.Limits[0].Reject < 0.6 || f.Limits[0].Reject > 0.8 {
			t.Errorf("%d keys, refused of one at most %v, figures %+v", len(page.Resources), largest, f.Limits)
		}
	})
}

// The page says of a lease since when it is held and when it ends, whether the coordinator
// learns, and for how long a limit is full.
func TestPageOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		r := served{shard: s.shard, t: t}
		c := s.dial(t)
		for range 10 {
			c.report("a", 1, demand(1, "shared", 300), demand(2, "places", 0))
			time.Sleep(time.Second)
		}
		time.Sleep(2 * time.Second)
		p := r.page("?limit=shared")
		if len(p.Resources) != 1 || len(p.Resources[0].Leases) != 1 || p.Total != 1 || p.Instances != 1 {
			t.Fatalf("%+v", p)
		}
		l := p.Resources[0]
		one := l.Leases[0]
		if one.Since < 11 || one.Since > 12 || one.ExpiresIn < 2 || one.ExpiresIn > 2.1 || l.SaturatedFor < 10 || l.SaturatedFor > 12 || l.Recovering || l.Broken || one.Burst <= 0 {
			t.Errorf("%+v", l)
		}
		figures, others, ok := s.allInstances(t.Context())
		if !ok || others != 0 || len(figures) != 2 || figures[0].Limit != "places" || figures[0].Wanted != 1 || figures[0].Lent < 1 || figures[0].Lent > 4 {
			t.Errorf("%+v", figures)
		}
		learning := lend(t, func(o *Options) { o.State.Recovery = time.Hour })
		d := learning.dial(t)
		d.report("a", 1, demand(1, "shared", 300))
		time.Sleep(time.Second)
		if p := (&served{shard: learning.shard, t: t}).page(""); len(p.Resources) != 1 || !p.Resources[0].Recovering {
			t.Errorf("%+v", p)
		}
	})
}

// At most 10,000 leases are shown, and the page says where some are not.
func TestLeasesShownAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		const instances, keys = 101, 100
		for i := range instances {
			var demands []*leasepb.Demand
			for k := range keys - i/(instances-1) { // the last has one less
				demands = append(demands, demand(uint32(k), "per-user", 1, fmt.Sprint(k), "192.0.2.7"))
			}
			s.dial(t).report(fmt.Sprint(i), 1, demands...)
		}
		r := served{shard: s.shard, t: t}
		p := r.page("")
		shown, truncated := 0, 0
		for _, l := range p.Resources {
			shown += len(l.Leases)
			if l.Truncated {
				truncated++
			}
			if l.Truncated != (len(l.Leases) < l.Count) {
				t.Errorf("%d of %d, truncated: %v", len(l.Leases), l.Count, l.Truncated)
			}
		}
		if !p.Truncated || shown != maxPageLeases || truncated == 0 || len(p.Resources) != keys {
			t.Errorf("%d are shown, of %d of %d keys not all; truncated: %v", shown, truncated, len(p.Resources), p.Truncated)
		}
		if p := r.page("?limit=shared"); p.Truncated || p.Total != 0 {
			t.Errorf("%+v", p)
		}
	})
}

// Only one snapshot at a time stops the loop: a second waits until its context ends.
func TestOneLookAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := lend(t)
		held := make(chan struct{})
		go s.inLoop(t.Context(), func(limit.Time) { <-held })
		synctest.Wait()
		answered := make(chan int, 1)
		ask := func(ctx context.Context) {
			w := httptest.NewRecorder()
			single(s.shard).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/v1/leases", nil).WithContext(ctx))
			answered <- w.Body.Len()
		}
		go ask(t.Context())
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		go ask(short)
		if n := <-answered; n != 0 || time.Since(begun) != time.Second {
			t.Errorf("%d bytes after %v", n, time.Since(begun))
		}
		if _, _, ok := s.allInstances(short); ok || len(s.events) != 1 {
			t.Errorf("another look: %v, %d events wait", ok, len(s.events))
		}
		close(held)
		if n := <-answered; n == 0 {
			t.Error("the first is not answered")
		}
		if _, _, ok := s.allInstances(t.Context()); !ok {
			t.Error("nobody looks, and one that asks is not answered")
		}
	})
}
