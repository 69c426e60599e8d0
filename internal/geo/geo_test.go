package geo

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/maxmind/mmdbwriter"
	"github.com/maxmind/mmdbwriter/mmdbtype"
	"github.com/oschwald/maxminddb-golang/v2"
)

// database returns a file of MaxMind's format.
func database(t testing.TB, entries map[string]mmdbtype.Map) []byte {
	t.Helper()
	w, err := mmdbwriter.New(mmdbwriter.Options{DatabaseType: "Test", Description: map[string]string{"en": "test"}, IncludeReservedNetworks: true})
	if err != nil {
		t.Fatal(err)
	}
	for network, value := range entries {
		_, n, err := net.ParseCIDR(network)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Insert(n, value); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func country(code string) mmdbtype.Map {
	return mmdbtype.Map{"country": mmdbtype.Map{"iso_code": mmdbtype.String(code)}}
}

func write(t testing.TB, path string, raw []byte) {
	t.Helper()
	if err := os.WriteFile(path, raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestLookup(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.mmdb")
	write(t, path, database(t, map[string]mmdbtype.Map{
		"192.0.2.0/24":    country("DE"),
		"198.51.100.0/24": {"registered_country": mmdbtype.Map{"iso_code": mmdbtype.String("JP")}},
		"203.0.113.0/24":  {"country_code": mmdbtype.String("FR"), "autonomous_system_number": mmdbtype.Uint32(64496)},
		"2001:db8::/32":   {"country": mmdbtype.Map{"iso_code": mmdbtype.String("SE")}, "asn": mmdbtype.String("64511")},
		"10.0.0.0/8":      {"country": mmdbtype.Map{"iso_code": mmdbtype.String("de\n")}, "asn": mmdbtype.String("x")},
		"172.16.0.0/12":   {"country": mmdbtype.String("text"), "autonomous_system_number": mmdbtype.String("y")},
	}))
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string][2]string{
		"192.0.2.7": {"DE", "0"}, "::ffff:192.0.2.7": {"DE", "0"}, "198.51.100.1": {"JP", "0"}, "203.0.113.9": {"FR", "64496"},
		"2001:db8::1": {"SE", "64511"}, "10.1.2.3": {Unknown, "0"}, "172.16.0.1": {Unknown, "0"}, "8.8.8.8": {Unknown, "0"}, "::1": {Unknown, "0"},
	} {
		a := netip.MustParseAddr(addr)
		if got := [2]string{d.Country(a), d.ASN(a)}; got != want {
			t.Errorf("%s: %v, want %v", addr, got, want)
		}
	}
	var none *Database
	if none.Country(netip.MustParseAddr("192.0.2.7")) != Unknown || d.Country(netip.Addr{}) != Unknown || none.ASN(netip.Addr{}) != "0" {
		t.Error("nothing knows something")
	}
}

// A file that is broken, cut or gone leaves the former content in use.
func TestReload(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.mmdb")
	good := database(t, map[string]mmdbtype.Map{"192.0.2.0/24": country("DE")})
	write(t, path, good)
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddr("192.0.2.7")
	if changed, err := d.Reload(); changed || err != nil {
		t.Errorf("the same file: %v, %v", changed, err)
	}
	for name, raw := range map[string][]byte{"empty": {}, "text": []byte("hello"), "cut": good[:len(good)/2], "without its end": good[:len(good)-1]} {
		write(t, path, raw)
		if changed, err := d.Reload(); err == nil && name != "without its end" || changed && err != nil || err == nil == !d.Good() {
			t.Errorf("%s: changed %v, %v, good %v", name, changed, err, d.Good())
		}
		if d.Country(addr) != "DE" {
			t.Errorf("%s: the former content is gone", name)
		}
	}
	write(t, path, database(t, map[string]mmdbtype.Map{"192.0.2.0/24": country("AT")}))
	if changed, err := d.Reload(); !changed || err != nil || !d.Good() || d.Country(addr) != "AT" {
		t.Errorf("changed %v, %v, %s", changed, err, d.Country(addr))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Reload(); err == nil || d.Country(addr) != "AT" {
		t.Errorf("gone: %v", err)
	}
	if _, err := Open(path); err == nil {
		t.Error("a file that is not there was opened")
	}
}

// Any bytes are refused, or answer without a crash, and soon: files that were changed at random.
func TestBrokenFiles(t *testing.T) {
	good := database(t, map[string]mmdbtype.Map{"192.0.2.0/24": country("DE"), "2001:db8::/32": country("SE")})
	rng := seeding.Rand(t)
	for range 3000 {
		raw := bytes.Clone(good)
		for range 1 + rng.IntN(4) {
			raw[rng.IntN(len(raw))] ^= byte(1 + rng.IntN(255))
		}
		ask(raw)
	}
}

func FuzzDatabase(f *testing.F) {
	f.Add(database(f, map[string]mmdbtype.Map{"192.0.2.0/24": country("DE"), "2001:db8::/32": country("SE")}))
	f.Fuzz(func(_ *testing.T, raw []byte) { ask(raw) })
}

// ask looks some addresses up in a file of these bytes.
func ask(raw []byte) {
	var d Database
	if reader, err := maxminddb.OpenBytes(raw); err == nil {
		d.content.Store(&content{raw, reader})
		for _, a := range []string{"192.0.2.7", "2001:db8::1", "8.8.8.8"} {
			d.Country(netip.MustParseAddr(a))
			d.ASN(netip.MustParseAddr(a))
		}
	}
}
