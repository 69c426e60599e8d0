package rules

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
)

func TestKeysNeverMeet(t *testing.T) {
	long := strings.Repeat("x", maxLiteral+1)
	hashed := string(appendPart(nil, long))
	lists := [][]string{
		{"a_b", "c"},
		{"a", "b_c"},
		{"a", "b", "c"},
		{"ab", "c"},
		{"", "abc"},
		{"abc", ""},
		{"abc"},
		{"", ""},
		{""},
		{long},
		{hashed},
		{hashed[1:]},
		{long + "x"},
		{long[1:]},
		{"\x01a"},
		{"\xfe"},
		{"\xfd\x01\x02\x03\x04"},
	}
	seen := make(map[string]int)
	for i, values := range lists {
		var key []byte
		for _, v := range values {
			key = appendPart(key, v)
		}
		if j, ok := seen[string(key)]; ok {
			t.Errorf("%q and %q have one key", lists[i], lists[j])
		}
		seen[string(key)] = i
	}
	for _, name := range []string{string([]byte{192, 0, 2, 7}), "192.0.2.7", "\x04"} {
		if bytes.Equal(appendPart(nil, name), appendAddress(nil, "192.0.2.7", 64)) {
			t.Errorf("%q and an address have one key", name)
		}
	}
}

func TestAddressesInKeys(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		bits int
		same bool
	}{
		{"192.0.2.7", "::ffff:192.0.2.7", 64, true},
		{"192.0.2.7", "192.0.2.8", 64, false},
		{"2001:db8::1", "2001:0db8:0:0:ffff:ffff:ffff:ffff", 64, true},
		{"2001:db8:0:1::1", "2001:db8::1", 64, false},
		{"2001:db8:0:1::1", "2001:db8::1", 56, true},
		{"2001:db8:0:100::1", "2001:db8::1", 56, false},
		{"2001:db8::1", "2001:db8::2", 128, false},
		{"2001:db8::1", "2001:db8::3", 126, true},
		{"2001:db8::1", "2001:db8::5", 126, false},
		{"fe80::1%eth0", "fe80::1", 64, true},
		{"unknown", "unknown", 64, true},
		{"::", "0.0.0.0", 64, false},
	} {
		a, b := appendAddress(nil, tt.a, tt.bits), appendAddress(nil, tt.b, tt.bits)
		if got := bytes.Equal(a, b); got != tt.same {
			t.Errorf("%s and %s at /%d: same key is %v, want %v", tt.a, tt.b, tt.bits, got, tt.same)
		}
	}
}

func TestKeyTextOfOtherBytes(t *testing.T) {
	l := &Limit{Key: []string{"a"}, ipv6: 64}
	for _, key := range []string{"\x05ab", "\xff", "\xfd\x01", "\xfc", "\x90", "\x01"} {
		if got := l.KeyText([]byte(key)); !strings.Contains(got, "not a key") {
			t.Errorf("%q: got %q", key, got)
		}
	}
	if got := l.KeyText(appendPart(nil, strings.Repeat("x", 1000))); !strings.HasPrefix(got, "a=sha256:") {
		t.Errorf("got %q", got)
	}
}

// FuzzMatchKey: two requests have one key only when their values are equal, or
// equal as addresses.
func FuzzMatchKey(f *testing.F) {
	s := mustParse(f, "limits: [{name: l, key: [ip, a, b], missing: all, rate: 5/s}]\n")
	long := strings.Repeat("x", 200)
	f.Add("1.2.3.4", "a_b", "c", "1.2.3.4", "a", "b_c", uint8(7), uint8(7))
	f.Add("", "", "a", "", "a", "", uint8(7), uint8(5))
	f.Add(long, long+"y", long, long, long, long+"y", uint8(3), uint8(6))
	key := func(ip, a, b string, present uint8) []byte {
		var list []limit.Attribute
		for i, at := range []limit.Attribute{{Name: "ip", Value: ip}, {Name: "a", Value: a}, {Name: "b", Value: b}} {
			if present&(1<<i) != 0 {
				list = append(list, at)
			}
		}
		m, _ := s.Match("", list, nil, nil)
		return m[0].Key
	}
	given := func(values ...string) (bits uint8) {
		for i, v := range values {
			if v != "" {
				bits |= 1 << i
			}
		}
		return bits
	}
	f.Fuzz(func(t *testing.T, ip1, a1, b1, ip2, a2, b2 string, p1, p2 uint8) {
		// An empty value is a missing one.
		p1, p2 = p1&given(ip1, a1, b1), p2&given(ip2, a2, b2)
		same := p1 == p2 && (p1&2 == 0 || a1 == a2) && (p1&4 == 0 || b1 == b2) &&
			(p1&1 == 0 || bytes.Equal(appendAddress(nil, ip1, 64), appendAddress(nil, ip2, 64)))
		k1, k2 := key(ip1, a1, b1, p1), key(ip2, a2, b2, p2)
		if got := bytes.Equal(k1, k2); got != same {
			t.Fatalf("one key: %v, want %v", got, same)
		}
		if text := s.Limits()[0].KeyText(k1); strings.Contains(text, "not a key") {
			t.Fatalf("key cannot be read: %q", text)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, glob := range []string{"testdata/good/*.yaml", "testdata/bad/*.yaml"} {
		for _, name := range corpus(f, glob) {
			src, err := readBounded(name)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(src)
		}
	}
	request := attrs("ip=192.0.2.7 user=acme path=/api/x method=POST size=5 a=b")
	f.Fuzz(func(t *testing.T, src []byte) {
		s, err := Parse("fuzz.yaml", src)
		if (s == nil) == (err == nil) {
			t.Fatal("want a set or an error")
		}
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		for i, v := range s.Variants() {
			if err := v.Policy.Validate(); err != nil || v.Index != i {
				t.Fatalf("%s: %v", v.ID, err)
			}
		}
		again, err := Parse("fuzz.yaml", src)
		if err != nil || len(again.Variants()) != len(s.Variants()) {
			t.Fatalf("the second time: %v", err)
		}
		for i, v := range s.Variants() {
			if again.Variants()[i].ID != v.ID {
				t.Fatalf("identity changes: %q and %q", v.ID, again.Variants()[i].ID)
			}
		}
		s.Match("", request, nil, nil)
		s.Match("edge", request[:2], nil, nil)
	})
}
