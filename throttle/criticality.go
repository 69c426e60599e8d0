package throttle

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Criticality says how much is lost when a request is not served. The zero value is [Default].
type Criticality uint8

// The classes, as Google's SRE book has them. A request of a lower class is refused or evicted
// before one of a higher class.
const (
	Default       Criticality = iota // nothing is said: as SheddablePlus
	Sheddable                        // some are expected to fail, such as batch work that is tried again
	SheddablePlus                    // short outages are expected
	Critical                         // users see the failure
	CriticalPlus                     // the most serious: a failure is seen by many
)

var names = [...]string{"default", "sheddable", "sheddable_plus", "critical", "critical_plus"}

// String returns the name, such as "critical_plus".
func (c Criticality) String() string {
	if int(c) < len(names) {
		return names[c]
	}
	return "criticality " + strconv.Itoa(int(c))
}

// ParseCriticality returns the class of a name, in lower or upper case: critical_plus, critical,
// sheddable_plus, sheddable, or not_critical, which is sheddable. The empty name is Default.
func ParseCriticality(name string) (Criticality, error) {
	if name == "" {
		return Default, nil
	}
	for c := Sheddable; c <= CriticalPlus; c++ {
		if strings.EqualFold(name, names[c]) {
			return c, nil
		}
	}
	if strings.EqualFold(name, "not_critical") {
		return Sheddable, nil
	}
	return Default, fmt.Errorf("throttle: unknown criticality %.40q, want critical_plus, critical, sheddable_plus or sheddable", name)
}

// orDefault is c, with nothing said read as it is meant.
func (c Criticality) orDefault() Criticality {
	if c == Default {
		return SheddablePlus
	}
	return c
}

// Levels is how many levels each class has. Inside a class a request of a lower level is refused
// or evicted first.
const Levels = 128

// LevelOf returns the level of a user from 0 to 127, by a hash that is the same in every process
// and version, so that every server sheds the same users. The empty user has level 0: who does
// not say who it is, is shed first.
func LevelOf(user string) uint8 {
	if user == "" {
		return 0
	}
	h := uint64(14695981039346656037) // FNV-1a
	for i := range len(user) {
		h = (h ^ uint64(user[i])) * 1099511628211
	}
	// The high bits of FNV hardly depend on the last bytes: mix, as MurmurHash3 does at its end.
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return uint8(h >> 57)
}

// Header is the HTTP header field that carries an Importance from server to server; in lower
// case it is the key of gRPC metadata.
const Header = "X-Criticality"

// Importance is a class, and perhaps a level inside it. The zero value says nothing.
type Importance struct {
	Criticality Criticality
	Level       uint8 // 0 to 127, if HasLevel
	HasLevel    bool
}

// String returns i as a structured field item (RFC 9651), such as "critical;level=42".
func (i Importance) String() string {
	s := i.Criticality.String()
	if i.HasLevel {
		s += ";level=" + strconv.Itoa(int(i.Level))
	}
	return s
}

// ParseImportance reads what [Importance.String] writes. Unknown parameters are ignored, so that
// a later version may add some; a level that is no integer from 0 to 127 is an error. The empty
// text says nothing.
func ParseImportance(field string) (Importance, error) {
	name, params, _ := strings.Cut(strings.Trim(field, " "), ";")
	c, err := ParseCriticality(name)
	i := Importance{Criticality: c}
	if err != nil || params == "" {
		return i, err
	}
	if c == Default {
		return Importance{}, errors.New("throttle: a criticality is missing before the parameters, want for example critical;level=42")
	}
	for param := range strings.SplitSeq(params, ";") {
		key, value, _ := strings.Cut(strings.TrimLeft(param, " "), "=")
		if key != "level" {
			continue
		}
		level, err := strconv.ParseUint(value, 10, 8)
		if err != nil || level >= Levels {
			return Importance{}, fmt.Errorf("throttle: level %.20q of a criticality is no integer from 0 to %d", value, Levels-1)
		}
		i.Level, i.HasLevel = uint8(level), true
	}
	return i, nil
}

// FromStranger returns what i is worth from a peer that is not trusted, where the door's class
// is door: it may lower itself and no more. Its class is at most the door's, which is also that of
// one that says nothing, and a level counts only in a class below.
func (i Importance) FromStranger(door Criticality) Importance {
	door = door.orDefault()
	if i.Criticality == Default || i.Criticality >= door {
		return Importance{Criticality: door}
	}
	return i
}
