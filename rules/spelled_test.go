package rules

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A name is any printable ASCII text of up to 128 characters without a quote, a backslash and
// an exclamation mark, and without spaces at its ends.
func TestNamesOfLimits(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, c := range []struct {
		name string
		fine bool
	}{
		{"a", true},
		{"a b", true},
		{"~", true},
		{"#", true},
		{"a}b", true},
		{"]", true},
		{"0", true},
		{strings.Repeat("x", 128), true},
		{"", false},
		{" a", false},
		{"a ", false},
		{"a!", false},
		{`a"`, false},
		{`a\`, false},
		{"a\x7f", false},
		{"a\x1f", false},
		{"a\x01b", false},
		{"é", false},
		{strings.Repeat("x", 129), false},
	} {
		src := fmt.Sprintf("limits: [{name: %s, rate: 1/s}]\n", yamlQuote(c.name))
		s, err := Parse("test.yaml", []byte(src))
		if (err == nil) != c.fine || c.fine && s.Limits()[0].Name != c.name {
			t.Errorf("%q: %v", c.name, err)
		}
	}
}

// yamlQuote writes text so that YAML reads it as it is.
func yamlQuote(s string) string {
	var b strings.Builder
	for _, r := range s {
		switch {
		case r == '"', r == '\\':
			b.WriteString(`\` + string(r))
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return `"` + b.String() + `"`
}

// The condition of a limit is written so that it can be read back: what could be taken for
// something else is quoted, and nothing else is.
func TestConditionsAsText(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for value, want := range map[string]string{
		"": `""`, "a": "a", "/api/*": "/api/*", "a b": `"a b"`, "a=b": `"a=b"`, "a|b": `"a|b"`, `a"b`: `"a\"b"`, "a\nb": `"a\nb"`, "é": "é", "\u200b": `"\u200b"`, `a\b`: `a\b`,
	} {
		if got := quoteIfOdd(value); got != want {
			t.Errorf("%q is written %s, want %s", value, got, want)
		}
	}
	s := mustParse(t, `limits:
  - {name: a, match: {path: [/x, "/a b", /x], method: ""}, rate: 1/s}
  - {name: b, match: {path: /x}, when: "  request.size  >  1 ", rate: 1/s}
  - {name: c, when: "request.size > 1", rate: 1/s}
  - {name: d, rate: 1/s}
`)
	for i, want := range []string{`method="" path=/x|"/a b"|/x`, "path=/x when request.size > 1", "request.size > 1", ""} {
		if got := s.Limits()[i].Condition; got != want {
			t.Errorf("%s: %s, want %s", s.Limits()[i].Name, got, want)
		}
	}
}

// Overrides with the same condition are one, however it is written; others are apart.
func TestOverridesOfOneCondition(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"{user: [a, b]}", "{user: [b, a]}", true},
		{"{user: [a, a]}", "{user: a}", true},
		{"{user: a, tenant: b}", "{tenant: b, user: a}", true},
		{"{user: a}", "{user: b}", false},
		{"{user: a}", "{tenant: a}", false},
		{"{user: [a, b]}", "{user: a}", false},
		{"{user: 'a\"|\"b'}", "{user: [a, b]}", false},
		{"request.size > 1", "request.size > 1", true},
		{"request.size > 1", "request.size > 2", false},
		{"{user: 'a,b'}", "{user: a, tenant: b}", false},
	} {
		_, err := Parse("test.yaml", []byte(fmt.Sprintf("limits:\n  - {name: a, rate: 1/s, overrides: [{when: %s, rate: 2/s}, {when: %s, rate: 3/s}]}\n", c.a, c.b)))
		if c.same != (err != nil && strings.Contains(err.Error(), "is never reached")) || !c.same && err != nil {
			t.Errorf("%s and %s: %v", c.a, c.b, err)
		}
	}
}

// A key is shown as it is read: the values, of a long one the first 16 digits of its SHA-256,
// and each part is read exactly to its end.
func TestKeysAsText(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	l := &Limit{Key: []string{"a", "ip", "c"}, ipv6: 56}
	longest, long := strings.Repeat("x", maxLiteral), strings.Repeat("x", maxLiteral+1)
	sum := sha256.Sum256([]byte(long))
	digits := hex.EncodeToString(sum[:])[:16]
	part := func(value string) []byte { return appendPart(nil, value) }
	address := func(value string) []byte { return appendAddress(nil, value, 56) }
	for _, c := range []struct {
		parts [][]byte
		want  string
	}{
		{nil, ""},
		{[][]byte{part("")}, `a=""`},
		{[][]byte{part("v")}, `a="v"`},
		{[][]byte{part(longest)}, `a="` + longest + `"`},
		{[][]byte{part(long)}, "a=sha256:" + digits},
		{[][]byte{part("v"), address("192.0.2.7"), part("w")}, `a="v" ip=192.0.2.7 c="w"`},
		{[][]byte{part(long), address("2001:db8:1:2ff::9"), {tagMissing}}, "a=sha256:" + digits + " ip=2001:db8:1:200::/56 c=(missing)"},
		{[][]byte{part("v"), part("nonsense"), part("w"), part("more")}, `a="v" ip="nonsense" c="w" ="more"`},
	} {
		var key []byte
		for _, p := range c.parts {
			key = append(key, p...)
		}
		if got := l.KeyText(key); got != c.want {
			t.Errorf("%q: %s, want %s", key, got, c.want)
		}
		if len(c.parts) > 0 {
			last := c.parts[len(c.parts)-1]
			if cut := key[:len(key)-1]; len(last) > 1 && !strings.HasSuffix(l.KeyText(cut), "(not a key of this limit)") {
				t.Errorf("%q, cut: %s", cut, l.KeyText(cut))
			}
		}
	}
	whole := &Limit{Key: []string{"ip"}, ipv6: 128}
	if got := whole.KeyText(appendAddress(nil, "2001:db8::9", 128)); got != "ip=2001:db8::9" {
		t.Errorf("a whole address: %s", got)
	}
}

// What a folder holds besides limit files is passed over: other files, hidden ones, and
// folders, whatever they are called. A link counts as what it leads to.
func TestFilesOfAFolder(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	dir := t.TempDir()
	elsewhere := filepath.Join(t.TempDir(), "text")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(dir, "b.yaml"), "limits: [{name: b, rate: 1/s}]\n")
	write(filepath.Join(dir, "a.yml"), "limits: [{name: a, rate: 1/s}]\n")
	write(filepath.Join(dir, "yaml"), "nonsense")
	write(filepath.Join(dir, "c.yaml.bak"), "nonsense")
	write(filepath.Join(dir, ".d.yaml"), "nonsense")
	write(elsewhere, "limits: [{name: linked, rate: 1/s}]\n")
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "e.yaml"), 0o700), os.Symlink(elsewhere, filepath.Join(dir, "f.yaml")), os.Symlink(dir, filepath.Join(dir, "g.yml"))); err != nil {
		t.Fatal(err)
	}
	s, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, l := range s.Limits() {
		names = append(names, l.Name)
	}
	if fmt.Sprint(names) != "[a b linked]" {
		t.Errorf("loaded %v", names)
	}
	if err := os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "h.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "h.yaml") {
		t.Errorf("a link to nothing: %v", err)
	}
}

// Match appends to what it is given, for requests of Envoy's rules too: whatever is found, the
// keys that were there before stay in the scratch, and with room nothing is allocated.
func TestMatchAppends(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, `domain: edge
descriptors:
  - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: path
    value: /x
    descriptors:
      - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
`)
	for request, found := range map[string]int{"": 0, "user=u": 1, "path=/x": 0, "path=/y": 0, "path=/x user=u": 1, "path=/x user=u more=m": 0, "user=u more=m": 0, "other=o": 0} {
		for _, domain := range []string{"edge", "", "other"} {
			before := []Matched{{Skip: 9}}
			dst, scratch := s.MatchAll(domain, attrs(request), attrs(request), before, []byte("before"))
			want := found
			if domain != "edge" {
				want = 0
			}
			if len(dst) != 1+want || dst[0].Skip != 9 || !strings.HasPrefix(string(scratch), "before") || (len(scratch) > len("before")) != (want > 0) {
				t.Errorf("%s, %q: %d found, scratch %q", domain, request, len(dst)-1, scratch)
			}
		}
		list, dst, scratch := attrs(request), make([]Matched, 0, 4), make([]byte, 0, 256)
		var kept []byte
		if n := testing.AllocsPerRun(50, func() { _, kept = s.Match("edge", list, dst, scratch) }); n > 0 || cap(kept) != cap(scratch) {
			t.Errorf("%q: %v allocations, %d bytes of room of %d come back", request, n, cap(kept), cap(scratch))
		}
	}
}

// A share is read to the hundredth of a percent, and nothing that is not a share is.
func TestPercentages(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for text, want := range map[string]int{
		"0%": 0, "1%": 100, "80%": 8000, "100%": 10000, "0.5%": 50, "0.05%": 5, "99.99%": 9999, "100.00%": 10000, "007%": 700, "12.3 %": 1230,
		"100.01%": -1, "101%": -1, "0.001%": -1, ".5%": -1, "5.%": -1, "%": -1, "-1%": -1, "80": -1, "0.8": -1, "80%%": -1, "1000%": -1, "0001%": -1, "8_0%": -1, "a%": -1,
	} {
		s, err := Parse("test.yaml", []byte("limits: [{name: a, rate: 1/s, enforce: \""+text+"\"}]\n"))
		switch {
		case want < 0 && err == nil:
			t.Errorf("%s is read as %d", text, s.Limits()[0].EnforcePermyriad)
		case want >= 0 && (err != nil || s.Limits()[0].EnforcePermyriad != want):
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The share of keys for which a limit is enforced is that of the file, evenly over keys, and
// another for each limit.
func TestShareOfKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const keys = 100_000
	both, each, tens := 0, [2]int{}, [10]int{}
	salts := [2]uint64{hashName("a"), hashName("b")}
	for i := range keys {
		key := appendPart(nil, fmt.Sprint(i))
		a, b := permyriad(salts[0], key), permyriad(salts[1], key)
		if a < 0 || a > 9999 || permyriad(salts[0], key) != a {
			t.Fatalf("%d", a)
		}
		tens[a/1000]++
		if a < 2500 {
			each[0]++
		}
		if b < 2500 {
			each[1]++
		}
		if a < 2500 && b < 2500 {
			both++
		}
	}
	near := func(n int, share float64) bool {
		return float64(n) > (share-0.01)*keys && float64(n) < (share+0.01)*keys
	}
	if !near(each[0], 0.25) || !near(each[1], 0.25) || !near(both, 0.0625) {
		t.Errorf("a quarter of two limits: %v, both %d of %d keys", each, both, keys)
	}
	for i, n := range tens {
		if !near(n, 0.1) {
			t.Errorf("the tenth %d has %d of %d keys", i, n, keys)
		}
	}
	// Hosts that do not know of each other enforce it for the same keys.
	for key, want := range map[string]int{"": 8315, "x": 6340, "user": 4903} {
		if got := permyriad(hashName("a"), []byte(key)); got != want {
			t.Errorf("%q: %d, want %d", key, got, want)
		}
	}
}
