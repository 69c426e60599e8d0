// Package retrybudget bounds how much a client adds to the load by trying again.
//
// Three attempts for each request make three times the load of a server that refuses, when it can
// bear it least. With a budget of a tenth it is 1.1 times: each request pays a tenth of a retry
// into the budget, and each retry takes one.
package retrybudget

import (
	"fmt"

	"github.com/stint-io/stint/internal/fixed"
)

// Config says how many retries there may be. The zero value has the defaults.
type Config struct {
	// Percent is how many retries there may be for a hundred requests, 0 to 100; 0 = 10, and a
	// negative number is no retries at all. 10 is what the SRE book uses: fewer do not cover
	// the usual rate of faults, more are felt by a server that is full.
	Percent float64
	// Reserve is how many retries there may be beyond that, 0 to 1000, from the start on. With
	// 0, the default, the first nine requests of a client are not tried again, and the bound
	// holds for every client from its first request on.
	Reserve int
	// Most is how many unused retries are kept, 1 to 100,000; 0 = 100. Not more: after a quiet
	// hour they would all come in one minute. Not fewer: faults come together.
	Most int
}

// WithDefaults returns c with its defaults, or an error that names the value out of its range.
func (c Config) WithDefaults() (Config, error) {
	if c.Percent == 0 {
		c.Percent = 10
	}
	if c.Most == 0 {
		c.Most = 100
	}
	switch {
	case !(c.Percent <= 100): // also NaN
		return c, fmt.Errorf("retrybudget: Percent is %v, want at most 100", c.Percent)
	case c.Reserve < 0 || c.Reserve > 1000:
		return c, fmt.Errorf("retrybudget: Reserve is %d, want 0 to 1000", c.Reserve)
	case c.Most < 1 || c.Most > 100_000:
		return c, fmt.Errorf("retrybudget: Most is %d, want 1 to 100000", c.Most)
	}
	c.Percent = max(c.Percent, 0)
	return c, nil
}

// Budget counts retries. At any time there were at most Percent x requests + Reserve of them. It is
// not safe for concurrent use; New makes one.
type Budget struct{ left, each, most fixed.Amount }

// New returns a budget. c is what [Config.WithDefaults] returned.
func New(c Config) *Budget {
	return &Budget{
		left: fixed.Whole(int64(c.Reserve)),
		each: fixed.Amount(c.Percent * float64(fixed.Token/100)),
		most: fixed.Whole(int64(max(c.Most, c.Reserve))),
	}
}

// Request notes that a request was sent for the first time.
func (b *Budget) Request() { b.left = min(b.left+b.each, b.most) }

// Retry says whether a request may be sent again, and takes that retry.
func (b *Budget) Retry() bool {
	if b.left < fixed.Token {
		return false
	}
	b.left -= fixed.Token
	return true
}

// Return gives back a retry that was not sent.
func (b *Budget) Return() { b.left = min(b.left+fixed.Token, b.most) }
