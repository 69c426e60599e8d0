// Package reader understands what a server says about its limits, in the header fields that
// package answer writes and in the older ones of others.
//
// It decides nothing. What a server says is bounded: fields of more than 8 KiB and what follows
// the sixteenth limit are not read, and no wait is longer than [Longest]. What cannot be understood
// is left out; one broken field does not spoil another.
package reader

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/stint-io/stint/limit"
)

const (
	// Longest is the longest wait that is returned. What is above it means the same: not today.
	Longest = 365 * 24 * time.Hour

	// maxText bounds the text of a field. Not smaller: eight limits with long names take 2 KiB. Not
	// larger: a server could have each answer cost its client milliseconds.
	maxText = 8 << 10
	// maxQuotas bounds the limits that are read, for the same reason.
	maxQuotas = 16
	// maxName bounds names and partition keys in bytes: longer ones are cut.
	maxName = 128

	// epoch is the number of seconds above which a reset is a date. Not smaller: a wait of 31
	// years is none. Not larger: it is a date of 2001.
	epoch = 1_000_000_000
	// epochMillis is the same for dates in milliseconds.
	epochMillis = epoch * 1000
)

// Standing is what a server says about its limits. The zero value is that it says nothing.
type Standing struct {
	// RetryAfter is how long the server asks to wait, where Wait is true.
	RetryAfter time.Duration
	Wait       bool
	// Quotas are the limits that the request met.
	Quotas []Quota
}

// Quota is what is left of one limit.
type Quota struct {
	Policy    string        // its name; "" where the fields have none
	Partition string        // the partition key; "" = none
	Remaining int64         // at least 0
	Reset     time.Duration // until there is more; [limit.Never] = not known
}

// Read returns what the header fields of an answer say at now, by the wall clock.
//
// Retry-After is a number of seconds or an HTTP date, which is compared with the server's own
// Date. Where it is missing, the older field with X-RateLimit before it counts. Of the limits the RateLimit
// field of the IETF's draft, versions 7 to 11, goes first, then RateLimit-Remaining and -Reset of its earlier
// versions, then X-RateLimit-Remaining and -Reset, whose reset may be seconds or a date in seconds
// or milliseconds since 1970.
func Read(h http.Header, now time.Time) (s Standing) {
	server := func() time.Time { // what the server's clock says
		if d, err := http.ParseTime(h.Get("Date")); err == nil {
			return d
		}
		return now
	}
	for _, name := range []string{"Retry-After", "X-Ratelimit-Retry-After"} {
		if s.RetryAfter, s.Wait = wait(h.Get(name), server); s.Wait {
			break
		}
	}
	if lines := h["Ratelimit"]; len(lines) > 0 {
		if s.Quotas = list(lines); len(s.Quotas) == 0 {
			s.Quotas = one(lines)
		}
	}
	for _, prefix := range []string{"Ratelimit-", "X-Ratelimit-"} {
		if len(s.Quotas) > 0 {
			return s
		}
		if q, ok := plain(h, prefix, server); ok {
			s.Quotas = []Quota{q}
		}
	}
	return s
}

// wait reads the time that a refusal asks for.
func wait(text string, now func() time.Time) (time.Duration, bool) {
	if text = strings.TrimSpace(text); text == "" {
		return 0, false
	}
	if n, ok := digits(text); ok {
		return seconds(n), true
	}
	if len(text) > len(http.TimeFormat)+10 {
		return 0, false
	}
	t, err := http.ParseTime(text)
	if err != nil {
		return 0, false
	}
	return min(max(t.Sub(now()), 0), Longest), true
}

// list reads a RateLimit field: a list of limits, each a name with parameters.
func list(lines []string) []Quota {
	size := 0
	for _, line := range lines {
		size += len(line)
	}
	if size > maxText {
		return nil
	}
	members, err := httpsfv.UnmarshalList(lines)
	if err != nil {
		return nil
	}
	quotas := make([]Quota, 0, min(len(members), maxQuotas))
	for _, m := range members {
		item, ok := m.(httpsfv.Item)
		if !ok {
			continue
		}
		if q, ok := quota(item); ok && len(quotas) < maxQuotas {
			quotas = append(quotas, q)
		}
	}
	return quotas
}

// one reads a RateLimit field of draft 7: one limit, as limit, remaining and reset.
func one(lines []string) []Quota {
	if len(lines) > maxQuotas || len(strings.Join(lines, "")) > maxText {
		return nil
	}
	members, err := httpsfv.UnmarshalDictionary(lines)
	if err != nil {
		return nil
	}
	number := func(name string) (int64, bool) {
		m, _ := members.Get(name)
		item, _ := m.(httpsfv.Item)
		n, ok := item.Value.(int64)
		return n, ok && n >= 0
	}
	q := Quota{Reset: limit.Never}
	ok := false
	if q.Remaining, ok = number("remaining"); !ok {
		return nil
	}
	if n, ok := number("reset"); ok {
		q.Reset = seconds(n)
	}
	return []Quota{q}
}

func quota(item httpsfv.Item) (q Quota, ok bool) {
	switch name := item.Value.(type) {
	case string:
		q.Policy = cut(name)
	case httpsfv.Token:
		q.Policy = cut(string(name))
	default:
		return q, false
	}
	if q.Remaining, ok = integer(item, "r"); !ok {
		return q, false
	}
	q.Reset = limit.Never
	if t, ok := integer(item, "t"); ok {
		q.Reset = seconds(t)
	}
	if key, ok := item.Params.Get("pk"); ok {
		switch key := key.(type) {
		case []byte:
			q.Partition = cut(string(key))
		case string:
			q.Partition = cut(key)
		}
	}
	return q, true
}

// integer returns a parameter that is a number of at least 0.
func integer(item httpsfv.Item, name string) (int64, bool) {
	v, ok := item.Params.Get(name)
	if !ok {
		return 0, false
	}
	n, ok := v.(int64)
	return n, ok && n >= 0
}

// plain reads the fields with one number each.
func plain(h http.Header, prefix string, now func() time.Time) (Quota, bool) {
	remaining, ok := digits(strings.TrimSpace(h.Get(prefix + "Remaining")))
	if !ok {
		return Quota{}, false
	}
	q := Quota{Remaining: remaining, Reset: limit.Never}
	if n, ok := digits(strings.TrimSpace(h.Get(prefix + "Reset"))); ok {
		switch {
		case n >= epochMillis:
			q.Reset = min(max(time.UnixMilli(min(n, math.MaxInt64/2)).Sub(now()), 0), Longest)
		case n >= epoch:
			q.Reset = min(max(time.Unix(n, 0).Sub(now()), 0), Longest)
		default:
			q.Reset = seconds(n)
		}
	}
	return q, true
}

// digits reads a number without sign; one that does not fit is the largest there is.
func digits(text string) (int64, bool) {
	if text == "" || len(text) > 64 || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return math.MaxInt64, true
	}
	return n, true
}

func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(Longest/time.Second))) * time.Second
}

func cut(name string) string { return name[:min(len(name), maxName)] }
