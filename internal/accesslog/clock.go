package accesslog

import (
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
)

// clock reads times. It keeps the last one, since neighbours in a log often have the same.
type clock struct {
	text   string
	at     limit.Time
	coarse bool

	date     string // of the last time, as the log writes it
	dayStart int64  // the seconds since the epoch at which that day began in UTC
	dateSet  bool
}

// parse reads a time of any of these forms. coarse says that it is a whole second, by its form.
//
//	02/Jan/2006:15:04:05 -0700
//	2006-01-02T15:04:05.999999999Z, with an offset, or with a space and without an offset, which is UTC
//	1136214245.123, and whole seconds, milliseconds, microseconds or nanoseconds since the epoch
func (c *clock) parse(s string) (at limit.Time, coarse, ok bool) {
	if len(s) < 9 || len(s) > 64 {
		return 0, false, false
	}
	if s == c.text {
		return c.at, c.coarse, true
	}
	switch {
	case len(s) > 11 && s[2] == '/' && s[6] == '/':
		at, ok = c.common(s)
		coarse = true
	case s[4] == '-':
		at, coarse, ok = c.iso(s)
	default:
		at, coarse, ok = epoch(s)
	}
	if ok {
		c.text, c.at, c.coarse = s, at, coarse
	}
	return at, coarse, ok
}

const months = "JanFebMarAprMayJunJulAugSepOctNovDec"

// common reads 02/Jan/2006:15:04:05 -0700.
func (c *clock) common(s string) (limit.Time, bool) {
	if len(s) != 26 || s[11] != ':' || s[20] != ' ' {
		return 0, false
	}
	if !c.dateSet || c.date != s[:11] {
		m := strings.Index(months, s[3:6])
		day, ok1 := digits(s[0:2])
		year, ok2 := digits(s[7:11])
		if m < 0 || m%3 != 0 || !ok1 || !ok2 || !c.setDate(s[:11], year, int64(m/3+1), day) {
			return 0, false
		}
	}
	of, ok := daytime(s[12:20])
	offset, ok2 := zone(s[21:])
	if !ok || !ok2 {
		return 0, false
	}
	return limit.Time((c.dayStart + of - offset) * int64(time.Second)), true
}

// iso reads 2006-01-02T15:04:05.999Z and its like.
func (c *clock) iso(s string) (at limit.Time, coarse, ok bool) {
	if len(s) < 19 || s[7] != '-' || s[10] != 'T' && s[10] != ' ' {
		return 0, false, false
	}
	if !c.dateSet || c.date != s[:10] {
		year, ok1 := digits(s[0:4])
		month, ok2 := digits(s[5:7])
		day, ok3 := digits(s[8:10])
		if !ok1 || !ok2 || !ok3 || !c.setDate(s[:10], year, month, day) {
			return 0, false, false
		}
	}
	of, ok := daytime(s[11:19])
	if !ok {
		return 0, false, false
	}
	rest, nanos := s[19:], int64(0)
	coarse = true
	if rest != "" && (rest[0] == '.' || rest[0] == ',') {
		n := 1
		for unit := int64(1e8); n < len(rest) && rest[n] >= '0' && rest[n] <= '9'; n++ {
			nanos += int64(rest[n]-'0') * unit
			unit /= 10
		}
		if n == 1 {
			return 0, false, false
		}
		rest, coarse = rest[n:], false
	}
	offset := int64(0)
	if rest != "" && rest != "Z" && rest != "z" {
		if offset, ok = zone(strings.TrimPrefix(rest, " ")); !ok {
			return 0, false, false
		}
	}
	return limit.Time((c.dayStart+of-offset)*int64(time.Second) + nanos), coarse, true
}

// setDate notes the beginning of a day. Years are those that nanoseconds since the epoch can hold.
func (c *clock) setDate(text string, year, month, day int64) bool {
	if year < 1970 || year > 2261 || month < 1 || month > 12 || day < 1 || day > 31 {
		return false
	}
	t := time.Date(int(year), time.Month(month), int(day), 0, 0, 0, 0, time.UTC)
	if t.Day() != int(day) {
		return false
	}
	c.date, c.dayStart, c.dateSet = text, t.Unix(), true
	return true
}

