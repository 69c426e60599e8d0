// Package reader understands what a server says about its limits, in the header fields that
// package answer writes and in the older ones of others.
//
// It decides nothing. What a server says is bounded: fields of more than 8 KiB and what follows
// the sixteenth limit are not read, and no wait is longer than [Longest]. What cannot be understood
// is left out; one broken field does not spoil another.
package reader

import (
	"cmp"
	"maps"
	"math"
	"net/http"
	"slices"
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

	// maxNumber bounds the text of a number or a date.
	maxNumber = 64

	// epoch is the number of seconds above which a wait is a date. Not smaller: a wait of 31
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

// Read returns what the header fields of an answer say at now, by the wall clock. Names count whatever
// their case, so that gRPC metadata can be given as it is.
//
// A wait is what Retry-After, X-RateLimit-Retry-After, Retry-After-Ms and others that end so say; of
// several the longest. It is a number of seconds (or milliseconds) with or without a fraction, a
// duration such as 6m0s, an HTTP date or an RFC 3339 time. A number of a billion and more is a date in
// seconds, one a thousand times as large in milliseconds. Dates are compared with the server's own, to which
// the Age of a cached answer is added.
//
// Of the limits the RateLimit field of the IETF's draft, versions 7 to 11, goes first. Otherwise they
// are what fields with RateLimit or Rate-Limit in their names say remains, and when it is reset, in the
// forms that a wait has. Such a limit is named by the rest of the names, as "tokens" is in
// X-RateLimit-Remaining-Tokens and Anthropic-RateLimit-Tokens-Remaining, or by X-RateLimit-Resource or
// -Bucket, or not at all. Of those without a name RateLimit-Remaining counts before others.
func Read(h http.Header, now time.Time) (s Standing) {
	var lines []string
	families := map[family]map[kind][]string{}
	server := func() time.Time { // what the server's clock says
		d, err := http.ParseTime(h.Get("Date"))
		if err != nil {
			return now
		}
		age, _ := when(h.Get("Age"), time.Second, func() time.Time { return now }) // of a cache's answer
		return d.Add(age)
	}
	for name, values := range h {
		name = strings.ToLower(name)
		unit := time.Second
		before, isMillis := strings.CutSuffix(name, "-ms")
		if isMillis {
			unit = time.Millisecond
		}
		switch {
		case name == "ratelimit":
			lines = append(lines, values...)
		case strings.HasSuffix(before, "retry-after"):
			if d, ok := wait(values, unit, server); ok {
				s.RetryAfter, s.Wait = max(s.RetryAfter, d), true
			}
		default:
			f, what := familyOf(name)
			if what == "" || families[f] == nil && len(families) == maxQuotas {
				continue
			}
			if families[f] == nil {
				families[f] = map[kind][]string{}
			}
			families[f][what] = values
		}
	}
	if len(lines) > 0 {
		if s.Quotas = list(lines); len(s.Quotas) == 0 {
			s.Quotas = one(lines)
		}
	}
	if len(s.Quotas) == 0 {
		s.Quotas = quotas(families, server)
	}
	return s
}

// wait reads a time to wait: the longest of all values, each of which may be a list.
func wait(values []string, unit time.Duration, now func() time.Time) (longest time.Duration, ok bool) {
	for _, text := range values[:min(len(values), maxQuotas)] {
		if len(text) > maxText {
			continue
		}
		d, known := when(text, unit, now)
		if !known { // a date has a comma of its own
			for part := range strings.SplitSeq(text, ",") {
				if one, is := when(part, unit, now); is {
					d, known = max(d, one), true
				}
			}
		}
		if known {
			longest, ok = max(longest, d), true
		}
	}
	return longest, ok
}

// when reads one time to wait, or the moment of its end.
func when(text string, unit time.Duration, now func() time.Time) (time.Duration, bool) {
	if text = strings.TrimSpace(text); text == "" || len(text) > maxNumber {
		return 0, false
	}
	until := func(t time.Time) (time.Duration, bool) { return min(max(t.Sub(now()), 0), Longest), true }
	if n, fraction, ok := decimal(text); ok {
		switch {
		case unit == time.Second && n >= epochMillis:
			return until(time.UnixMilli(min(n, math.MaxInt64/2)).Add(time.Duration(fraction / 1000)))
		case unit == time.Second && n >= epoch:
			return until(time.Unix(n, fraction))
		case n >= int64(Longest/unit):
			return Longest, true
		default:
			return min(time.Duration(n)*unit+time.Duration(fraction)*unit/time.Second, Longest), true
		}
	}
	if d, err := time.ParseDuration(text); err == nil && text[0] != '-' {
		return min(d, Longest), true
	}
	if t, err := http.ParseTime(text); err == nil {
		return until(t)
	}
	for _, layout := range [...]string{time.RFC3339, time.RFC1123Z} {
		if t, err := time.Parse(layout, text); err == nil {
			return until(t)
		}
	}
	return 0, false
}

// family is a limit by the names of its fields.
type family struct{ vendor, policy string }

// The kinds of fields that a family has. Of a limit whose reset is told in both ways the time from now
// counts, which depends on no clock.
const (
	remaining  kind = "remaining"
	reset      kind = "reset"
	resetAfter kind = "reset-after"
	resource   kind = "resource"
)

type kind string

// familyOf takes a name such as x-ratelimit-remaining-tokens apart; "" = it says nothing of a limit.
func familyOf(name string) (f family, k kind) {
	if len(name) > maxName {
		return f, ""
	}
	for _, stem := range [...]string{"ratelimit-", "rate-limit-"} {
		vendor, rest, ok := strings.Cut(name, stem)
		if !ok || vendor != "" && !strings.HasSuffix(vendor, "-") {
			continue
		}
		if rest == "resource" || rest == "bucket" {
			return family{vendor: vendor}, resource
		}
		for _, k := range [...]kind{remaining, resetAfter, reset} { // reset-after before reset
			rest := "-" + rest + "-"
			if before, after, ok := strings.Cut(rest, "-"+string(k)+"-"); ok {
				return family{vendor, strings.Trim(before+"-"+after, "-")}, k
			}
		}
	}
	return f, ""
}

// quotas returns the limits of families that say what remains, in the order of their names.
func quotas(families map[family]map[kind][]string, now func() time.Time) (list []Quota) {
	order := slices.SortedFunc(maps.Keys(families), func(a, b family) int {
		return cmp.Or(strings.Compare(a.policy, b.policy), strings.Compare(a.vendor, b.vendor))
	})
	for _, f := range order {
		fields := families[f]
		left, ok := least(fields[remaining])
		if !ok {
			continue
		}
		q := Quota{Policy: f.policy, Remaining: left, Reset: limit.Never}
		if name := fields[resource]; f.policy == "" && len(name) > 0 {
			q.Policy = cut(strings.TrimSpace(name[0]))
		}
		if slices.ContainsFunc(list, func(other Quota) bool { return other.Policy == q.Policy }) {
			continue
		}
		for _, k := range [...]kind{resetAfter, reset} {
			if d, ok := wait(fields[k], time.Second, now); ok {
				q.Reset = d
				break
			}
		}
		list = append(list, q)
	}
	return list
}

// least reads what remains: the smallest of all values. Below nothing is nothing. Parameters, as in
// 76;w=21600, are left out.
func least(values []string) (n int64, ok bool) {
	for _, text := range values[:min(len(values), maxQuotas)] {
		if len(text) > maxText {
			continue
		}
		for part := range strings.SplitSeq(text, ",") {
			part, _, _ = strings.Cut(part, ";")
			part = strings.TrimSpace(part)
			positive, negative := strings.CutPrefix(part, "-")
			one, _, is := decimal(positive)
			if !is {
				continue
			}
			if negative {
				one = 0
			}
			if !ok || one < n {
				n, ok = one, true
			}
		}
	}
	return n, ok
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

// decimal reads a number of at least 0, and its fraction in billionths, rounded up. A number that does not
// fit is the largest there is.
func decimal(text string) (n, fraction int64, ok bool) {
	whole, rest, _ := strings.Cut(text, ".")
	if len(text) > maxNumber || whole+rest == "" || strings.Trim(whole+rest, "0123456789") != "" {
		return 0, 0, false
	}
	n, err := strconv.ParseInt("0"+whole, 10, 64)
	if err != nil {
		return math.MaxInt64, 0, true
	}
	const places = 9
	more := strings.Trim(rest[min(len(rest), places):], "0") != ""
	rest = (rest + "000000000")[:places]
	fraction, _ = strconv.ParseInt(rest, 10, 64) // digits alone
	if more {
		fraction++
	}
	return n, fraction, true
}

func seconds(n int64) time.Duration {
	return time.Duration(min(n, int64(Longest/time.Second))) * time.Second
}

func cut(name string) string { return name[:min(len(name), maxName)] }
