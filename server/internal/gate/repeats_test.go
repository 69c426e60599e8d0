package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
)

// What is decided after an error is what repeats are given: nobody is charged twice.
func TestRepeatsAfterAnError(t *testing.T) {
	var s repeats
	s.init()
	id := s.id(netip.MustParseAddr("192.0.2.7"), "x")
	calls := 0
	first := func() (limit.Decision, error) {
		if calls++; calls == 1 {
			return limit.Decision{}, errors.New("down")
		}
		return limit.Decision{Allowed: true, Permit: uint64(calls)}, nil
	}
	for range 4 {
		_, _ = s.take(t.Context(), id, first) // the first alone fails
	}
	if d, err := s.take(t.Context(), id, first); err != nil || calls != 2 || d.Permit != 2 {
		t.Errorf("%d calls, the last repeat is given %+v, %v", calls, d, err)
	}
}

// Requests whose parts are others have other identities, though the parts together read
// the same.
func TestPartsDoNotRunTogether(t *testing.T) {
	var s repeats
	s.init()
	client := netip.MustParseAddr("192.0.2.7")
	seen := map[requestID]string{}
	for i := range 5 {
		for j := i; j < 5; j++ {
			parts := []string{"abcd"[:min(i, 4)], "abcd"[min(i, 4):min(j, 4)], "abcd"[min(j, 4):]}
			key := fmt.Sprintf("%q", parts)
			if was, ok := seen[s.id(client, parts...)]; ok && was != key {
				t.Errorf("%s and %s are one", was, key)
			}
			seen[s.id(client, parts...)] = key
		}
	}
}

// An option that cannot be read is refused with its name.
func TestMalformedEscape(t *testing.T) {
	rt := route{}
	if f := rt.option("attr.plan=%zz"); f == nil || !strings.Contains(fmt.Sprint(*f), "attr.plan") {
		t.Errorf("%+v", f)
	}
}
