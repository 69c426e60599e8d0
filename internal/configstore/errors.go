package configstore

import (
	"errors"
	"fmt"
	"time"
)

// ErrNone says that no configuration was pushed to this register, or not below this prefix.
var ErrNone = errors.New("config: there is no configuration")

// ErrUnchanged says that the latest version has the same content, so that none was made.
var ErrUnchanged = errors.New("config: the latest version has this content already")

// Conflict is the error of a push that came after another one.
type Conflict struct {
	After  uint64 // the version that the push was to replace
	Latest Meta   // the one that is there; zero = none
}

func (c *Conflict) Error() string {
	if c.Latest.Version == 0 {
		return fmt.Sprintf("config: conflict: version %d is not the latest, as there is none", c.After)
	}
	return fmt.Sprintf("config: conflict: version %d is not the latest: %s pushed version %d at %s; look at what it changed, and push again",
		c.After, c.Latest.Author, c.Latest.Version, c.Latest.Time.Format(time.RFC3339))
}

// Damaged says that a record is not what was written here.
type Damaged struct {
	Version uint64 // 0 = the head
	Why     string
}

func (d *Damaged) Error() string {
	if d.Version == 0 {
		return "config: the record " + headKey + " " + d.Why + "; delete it and push again"
	}
	return fmt.Sprintf("config: the record of version %d %s", d.Version, d.Why)
}

// NotKept says that there is no such version, or not any more.
type NotKept struct{ Version, Oldest, Latest uint64 }

func (n *NotKept) Error() string {
	return fmt.Sprintf("config: there is no version %d, kept are versions from %d to %d", n.Version, n.Oldest, n.Latest)
}

// TooLarge says that a version is above [MaxBytes].
type TooLarge struct{ Bytes int }

func (t *TooLarge) Error() string {
	return fmt.Sprintf("config: the configuration has %d bytes or more, want at most %d", t.Bytes, MaxBytes)
}
