package crossings

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
)

// maxWindows is how many windows of a key are remembered. Not fewer: what a server found before its store was
// away for a while comes late. Not more: each record has them.
const maxWindows = 8

// maxPending bounds the events of one key that are not delivered yet: those of all its windows.
const maxPending = maxWindows * kindCount

// pastAge is how much longer than its age an event is kept, so that whoever delivers finds it and says that it is
// dropped.
const pastAge = time.Hour

// version is that of the records' format. A record of a later version is left alone.
const version = 1

// state is the record of one key: what happened in its last windows, and the events of it that are not delivered.
// Both stand in one record, so that an event is noted and queued at once, or not at all.
type state struct {
	Version int      `json:"v"`
	Seq     uint64   `json:"seq"`
	Windows []window `json:"w"` // by end
	Pending []Event  `json:"p,omitempty"`
}

// window is what happened to the key in one window.
type window struct {
	End  limit.Time `json:"e"`
	Kept limit.Time `json:"k"` // when the record may forget it
	Had  Kinds      `json:"h"`
}

func decode(raw []byte) (s state, err error) {
	if raw == nil {
		return state{Version: version}, nil
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, fmt.Errorf("crossings: a record cannot be read: %w", err)
	}
	if s.Version > version {
		return s, fmt.Errorf("crossings: a record has version %d and this program knows %d: update it", s.Version, version)
	}
	return s, nil
}

func (s *state) encode() ([]byte, error) { return json.Marshal(s) }

// at returns the window that ends about then, which is a new one if none does: windows of one key end at least a
// period apart, and servers whose clocks differ by less than a half of it mean the same one. nil = it is older
// than all that is remembered.
func (s *state) at(end limit.Time, period time.Duration) *window {
	i, n := 0, len(s.Windows)
	for ; i < n; i++ {
		w := &s.Windows[i]
		if sameWindow(w.End, end, period) {
			return w
		}
		if w.End > end {
			break
		}
	}
	if i == 0 && n == maxWindows {
		return nil
	}
	if n == maxWindows {
		s.Windows = slices.Delete(s.Windows, 0, 1)
		i--
	}
	s.Windows = slices.Insert(s.Windows, i, window{End: end, Kept: end.Add(period)})
	return &s.Windows[i]
}

func sameWindow(a, b limit.Time, period time.Duration) bool {
	return time.Duration(max(a, b)-min(a, b)) < max(period/2, 1)
}

// forget drops windows that are over.
func (s *state) forget(now limit.Time) {
	s.Windows = slices.DeleteFunc(s.Windows, func(w window) bool { return w.Kept <= now })
}

// keep is how long the record is needed: its windows, and its events for as long as somebody may deliver them.
func (s *state) keep(now limit.Time, maxAge time.Duration) time.Duration {
	keep := time.Second
	for _, w := range s.Windows {
		keep = max(keep, time.Duration(w.Kept-now))
	}
	for i := range s.Pending {
		keep = max(keep, time.Duration(limit.At(s.Pending[i].Time).Add(maxAge+pastAge)-now))
	}
	return keep
}

// missing returns which of the kinds may happen in w and have not: a key is under again only what it was over.
func (w *window) missing(k Kinds) Kinds {
	k &^= w.Had
	if w.Had&Hard == 0 {
		k &^= Lifted
	}
	if w.Had&Soft == 0 {
		k &^= Eased
	}
	return k
}
