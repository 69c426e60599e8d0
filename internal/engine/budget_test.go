package engine

import (
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// accountPlan is the plan of the article on account-wide limits: 100 M messages a month, of which an
// hour may use ten times its share, restricted at 2.5 times both, and with a rate for the instant.
const accountPlan = `
limits:
  - name: messages
    key: [account]
    horizons:
      - {rate: 100M/month, soft: 80%, hard: 250%}
      - {rate: 1388888/hour, hard: 250%}
`

const instant = "      - {rate: 20k/s, burst: 40000}\n"

// account is one account under a plan, and a clock.
type account struct {
	*testing.T
	engine *Engine
	now    limit.Time
}

func newAccount(t *testing.T, plan string) *account {
	set, err := rules.Parse("plan.yaml", []byte(plan))
	if err != nil {
		t.Fatal(err)
	}
	a := &account{T: t, now: limit.At(time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC))}
	st := memory.New(memory.Options{Now: func() limit.Time { return a.now }})
	if a.engine, err = New(st, set, Options{}); err != nil {
		t.Fatal(err)
	}
	return a
}

func (a *account) publish(messages int64) limit.Decision {
	a.Helper()
	d, err := a.engine.Take(a.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "acme"}}, Cost: messages})
	if err != nil {
		a.Fatal(err)
	}
	return d
}

// burst publishes messages of a fan-out of 1000 over a time, one publish a millisecond, and returns how
// many were admitted.
func (a *account) burst(over time.Duration, each int64) (admitted int64) {
	for range over / time.Millisecond {
		if a.publish(each).Allowed {
			admitted += each
		}
		a.now = a.now.Add(time.Millisecond)
	}
	return admitted
}

// With limits of the month and the hour alone an account sends 3.5 million messages within a few
// seconds. With a rate beside them it sends what that admits, and the horizons are not touched.
func TestTheArticlesBurst(t *testing.T) {
	if n := newAccount(t, accountPlan).burst(4*time.Second, 1000); n < 3_400_000 || n > 3_472_220 {
		t.Errorf("without a rate %d were admitted, the article says 3.5 million", n)
	}
	a := newAccount(t, accountPlan+instant)
	if n, most := a.burst(4*time.Second, 1000), int64(40_000+4*20_000); n > most || n < most-1000 {
		t.Errorf("with a rate %d were admitted, want %d", n, most)
	}
}

// An account that uses its hours in full has its month in three days, is warned from 80 % on, for a
// long time before it is restricted, and only at 2.5 times the plan. In the next month it begins anew.
func TestTheArticlesMonth(t *testing.T) {
	a := newAccount(t, accountPlan+instant)
	begin := a.now
	sent, warned, over := int64(0), int64(0), int64(0)
	for range 24 * 28 {
		hour := a.now
		for sentInHour := int64(0); sentInHour+20_000 <= 1_388_888; a.now = a.now.Add(time.Second) {
			d := a.publish(20_000)
			if !d.Allowed {
				if over == 0 {
					over = sent
				}
				if r := d.Refused(); r.Limit != "messages/month" || r.RetryAfter != time.Duration(limit.At(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))-a.now) {
					t.Fatalf("%+v", r)
				}
				break
			}
			sent, sentInHour = sent+20_000, sentInHour+20_000
			if month := d.Results[0]; month.Soft && warned == 0 {
				warned = sent
				if month.Nominal != 100_000_000 || month.Quota != 250_000_000 {
					t.Errorf("%+v", month)
				}
			} else if month.Soft != (sent > 80_000_000) {
				t.Fatalf("after %d: warned %v", sent, month.Soft)
			}
			if sent == 100_000_000 {
				if days := time.Duration(a.now-begin).Hours() / 24; days < 2.9 || days > 3.2 {
					t.Errorf("the month's messages were sent in %.1f days, the article says 3", days)
				}
			}
		}
		a.now = hour.Add(time.Hour)
	}
	if warned != 80_020_000 || over != 250_000_000 {
		t.Errorf("warned after %d, restricted after %d", warned, over)
	}
	a.now = limit.At(time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC))
	if d := a.publish(20_000); !d.Allowed || d.Results[0].Soft || d.Results[0].Remaining != 250_000_000-20_000 {
		t.Errorf("%+v", d.Results)
	}
}

// Between the rate and the hard threshold requests are admitted with a warning, for hours as for
// months; whatever refuses takes from none.
func TestHardTakesFromNone(t *testing.T) {
	a := newAccount(t, "limits: [{name: a, key: [account], horizons: [{rate: 10/month, hard: 200%}, {rate: 4/hour, hard: 150%}]}]")
	for i := range 7 {
		d := a.publish(1)
		if want := i < 6; d.Allowed != want {
			t.Fatalf("%d: %+v", i, d)
		}
		if month, hour := d.Results[0], d.Results[1]; d.Allowed && (month.Soft || hour.Soft != (i >= 4)) {
			t.Errorf("%d: soft %v and %v", i, month.Soft, hour.Soft)
		}
	}
	a.now = a.now.Add(time.Hour)
	if d := a.publish(1); d.Results[0].Remaining != 13 || d.Results[1].Remaining != 5 {
		t.Errorf("%+v", d.Results)
	}
}
