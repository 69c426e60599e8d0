package rules

import (
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// The section means what it says, in its units, and the first class that holds counts.
func TestThrottle(t *testing.T) {
	s, err := Load("testdata/good/throttle.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got := s.Throttle()
	if got.Concurrency != 64 || got.Rate != 1.6 || !got.Adaptive || got.MaxWaiting != 1000 || got.MaxWaitingCost != 500*time.Millisecond ||
		got.MaxWait != time.Second || !got.NewestFirst || got.User != "header:x-user" || got.Key != "header:x-tenant" || got.Cost != 5*time.Millisecond {
		t.Errorf("%+v", got)
	}
	for _, c := range []struct {
		path, plan, want string
	}{
		{"/checkout/1", "", "critical_plus"},
		{"/checkout", "gold", "critical_plus"},
		{"/reports", "gold", "sheddable"},
		{"/", "gold", "critical"},
		{"/", "", ""},
	} {
		attrs := []limit.Attribute{{Name: "method", Value: "GET"}, {Name: "path", Value: c.path}, {Name: "header:x-plan", Value: c.plan}}
		class := got.Class(attrs)
		if (class == nil) != (c.want == "") || class != nil && class.Criticality != c.want {
			t.Errorf("%v: class %+v, want %q", attrs, class, c.want)
		}
	}
	for _, name := range []string{"header:x-plan", "header:x-user", "header:x-tenant", "path", "method"} {
		if !contains(s.Attributes(), name) {
			t.Errorf("%s is not among the attributes that are read: %v", name, s.Attributes())
		}
	}
	for text, want := range map[string]float64{"1s/s": 1, "250ms/s": .25, "90s/minute": 1.5} {
		s, err := Parse("x", []byte("throttle: {rate: "+text+"}\n"))
		if err != nil || s.Throttle().Rate != want {
			t.Errorf("%s: %v, %v", text, s.Throttle(), err)
		}
	}
}
