package leasewire_test

import (
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// Totals that have wrapped around come through on either side, and a bad demand among
// them leaves what was given back as it is.
func TestTotalsWrapAround(t *testing.T) {
	before, after := lease.Capacity{Rate: math.MaxInt64 - 1, Burst: math.MaxInt64, Tokens: -1}, lease.Capacity{Rate: math.MinInt64 + 1, Burst: math.MinInt64, Tokens: 3}
	var up leasepb.Report
	var down leasepb.Grant
	var heard lease.Report
	var granted lease.Grant
	var sum lease.Capacity
	for _, h := range []lease.Capacity{before, after} {
		m := &lease.Report{Member: lease.Member{Instance: "a", Session: 1}, Demands: []lease.Demand{{Handle: 1, Lease: 7, Returned: h}}}
		if err := leasewire.ToReport(&up, m); err != nil {
			t.Fatal(err)
		}
		up.Demands[0].Rate = math.NaN()
		if bad, err := leasewire.FromReport(&heard, resent(t, &up, &leasepb.Report{})); err != nil || len(bad) != 1 || heard.Demands[0].Returned != h {
			t.Errorf("returned %+v became %+v, %v, %v", h, heard.Demands[0].Returned, bad, err)
		}
		leasewire.ToGrant(&down, &lease.Grant{Shares: []lease.Share{{Handle: 1, Lease: 7, Granted: h}}})
		if err := leasewire.FromGrant(&granted, resent(t, &down, &leasepb.Grant{})); err != nil || granted.Shares[0].Granted != h {
			t.Errorf("granted %+v became %+v, %v", h, granted.Shares, err)
		}
		g := granted.Shares[0].Granted
		sum = lease.Capacity{Rate: g.Rate - sum.Rate, Burst: g.Burst - sum.Burst, Tokens: g.Tokens - sum.Tokens}
	}
	if sum != (lease.Capacity{Rate: 3, Burst: 1, Tokens: 4}) {
		t.Errorf("the difference is %+v", sum)
	}
}

// Who waits for longer than the wire says waits until told otherwise.
func TestWithinIsBounded(t *testing.T) {
	var m leasepb.Report
	for within, want := range map[time.Duration]time.Duration{
		0: 0, 1: 1, leasewire.MaxWithin: leasewire.MaxWithin, leasewire.MaxWithin + 1: 0, math.MaxInt64: 0,
	} {
		if err := leasewire.ToReport(&m, &lease.Report{Demands: []lease.Demand{{Within: within}}}); err != nil {
			t.Fatal(err)
		}
		if got := time.Duration(m.GetDemands()[0].GetWithin()); got != want {
			t.Errorf("%v is sent as %v, want %v", within, got, want)
		}
	}
}
