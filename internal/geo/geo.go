// Package geo looks up the region and the autonomous system of an address in files of MaxMind's
// format. It reads a file whole and follows its changes; one that is broken leaves the last good one
// in use.
package geo

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync/atomic"

	"github.com/oschwald/maxminddb-golang/v2"

	"github.com/stint-io/stint/internal/address"
)

// Unknown is the region of an address that is in no database, as ISO 3166 leaves it to its users.
const Unknown = "ZZ"

// maxBytes bounds a file. The largest in use, of cities, have some 130 MB.
const maxBytes = 512 << 20

// Database is one file. It is safe for concurrent use; Open makes it.
type Database struct {
	path    string
	content atomic.Pointer[content]
	failed  atomic.Bool // the last reading
}

type content struct {
	raw    []byte
	reader *maxminddb.Reader
}

// Open reads a file. Its error says what is wrong with it.
func Open(path string) (*Database, error) {
	d := &Database{path: path}
	if _, err := d.Reload(); err != nil {
		return nil, err
	}
	return d, nil
}

// Path is where the file is.
func (d *Database) Path() string { return d.path }

// Good reports whether the last reading was successful.
func (d *Database) Good() bool { return !d.failed.Load() }

// Reload reads the file again, and reports whether it differs. After an error the former content
// stays in use.
func (d *Database) Reload() (changed bool, err error) {
	defer func() { d.failed.Store(err != nil) }()
	info, err := os.Stat(d.path)
	if err != nil {
		return false, fmt.Errorf("geo: %w", err)
	}
	if info.Size() > maxBytes {
		return false, fmt.Errorf("geo: %s has %d bytes, want at most %d", d.path, info.Size(), maxBytes)
	}
	raw, err := os.ReadFile(d.path)
	if err != nil {
		return false, fmt.Errorf("geo: %w", err)
	}
	if c := d.content.Load(); c != nil && bytes.Equal(c.raw, raw) {
		return false, nil
	}
	// What ends a file says what it has, so one that was cut is found here. Its tree is not walked: that of
	// a file that is broken elsewhere may be of any size. A lookup in it is bounded, and finds nothing.
	reader, err := maxminddb.OpenBytes(raw)
	if err != nil {
		return false, fmt.Errorf("geo: %s is no database of MaxMind's format, or is broken: %w", d.path, err)
	}
	d.content.Store(&content{raw, reader})
	return true, nil
}

var errNone = errors.New("none")

// lookup reads what the database has of an address at a path; nothing is changed where it has nothing there.
func (d *Database) lookup(addr netip.Addr, into any, path ...any) error {
	if d == nil {
		return errNone
	}
	c := d.content.Load()
	if c == nil || !addr.IsValid() {
		return errNone
	}
	found := c.reader.Lookup(address.Of(addr))
	if err := found.Err(); err != nil {
		return err
	}
	if !found.Found() {
		return errNone
	}
	return found.DecodePath(into, path...)
}

// Country returns the ISO code of the country of an address, such as DE; Unknown where the database does not say.
// A nil Database knows none.
func (d *Database) Country(addr netip.Addr) string {
	for _, path := range [...][]any{{"country", "iso_code"}, {"registered_country", "iso_code"}, {"country_code"}} {
		var code string
		if d.lookup(addr, &code, path...) == nil && plain(code) {
			return code
		}
	}
	return Unknown
}

// plain reports whether code looks like one: a file may say anything.
func plain(code string) bool {
	if len(code) < 2 || len(code) > 3 {
		return false
	}
	for _, c := range code {
		if c < 'A' || c > 'Z' {
			return false
		}
	}
	return true
}

// ASN returns the number of the autonomous system of an address, such as 64496; 0 where the database
// does not say. A nil Database knows none.
func (d *Database) ASN(addr netip.Addr) string {
	for _, path := range [...][]any{{"autonomous_system_number"}, {"asn"}} {
		var number uint32
		if d.lookup(addr, &number, path...) == nil && number != 0 {
			return strconv.FormatUint(uint64(number), 10)
		}
		var text string
		if d.lookup(addr, &text, path...) == nil {
			if n, err := strconv.ParseUint(text, 10, 32); err == nil {
				return strconv.FormatUint(n, 10)
			}
		}
	}
	return "0"
}
