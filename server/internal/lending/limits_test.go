package lending

import (
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// A key of other attributes than the limit's is refused as such, whatever its values are; of
// the limit's own, or where an instance does not say of which, it counts.
func TestAttributesOfAKey(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	x := newLimitIndex(limits(t, `limits:
  - {name: shared, rate: 100/s, sharing: leased}
  - {name: per-user, key: [user, ip], rate: 10/s, sharing: leased}
  - {name: by-ip, key: [ip], rate: 10/s, sharing: leased}
  - {name: exact, key: [user], rate: 10/s}
`))
	for _, c := range []struct {
		limit      string
		attributes []string
		want       lease.Status
	}{
		{"per-user", nil, lease.StatusOK},
		{"per-user", []string{}, lease.StatusOK},
		{"per-user", []string{"user", "ip"}, lease.StatusOK},
		{"per-user", []string{"ip", "user"}, lease.StatusWrongAttributes},
		{"per-user", []string{"user"}, lease.StatusWrongAttributes},
		{"per-user", []string{"user", "ip", "more"}, lease.StatusWrongAttributes},
		{"exact", []string{"ip"}, lease.StatusNotLeased},
		{"nobody", []string{"ip"}, lease.StatusUnknownLimit},
	} {
		key, err := leasewire.EncodeKey("u", "192.0.2.7")
		if err != nil {
			t.Fatal(err)
		}
		r := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: c.limit, Key: key}, Attributes: c.attributes}}}
		x.canonical(&r)
		terms, status := x.resolve(r.Demands[0].Resource)
		if status != c.want || (terms.Rate > 0) != (c.want == lease.StatusOK) {
			t.Errorf("%s by %q: %v, want %v", c.limit, c.attributes, status, c.want)
		}
	}
	// What is no list of values is no key, though it reads as one of the machines'.
	for _, raw := range []string{"\xfd\xc0\x00\x02\x07", "\xfe", "\xff" + strings.Repeat("x", 32), "\x05a"} {
		r := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: "by-ip", Key: raw}}}}
		x.canonical(&r)
		if _, status := x.resolve(r.Demands[0].Resource); status != lease.StatusBadKey {
			t.Errorf("the key %q: %v", raw, status)
		}
	}
	shared := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: "shared"}, Attributes: []string{"user"}}}}
	if x.canonical(&shared); shared.Demands[0].Resource.Key != otherAttributes {
		t.Errorf("a limit without a key takes %q", shared.Demands[0].Resource.Key)
	}
}

// TestLimitsThatAreLent: only those of this service's own kinds of sharing are lent, and a parent is asked for
// a key by its values.
func TestLimitsThatAreLent(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	none := newLimitIndex(limits(t, "limits: [{name: exact, rate: 1/s}]"))
	some := newLimitIndex(limits(t, "limits: [{name: exact, rate: 1/s}, {name: lent, key: [user, ip], rate: 1/s, sharing: leased}]"))
	if none.leasing() || !some.leasing() || none.limit("exact") == nil || none.limit("lent") != nil || some.limit("lent") == nil {
		t.Errorf("leasing %v and %v", none.leasing(), some.leasing())
	}
	values, err := leasewire.EncodeKey("u", "192.0.2.7")
	if err != nil {
		t.Fatal(err)
	}
	r := lease.Report{Demands: []lease.Demand{{Resource: lease.ResourceID{Limit: "lent", Key: values}}}}
	some.canonical(&r)
	id, attributes, ok := some.translate(r.Demands[0].Resource)
	if !ok || id.Limit != "lent" || id.Key != values || len(attributes) != 2 || attributes[0] != "user" || attributes[1] != "ip" {
		t.Errorf("the parent is asked for %+v of %v, %v", id, attributes, ok)
	}
	for _, id := range []lease.ResourceID{{Limit: "nobody"}, {Limit: "lent", Key: badKey}} {
		if _, _, ok := some.translate(id); ok {
			t.Errorf("the parent is asked for %+v", id)
		}
	}
}
