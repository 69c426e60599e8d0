package lending

import (
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/lease"
)

// TestUsage: what instances say that they decided adds up, of limits that are lent, and
// within what anybody can have decided.
func TestUsage(t *testing.T) {
	x := newLimitIndex(limits(t, `limits:
  - {name: shared, rate: 100/s, burst: 10, sharing: leased}
  - {name: places, algorithm: concurrency, max_in_flight: 4, sharing: leased}
  - {name: exact, rate: 100/s}
`))
	var d decisions
	for range 2 {
		d.add(x, []lease.Usage{
			{Limit: "shared", Admitted: 7, Refused: 2},
			{Limit: "exact", Admitted: 1},
			{Limit: "nobody", Refused: 1},
			{Limit: "places", Admitted: 1 << 63, Refused: 1 << 63},
		})
	}
	want := []lease.Usage{{Limit: "places", Admitted: 2 * mostUsage, Refused: 2 * mostUsage}, {Limit: "shared", Admitted: 14, Refused: 4}}
	if got := d.list(x); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if n := len(d.totals); n != len(want) {
		t.Errorf("%d limits are remembered, whose names may come from anybody", n)
	}
	if got := d.list(newLimitIndex(limits(t, "limits: [{name: shared, rate: 1/s}]"))); len(got) > 0 {
		t.Errorf("%+v of what is not lent any more", got)
	}
	if got := d.list(x); len(got) > 0 {
		t.Errorf("%+v, which was forgotten", got)
	}
}
