package crossings

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/stint-io/stint/limit"
)

// Kind is what happened to a key. Kinds are bits: a [Kinds] is any of them.
type Kind uint8

// Kinds is a set of [Kind].
type Kinds = Kind

// The kinds, in the order in which one request causes them.
const (
	Soft      Kind = 1 << iota // used beyond the soft threshold
	Hard                       // the quota is used up
	Saturated                  // a request was refused, for the first time in the window
	Lifted                     // there is room again, after Hard
	Eased                      // not beyond the soft threshold any more, after Soft
)

// All are all kinds.
const All = Soft | Hard | Saturated | Lifted | Eased

// The words of events, as they are written in a limits file and in what is sent.
const (
	WordSoft, WordHard, WordUnder, WordSaturated = "soft", "hard", "under", "saturated"
)

// Words are the words of events.
func Words() []string { return []string{WordSoft, WordHard, WordUnder, WordSaturated} }

// Of returns the kinds that a word stands for; 0 for a word that is none.
func Of(word string) Kinds {
	switch word {
	case WordSoft:
		return Soft
	case WordHard:
		return Hard
	case WordUnder:
		return Lifted | Eased
	case WordSaturated:
		return Saturated
	}
	return 0
}

// word is that of a kind, and of which threshold a key is under again.
func (k Kind) word() (word, of string) {
	switch k {
	case Soft:
		return WordSoft, ""
	case Hard:
		return WordHard, ""
	case Saturated:
		return WordSaturated, ""
	case Lifted:
		return WordUnder, WordHard
	}
	return WordUnder, WordSoft
}

// Event is one crossing.
type Event struct {
	// Record is the same for all events of a key of a limit's counter.
	Record string
	// ID is the same whoever finds the event, and however often: the record, the window and the kind give it.
	ID string
	// Kind is soft, hard, under or saturated; Under says of which threshold, soft or hard.
	Kind, Under string
	// Seq counts the events of the key from 1, whichever server noted them.
	Seq uint64

	Limit string
	Key   []limit.Attribute
	// Time is when it happened, and WindowEnd when the window of the limit ends.
	Time, WindowEnd time.Time

	// Used is how much the key had used then, at most Quota; Nominal is what the limit is called by.
	Used, Quota, Nominal int64
	// Shadow says that the limit is not enforced.
	Shadow bool
}

// eventID returns the ID of an event: 22 characters of a hash, so that no two are the same by chance.
func eventID(record string, end limit.Time, k Kind) string {
	h := sha256.New()
	h.Write([]byte(record))
	h.Write(binary.BigEndian.AppendUint64([]byte{0, byte(k)}, uint64(end)))
	return "evt_" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)[:16])
}
