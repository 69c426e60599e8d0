package identify

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
)

func TestAppend(t *testing.T) {
	h := http.Header{
		"X-Api-Key": {"k1", "k2"},
		"X-Empty":   {""},
		"X-Long":    {strings.Repeat("x", MaxValue+1)},
		"Cookie":    {`a=1; session="s=1"; b`, "session=other"},
	}
	names := []string{
		"user", "header:x-api-key", "header:x-empty", "header:absent", "header:x-long",
		"cookie:session", "cookie:b", "query:tenant", "query:flag", "query:absent", "header:",
	}
	p := NewPlan(names)
	got := p.Append([]limit.Attribute{{Name: "ip", Value: "192.0.2.7"}}, h, "x=1&ten%61nt=a+b%20c&tenant=2&flag&bad=%zz")
	want := []limit.Attribute{
		{Name: "ip", Value: "192.0.2.7"},
		{Name: "header:x-api-key", Value: "k1"},
		{Name: "header:x-empty", Value: ""},
		{Name: "header:x-long", Value: Bound(strings.Repeat("x", MaxValue+1))},
		{Name: "cookie:session", Value: "s=1"},
		{Name: "query:tenant", Value: "a b c"},
		{Name: "query:flag", Value: ""},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestLongValuesStayDifferent: whatever the length, values that differ anywhere differ
// when they are bounded, and begin as they did.
func TestLongValuesStayDifferent(t *testing.T) {
	seen := map[string]int{}
	for n := MaxValue - 100; n < 4*MaxValue; n += 97 {
		for _, end := range []string{"a", "b"} {
			value := strings.Repeat("x", n-1) + end
			got := Bound(value)
			if n <= MaxValue && got != value || len(got) > MaxValue || got[:900] != value[:900] {
				t.Fatalf("%d bytes became %d: %.30q", n, len(got), got)
			}
			if was, ok := seen[got]; ok {
				t.Fatalf("values of %d and %d bytes became one", was, n)
			}
			seen[got] = n
		}
	}
}

func TestAppendAll(t *testing.T) {
	h := http.Header{"X-B": {"2"}, "X-A": {"1", "9"}}
	got := NewPlan([]string{"header:x-b", "header:*"}).Append(nil, h, "")
	want := []limit.Attribute{{Name: "header:x-b", Value: "2"}, {Name: "header:x-a", Value: "1"}, {Name: "header:x-b", Value: "2"}}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	for i := range 1000 {
		h[fmt.Sprint("X-", i)] = []string{"x"}
	}
	if got := NewPlan([]string{"*"}).Append(nil, h, ""); len(got) != maxAll+1 || got[0] != (limit.Attribute{Name: "header:*", Value: "1002"}) {
		t.Errorf("%d attributes of 1002 fields, want %d, the first of which says how many there are: %v", len(got), maxAll+1, got[0])
	}
}

func TestAppendAllocations(t *testing.T) {
	p := NewPlan([]string{"header:x-api-key", "cookie:session", "query:tenant"})
	h := http.Header{"X-Api-Key": {"k"}, "Cookie": {"a=1; session=s"}}
	room := make([]limit.Attribute, 0, 8)
	if n := testing.AllocsPerRun(100, func() { p.Append(room[:0], h, "a=b&tenant=t") }); n > 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func FuzzAppend(f *testing.F) {
	f.Add("session=1;", "tenant=%2", "v")
	f.Fuzz(func(t *testing.T, cookies, query, value string) {
		p := NewPlan([]string{"header:*", "header:x", "cookie:session", "query:tenant"})
		for _, a := range p.Append(nil, http.Header{"X": {value}, "Cookie": {cookies}}, query) {
			if len(a.Value) > MaxValue {
				t.Fatalf("%s has %d bytes", a.Name, len(a.Value))
			}
		}
	})
}

func TestLiveFollowsTheNames(t *testing.T) {
	names := []string{"header:x-a"}
	live := NewLive(func() []string { return names })
	h := http.Header{"X-A": {"1"}, "X-B": {"2"}}
	first := live.Plan()
	if got := first.Append(nil, h, ""); len(got) != 1 || got[0].Value != "1" || first.Size() {
		t.Errorf("before: %v", got)
	}
	if live.Plan() != first {
		t.Error("the same names were compiled twice")
	}
	names = []string{"header:x-b", "size"}
	if got := live.Plan().Append(nil, h, ""); len(got) != 1 || got[0].Value != "2" || !live.Plan().Size() {
		t.Errorf("after: %v", got)
	}
	if got := NewLive(nil).Plan().Append(nil, h, ""); len(got) != 0 {
		t.Errorf("no names: %v", got)
	}
}