// daytime reads 15:04:05.
func daytime(s string) (int64, bool) {
	h, ok1 := digits(s[0:2])
	m, ok2 := digits(s[3:5])
	sec, ok3 := digits(s[6:8])
	ok := ok1 && ok2 && ok3 && s[2] == ':' && s[5] == ':' && h < 24 && m < 60 && sec <= 60
	return h*3600 + m*60 + sec, ok
}

// zone reads -0700 and -07:00, as seconds.
func zone(s string) (int64, bool) {
	if len(s) == 6 && s[3] == ':' {
		h, ok1 := digits(s[1:3])
		m, ok2 := digits(s[4:6])
		return signed(s[0], h*3600+m*60, ok1 && ok2)
	}
	if len(s) != 5 {
		return 0, false
	}
	hm, ok := digits(s[1:5])
	return signed(s[0], hm/100*3600+hm%100*60, ok)
}

func signed(sign byte, n int64, ok bool) (int64, bool) {
	switch sign {
	case '+':
		return n, ok
	case '-':
		return -n, ok
	}
	return 0, false
}

// digits reads up to eighteen digits.
func digits(s string) (n int64, ok bool) {
	if s == "" || len(s) > 18 {
		return 0, false
	}
	for i := range len(s) {
		d := s[i] - '0'
		if d > 9 {
			return 0, false
		}
		n = n*10 + int64(d)
	}
	return n, true
}

// epoch reads a number since the epoch. Without a fraction its size says what it counts: times are
// from 1973 on.
func epoch(s string) (at limit.Time, coarse, ok bool) {
	whole, fraction, cut := strings.Cut(s, ".")
	n, ok := wholeNumber(whole)
	if !ok {
		return 0, false, false
	}
	unit := int64(1)
	switch {
	case n < 1e8:
		return 0, false, false
	case n < 9_200_000_000:
		unit = int64(time.Second)
	case cut:
		return 0, false, false
	case n < 9_200_000_000_000:
		unit = int64(time.Millisecond)
	case n < 9_200_000_000_000_000:
		unit = int64(time.Microsecond)
	}
	at = limit.Time(n * unit)
	if !cut {
		return at, unit == int64(time.Second), true
	}
	if fraction == "" {
		return 0, false, false
	}
	scale := int64(1e8)
	for i := range len(fraction) {
		d := fraction[i] - '0'
		if d > 9 {
			return 0, false, false
		}
		at += limit.Time(int64(d) * scale)
		scale /= 10
	}
	return at, false, true
}

// wholeNumber reads a number of at most nineteen digits that fits in 63 bits.
func wholeNumber(s string) (int64, bool) {
	if len(s) <= 18 {
		return digits(s)
	}
	n, err := strconv.ParseUint(s, 10, 63)
	return int64(n), err == nil
}

// shortNumber reads a status; 0 for anything else.
func shortNumber(s string) int64 {
	if len(s) != 3 {
		return 0
	}
	n, _ := digits(s)
	return n
}

// unit is that of a duration.
type unit uint8

const (
	anyUnit unit = iota // seconds with a fraction, milliseconds without
	seconds
	milliseconds
)

// longestTook bounds a duration: a year.
const longestTook = int64(365 * 24 * time.Hour)

// parseTook reads a duration: a number, or one with a unit such as 12ms.
func parseTook(s string, u unit) (int64, bool) {
	if last := s[len(s)-1]; last >= 'a' && last <= 'z' {
		d, err := time.ParseDuration(s)
		return int64(d), err == nil && d >= 0 && int64(d) <= longestTook
	}
	whole, fraction, cut := strings.Cut(s, ".")
	n, ok := digits(whole)
	scale := int64(time.Second)
	if u == milliseconds || u == anyUnit && !cut {
		scale = int64(time.Millisecond)
	}
	if !ok || n > longestTook/scale {
		return 0, false
	}
	n *= scale
	for i := range len(fraction) {
		d := fraction[i] - '0'
		if d > 9 {
			return 0, false
		}
		scale /= 10
		n += int64(d) * scale
	}
	return n, true
}
