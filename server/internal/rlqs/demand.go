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
	fell     bool       // the latest report fell
	asked    float64    // what is demanded: above rate while it rises and is denied, below while it falls
}

// longestMean is how many reports the mean is of. Not more: a slow drift has to be followed. Not fewer:
// what is demanded in error is missing elsewhere.
const longestMean = 8

// minSpan is the shortest time that a rate is measured in. Reports that come sooner are added to the
// next one.
const minSpan = 500 * time.Millisecond

// longestSpan is the longest time in which fewer requests than before show that the load fell. Envoy reports each 5 s, so
// it stood still in a longer one.
const longestSpan = 8 * time.Second

// report takes note of what was requested in span, and returns whether that was more than before.
func (d *demand) report(requests, denied uint64, span time.Duration) bool {
	n, seconds := float64(requests), span.Seconds()
	now := n / seconds
	// The number of random arrivals varies by its square root. What is within three of that is taken
	// for the same rate, and averaged.
	noise := 3 * math.Sqrt(max(d.rate*seconds, 1)) / seconds
	before, sharp := d.measured, math.Abs(now-d.rate) > 1.5*noise
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
	rose, fell := !d.known || now > before+noise, d.known && now < before-noise
	if d.known && sharp && (rose && !d.rose && denied > 0 || fell && !d.fell) {
		// It changed within the span, so it differs more now than the mean of the span shows. In the middle of a
		// report interval the mean has half of the change. The span after that has all of it.
		d.asked = max(0, now+(now-before))
	}
	d.known, d.measured, d.rose, d.fell = true, now, rose, fell
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
