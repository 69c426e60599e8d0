package derive

import (
	"log/slog"
	"reflect"
	"slices"
	"testing"
)

// TestTranslate: limits see an address, a path and a host as from other transports, whatever Envoy calls them.
func TestTranslate(t *testing.T) {
	s := New(slog.New(slog.DiscardHandler))
	for _, tt := range []struct{ in, want []string }{
		{[]string{"user", "u", "x", ""}, []string{"user", "u", "x", ""}},
		{[]string{"remote_address", "192.0.2.7"}, []string{"remote_address", "192.0.2.7", "ip", "192.0.2.7"}},
		{[]string{"remote_address", "192.0.2.7", "ip", "192.0.2.8"}, []string{"remote_address", "192.0.2.7", "ip", "192.0.2.8"}},
		{[]string{":path", "/a/./b?c"}, []string{":path", "/a/./b?c", "path", "/a/b", "path:sent", "/a/./b"}},
		{[]string{"path", "/a/./b?c"}, []string{"path", "/a/b", "path:sent", "/a/./b"}},
		{[]string{":path", "/x", "path", "/s/a%2f..%2fz"}, []string{":path", "/x", "path", "/s/z", "path:cleaned", "/s/a/../z"}},
		{[]string{":path", ""}, []string{":path", ""}},
		{[]string{"path", ""}, []string{"path", ""}},
		{[]string{":authority", "Example.com:8443"}, []string{":authority", "Example.com:8443", "host", "example.com"}},
		{[]string{"host", "Example.com:8443", "path", "/?q"}, []string{"host", "example.com", "path", "/"}},
		{[]string{":method", "GET", ":scheme", "https"}, []string{":method", "GET", ":scheme", "https", "method", "GET", "proto", "https"}},
	} {
		in := attrs(tt.in...)
		if got := s.Translate(in); !reflect.DeepEqual(got, attrs(tt.want...)) {
			t.Errorf("%q: %v, want %q", tt.in, got, tt.want)
		}
		if !reflect.DeepEqual(in, attrs(tt.in...)) {
			t.Errorf("%q was changed: %v", tt.in, in)
		}
		for _, a := range s.Translate(in) {
			if !slices.Contains(in, a) && !s.Translates(a.Name) && a.Name != "path:cleaned" && a.Name != "path:sent" {
				t.Errorf("%s is made and not announced", a.Name)
			}
		}
	}
}
