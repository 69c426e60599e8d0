package resp

import (
	"math"
	"strconv"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/limit"
)

// writer collects the answers to a batch of commands.
type writer struct {
	out   []byte
	three bool // RESP3
}

func (w *writer) simple(text string) { w.out = append(append(append(w.out, '+'), text...), '\r', '\n') }

// fail answers an error; text begins with its code.
func (w *writer) fail(text string) {
	w.out = append(w.out, '-')
	for i := range len(text) {
		c := text[i]
		if c < ' ' || c == 0x7f {
			c = ' ' // an answer is one line
		}
		w.out = append(w.out, c)
	}
	w.out = append(w.out, '\r', '\n')
}

func (w *writer) head(kind byte, n int64) {
	w.out = append(strconv.AppendInt(append(w.out, kind), n, 10), '\r', '\n')
}

func (w *writer) integer(n int64) {
	if 0 <= n && n <= 9 {
		w.out = append(w.out, ':', byte('0'+n), '\r', '\n')
		return
	}
	w.head(':', n)
}

func (w *writer) array(n int) { w.head('*', int64(n)) }

// pairs begins n pairs of a name and a value: a map, in RESP2 an array.
func (w *writer) pairs(n int) {
	if w.three {
		w.head('%', int64(n))
		return
	}
	w.head('*', int64(2*n))
}

func (w *writer) bulk(text string) {
	w.head('$', int64(len(text)))
	w.out = append(append(w.out, text...), '\r', '\n')
}

func (w *writer) null() {
	if w.three {
		w.out = append(w.out, "_\r\n"...)
		return
	}
	w.out = append(w.out, "$-1\r\n"...)
}

func (w *writer) pair(name string, n int64) { w.bulk(name); w.integer(n) }

// five answers as redis-cell does: times are in seconds, rounded up.
func (w *writer) five(v *limit.Verdict, most int64) {
	w.out = append(w.out, "*5\r\n"...)
	retry := int64(-1)
	if !v.Allowed && v.RetryAfter != limit.Never {
		retry = roundUp(v.RetryAfter, time.Second)
	}
	w.integer(oneIf(!v.Allowed))
	w.integer(most)
	w.integer(v.Remaining)
	w.integer(retry)
	w.integer(roundUp(v.ResetAfter, time.Second))
}

func oneIf(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

func roundUp(d, unit time.Duration) int64 {
	n := int64(d / unit)
	if d%unit > 0 {
		n++
	}
	return n
}

// millis is a wait in milliseconds, rounded up; -1 = never.
func millis(d time.Duration) int64 {
	if d == limit.Never {
		return -1
	}
	return roundUp(d, time.Millisecond)
}

// decision answers what the limits of the file say: the limit that refuses, or the one that has the least left.
func (w *writer) decision(d *limit.Decision) {
	r := d.Refused()
	if r == nil {
		r = d.Tightest()
	}
	warned := warnings(d)
	n := 8
	for _, more := range []bool{d.Permit != 0, !d.Allowed, len(d.Tags) > 0, warned > 0} {
		n += int(oneIf(more))
	}
	a := d.Action
	if a == nil || d.Allowed {
		a = &limit.Action{}
	}
	for _, more := range []bool{a.Location != "", a.HasBody, a.HasBody, len(a.Header) > 0} {
		n += int(oneIf(more))
	}
	w.pairs(n)
	w.bulk("allowed")
	w.integer(oneIf(d.Allowed))
	w.bulk("limit")
	if r == nil {
		w.null() // no limit applies
		r = &limit.Result{Quota: math.MaxInt64, Verdict: limit.Verdict{Allowed: true, Remaining: math.MaxInt64}}
	} else {
		w.bulk(r.Limit)
	}
	w.pair("quota", r.Quota)
	w.pair("remaining", r.Remaining)
	retry := int64(-1)
	if !d.Allowed {
		retry = millis(d.RetryAfter())
	}
	w.pair("retry_after_ms", retry)
	w.pair("reset_after_ms", millis(r.ResetAfter))
	w.pair("delay_ms", millis(d.Delay))
	w.bulk("reason")
	if d.Allowed {
		w.null()
	} else {
		w.bulk(r.Reason.String())
	}
	if d.Permit != 0 {
		w.pair("permit", int64(d.Permit))
	}
	if !d.Allowed {
		w.pair("status", int64(answer.Status(d)))
	}
	if a.Location != "" {
		w.bulk("location")
		w.bulk(a.Location)
	}
	if a.HasBody {
		w.bulk("body")
		w.bulk(a.Body)
		w.bulk("content_type")
		w.bulk(a.ContentType)
	}
	if len(a.Header) > 0 {
		w.bulk("header")
		w.attributes(a.Header)
	}
	if len(d.Tags) > 0 {
		w.bulk("tags")
		w.attributes(d.Tags)
	}
	if warned > 0 {
		w.bulk("warning")
		w.array(warned)
		for i := range d.Results {
			if r := &d.Results[i]; r.Soft {
				w.bulk(r.Limit)
			}
		}
	}
}

// attributes answers an array of names and values, one behind the other.
func (w *writer) attributes(list []limit.Attribute) {
	w.array(2 * len(list))
	for _, a := range list {
		w.bulk(a.Name)
		w.bulk(a.Value)
	}
}

// warnings counts the limits that are used beyond their soft threshold.
func warnings(d *limit.Decision) (n int) {
	for i := range d.Results {
		if d.Results[i].Soft {
			n++
		}
	}
	return n
}
