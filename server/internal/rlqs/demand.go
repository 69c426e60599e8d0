package rlqs

import (
	"math"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// demand estimates how many requests per second a bucket is asked for, from usage reports. Its zero
// value knows nothing.
type demand struct {
	known    bool
	at       limit.Time // of the latest report
	rate     float64    // requests per second, smoothed
	same     int        // reports that rate is the mean of, at most longestMean
	measured float64    // by the latest report alone
	rose     bool       // the latest report rose
	asked    float64    // what is demanded: above rate while it rises and is denied
}

// longestMean is how many reports the mean is of. Not more: a slow drift has to be followed. Not fewer:
// what is demanded in error is missing elsewhere.
const longestMean = 8

// minSpan is the shortest time that a rate is measured in. Reports that come sooner are added to the
// next one.
const minSpan = 500 * time.Millisecond

// report takes note of what was requested in span, and returns whether that was more than before.
func (d *demand) report(requests, denied uint64, span time.Duration) (rose bool) {
	n, seconds := float64(requests), span.Seconds()
	now := n / seconds
	// The number of random arrivals varies by its square root. What is within three of that is taken
	// for the same rate, and averaged.
	noise := 3 * math.Sqrt(max(d.rate*seconds, 1)) / seconds
	before := d.measured
	switch {
	case !d.known || math.Abs(now-d.rate) > noise:
		d.rate, d.same = now, 0
	case d.same == 0:
		d.rate, d.same = now, 1 // it changed within the span before, so this is the first whole one
	default:
		d.same = min(d.same+1, longestMean)
		d.rate += (now - d.rate) / float64(d.same)
	}
	d.asked = d.rate
	if rose = !d.known || now > before+noise; denied > 0 && d.known && rose && !d.rose {
		// It rose within the span and was denied: it is higher now than the mean of the span. In the
		// middle of a report interval the mean is half of the rise. The span after that it has all of it.
		d.asked = now + (now - before)
	}
	d.known, d.measured, d.rose = true, now, rose
	return rose
}

// amount is the demand, of a limit with a rate. guess is what is demanded while nothing is known.
func (d *demand) amount(rate, guess fixed.Amount) fixed.Amount {
	if !d.known {
		return guess
	}
	a, err := fixed.AmountOf(d.asked)
	if err != nil {
		a = fixed.MaxAmount / 4
	}
	// A bucket without requests keeps a little: its next requests are decided before it can report.
	// And one with few has some room, since it is seldom measured well and costs the others little.
	return max(a+min(a/2, rate/idlePart), rate/idlePart, 1)
}

// idlePart is the part of a limit that a bucket without requests demands. Not more: a hundred idle
// Envoys would keep a noticeable part of the limit from the others. Not less: it would be no use.
const idlePart = 2048

// newPart is the part of a limit that a bucket demands before its first request has been followed by a
// report: a newcomer may have much load, or one request.
const newPart = 16
