package configstore

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The bounds of what is kept.
const (
	// MaxBytes bounds a version as its record. Not larger: etcd takes 1.5 MiB by default. Not
	// smaller: some thousand limits fit.
	MaxBytes = 1 << 20

	// maxKept and maxKeptBytes bound the versions that are kept; the older ones are deleted. Not
	// more: the head lists them all, and each member reads it when it changes.
	maxKept      = 50
	maxKeptBytes = 16 << 20

	maxFiles   = 1000
	maxName    = 255
	maxAuthor  = 200
	maxMessage = 500
)

// File is one file of a configuration.
type File struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Meta says what a version is. The zero value is no version.
type Meta struct {
	Version uint64    `json:"version"`
	SHA256  string    `json:"sha256"` // of the names and texts of the files
	Bytes   int       `json:"bytes"`  // of the names and texts
	Limits  int       `json:"limits"`
	Author  string    `json:"author"`
	Message string    `json:"message,omitempty"`
	Time    time.Time `json:"time"`                     // UTC
	From    uint64    `json:"rolled_back_to,omitempty"` // the version whose content it repeats; 0 = none
}

// Same reports whether m and other are one version. The number alone does not say so where a
// register forgets writes.
func (m Meta) Same(other Meta) bool { return m.Version == other.Version && m.SHA256 == other.SHA256 }

// Version is a configuration that was pushed.
type Version struct {
	Meta
	Files []File `json:"files"`
}

// head is the record about the versions that are kept. The zero value has none.
type head struct {
	Versions []Meta `json:"versions"` // the latest last
}

func (h *head) latest() Meta {
	if len(h.Versions) == 0 {
		return Meta{}
	}
	return h.Versions[len(h.Versions)-1]
}

func (h *head) find(version uint64) (Meta, bool) {
	i := slices.IndexFunc(h.Versions, func(m Meta) bool { return m.Version == version })
	if i < 0 {
		return Meta{}, false
	}
	return h.Versions[i], true
}

// with returns the head after m, and what is not kept any more. The version before m is always kept,
// for a rollback.
func (h *head) with(m Meta) (next head, dropped []Meta) {
	all := append(slices.Clone(h.Versions), m)
	sum, first := 0, len(all)
	for first > 0 && len(all)-first < maxKept {
		if sum += all[first-1].Bytes; sum > maxKeptBytes && len(all)-first >= 2 {
			break
		}
		first--
	}
	return head{all[first:]}, all[:first]
}

// valid reports whether there are versions and they ascend, as in all heads that were written here.
func (h *head) valid() bool {
	before := uint64(0)
	for _, m := range h.Versions {
		if m.Version <= before {
			return false
		}
		before = m.Version
	}
	return before > 0
}

// digest is the sum of files. Lengths keep apart what would otherwise read the same.
func digest(files []File) string {
	h := sha256.New()
	part := func(s string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	for _, f := range files {
		part(f.Name)
		part(f.Text)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// encode returns v as a record, with its size in it.
func (v *Version) encode() ([]byte, error) {
	v.Bytes = 0
	for _, f := range v.Files {
		v.Bytes += len(f.Name) + len(f.Text)
	}
	text, err := marshal(v)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxBytes {
		return nil, &TooLarge{Bytes: len(text)}
	}
	return text, nil
}

// decode reads the record of the version that m names.
func decode(text []byte, m Meta) (Version, error) {
	var v Version
	if err := json.Unmarshal(text, &v); err != nil {
		return Version{}, &Damaged{m.Version, "cannot be read: " + err.Error()}
	}
	if sum := digest(v.Files); sum != m.SHA256 {
		return Version{}, &Damaged{m.Version, fmt.Sprintf("is not what was pushed: its sum is %.12s, not %.12s", sum, m.SHA256)}
	}
	v.Meta = m
	return v, nil
}

// marshal is JSON in which "<" stays "<".
func marshal(v any) ([]byte, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return []byte(b.String()), err
}

// check returns what is wrong with a draft.
func (d *Draft) check() error {
	if len(d.Files) == 0 || len(d.Files) > maxFiles {
		return fmt.Errorf("config: %d files, want 1 to %d", len(d.Files), maxFiles)
	}
	size := 0
	for _, f := range d.Files {
		if size += len(f.Name) + len(f.Text); size > MaxBytes {
			return &TooLarge{Bytes: size}
		}
		if f.Name == "" || len(f.Name) > maxName || !line(f.Name) {
			return fmt.Errorf("config: the name of a file is %q, want 1 to %d bytes of one line", f.Name, maxName)
		}
		if !utf8.ValidString(f.Text) {
			return fmt.Errorf("config: %s is not UTF-8", f.Name)
		}
	}
	if d.Author == "" || len(d.Author) > maxAuthor || !line(d.Author) {
		return fmt.Errorf("config: the author is %q, want 1 to %d bytes of one line", d.Author, maxAuthor)
	}
	if len(d.Message) > maxMessage || !line(d.Message) {
		return fmt.Errorf("config: the message has %d bytes, want at most %d, in one line", len(d.Message), maxMessage)
	}
	return nil
}

// line reports whether s is text of one line, which a terminal shows as it is.
func line(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 })
}
