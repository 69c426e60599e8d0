// Package audit remembers who changed what and when: changes of customers, plans and counters that somebody
// made by hand. The notes live in a [store.Records], so all servers that share it have one list.
//
// It does not decide who may do what, and it does not know what the changes mean.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

const (
	// Table is the table of the notes.
	Table = "audit"
	// DefaultKeep is how long notes are kept: 400 days. Not shorter: a bill of the month is questioned
	// up to a year later. Not for ever: notes have names of persons.
	DefaultKeep = 400 * 24 * time.Hour
	// MaxText bounds each text of an entry, in bytes. Six of them, each byte escaped as six, fit into one record.
	MaxText = 1536
	// MaxPage bounds how many entries one call of [Log.List] returns.
	MaxPage = 1000
)

// Entry is one change.
type Entry struct {
	// ID names the entry. Note sets it.
	ID string `json:"id"`
	// At is when it was made. Note sets it.
	At time.Time `json:"at"`
	// Who made it: the identity of the caller, as far as it is known.
	Who string `json:"who"`
	// Action is a word such as "customer.set" or "key.grant".
	Action string `json:"action"`
	// What was changed, such as "customer acme".
	What string `json:"what"`
	// Before and After are what it was and what it became, as text; "" = nothing.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
	// Request is the ID of the request that asked for it; "" = it had none.
	Request string `json:"request,omitempty"`
}

// Log is the list of changes. It is safe for concurrent use. Make it with [New].
type Log struct {
	records store.Records
	now     func() limit.Time
	keep    time.Duration
}

// New returns the list that is kept in records. now is the clock; nil = the system's. keep is how long notes
// stay; 0 = [DefaultKeep].
func New(records store.Records, now func() limit.Time, keep time.Duration) *Log {
	if now == nil {
		now = func() limit.Time { return limit.At(time.Now()) }
	}
	if keep <= 0 {
		keep = DefaultKeep
	}
	return &Log{records, now, keep}
}

// Note adds an entry and returns it with its ID and time. Texts longer than [MaxText] are cut. An error that
// wraps [store.ErrUnavailable] says that it is unknown whether the entry stands.
func (l *Log) Note(ctx context.Context, e Entry) (Entry, error) {
	if e.Action == "" || e.What == "" {
		return e, errors.New("audit: an entry needs an action and what it changed")
	}
	for _, text := range []*string{&e.Who, &e.Action, &e.What, &e.Before, &e.After, &e.Request} {
		if len(*text) > MaxText {
			*text = strings.ToValidUTF8((*text)[:MaxText], "")
		}
	}
	for {
		now := l.now()
		// Later entries come first in the order of keys; the random end tells entries of one instant apart.
		e.ID = fmt.Sprintf("%016x%08x", math.MaxInt64-max(int64(now), 0), rand.Uint32())
		e.At = time.Unix(0, int64(now)).UTC()
		value, err := json.Marshal(e)
		if err != nil {
			return e, fmt.Errorf("audit: %w", err)
		}
		swapped, _, err := l.records.Swap(ctx, Table, e.ID, nil, value, l.keep)
		if err != nil {
			return e, fmt.Errorf("audit: the change of %.100s is not noted: %w", e.What, err)
		}
		if swapped {
			return e, nil
		}
	}
}

// List returns at most most entries behind after, the latest first, and where the next call goes on; "" at the
// end. after is "" or what the call before returned. what "" = all changes, else those of that thing alone.
func (l *Log) List(ctx context.Context, what, after string, most int) (list []Entry, next string, err error) {
	most = min(max(most, 1), MaxPage)
	for {
		found, err := l.records.Range(ctx, Table, "", after, MaxPage)
		if err != nil {
			return nil, "", fmt.Errorf("audit: %w", err)
		}
		for _, r := range found {
			after = r.Key
			var e Entry
			if json.Unmarshal(r.Value, &e) != nil || what != "" && e.What != what {
				continue // an unreadable note must not hide the others
			}
			if list = append(list, e); len(list) == most {
				return list, after, nil
			}
		}
		if len(found) < MaxPage {
			return list, "", nil
		}
	}
}
