package derive

import (
	"log/slog"
	"reflect"
	"slices"
	"testing"

	"github.com/stint-io/stint/limit"
)

func attrs(pairs ...string) (out []limit.Attribute) {
	for i := 0; i < len(pairs); i += 2 {
		out = append(out, limit.Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	return out
}

// user_ip is the first address in the header fields of the operator's, else ip; what the caller gave stays.
func TestUserIP(t *testing.T) {
	s := New(slog.Default())
	if err := s.Configure(t.Context(), Config{UserIP: []string{"header:true-client-ip", "header:x-real"}}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ in, want []limit.Attribute }{
		{attrs("ip", "192.0.2.1"), attrs("ip", "192.0.2.1", "user_ip", "192.0.2.1")},
		{attrs("ip", "192.0.2.1", "header:True-Client-IP", " 198.51.100.7 "), attrs("ip", "192.0.2.1", "header:True-Client-IP", " 198.51.100.7 ", "user_ip", "198.51.100.7")},
		{attrs("ip", "192.0.2.1", "header:true-client-ip", "x", "header:x-real", "::ffff:198.51.100.8"), attrs("ip", "192.0.2.1", "header:true-client-ip", "x", "header:x-real", "::ffff:198.51.100.8", "user_ip", "198.51.100.8")},
		{attrs("ip", "192.0.2.1", "user_ip", "given"), attrs("ip", "192.0.2.1", "user_ip", "given")},
		{attrs("path", "/"), attrs("path", "/")},
	} {
		before := slices.Clone(tt.in)
		if got := s.Derive([]string{"claim:sub", "region", "user_ip"}, tt.in); !reflect.DeepEqual(got, tt.want) || !reflect.DeepEqual(tt.in, before) {
			t.Errorf("%v: %v, want %v", tt.in, got, tt.want)
		}
	}
	if got := s.Needs([]string{"user_ip", "region", "claim:sub"}); !slices.Equal(got, []string{"ip", "header:true-client-ip", "header:x-real", "ip"}) {
		t.Errorf("needs %v", got)
	}
	if err := s.Configure(t.Context(), Config{Country: "/nowhere"}); err == nil || len(s.live.Load().config.UserIP) != 2 {
		t.Errorf("a configuration with a fault took effect: %v", err)
	}
	in := attrs("ip", "192.0.2.1", "path", "/")
	if n := testing.AllocsPerRun(100, func() { s.Derive([]string{"region", "asn", "claim:x"}, in) }); n != 0 {
		t.Errorf("%v allocations for nothing", n)
	}
}
