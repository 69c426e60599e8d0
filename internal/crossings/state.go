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

// version is that of the records' format. A record of a later version is left alone.
const version = 1

// state is the record of one key: what happened in its last windows.
type state struct {
	Version int      `json:"v"`
	Seq     uint64   `json:"seq"`
	Windows []window `json:"w"` // by end
}

// window is what happened to the key in one window.
type window struct {
	End  limit.Time `json:"e"`
	Kept limit.Time `json:"k"` // when the record may forget it
	Had  Kinds      `json:"h"`
	// Notes has one for each kind. Records of earlier versions have none.
	Notes map[Kind]note `json:"n,omitempty"`
}

// note says which watcher noted an event, and as which event of the key.
type note struct {
	By  string `json:"b"`
	Seq uint64 `json:"s"`
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

// keep is how long the record is needed.
func (s *state) keep(now limit.Time) time.Duration {
	keep := time.Second
	for _, w := range s.Windows {
		keep = max(keep, time.Duration(w.Kept-now))
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

// add notes for the watcher by what of f has not happened in w before, and returns these kinds and the events that
// are the watcher's: what it adds, and what is tried and was noted by it in a write whose answer it did not get.
func (w *window) add(s *state, f *finding, by string, tried Kinds) (added Kinds, events []Event) {
	for i := range f.seen {
		at := &f.seen[i]
		if w.missing(at.kind) != 0 {
			if w.Notes == nil {
				w.Notes = make(map[Kind]note)
			}
			s.Seq++
			w.Notes[at.kind] = note{by, s.Seq}
			w.Had |= at.kind
			added |= at.kind
		} else if at.kind&tried == 0 || w.Notes[at.kind].By != by {
			continue
		}
		word, of := at.kind.word()
		events = append(events, Event{
			Record: f.record, ID: eventID(f.record, w.End, at.kind), Kind: word, Under: of, Seq: w.Notes[at.kind].Seq,
			Limit: f.name, Key: f.key, Time: time.Unix(0, int64(at.at)).UTC(), WindowEnd: windowEnd(w.End, f.period),
			Used: at.used, Quota: at.quota, Nominal: at.nominal, Shadow: at.shadow,
		})
	}
	return added, events
}

// windowEnd is the end of a window for people: the moment as this process knows it is a little off, by the time
// that the store took to answer.
func windowEnd(end limit.Time, period time.Duration) time.Time {
	t := time.Unix(0, int64(end)).UTC()
	if period >= time.Minute {
		return t.Round(time.Second)
	}
	return t
}
