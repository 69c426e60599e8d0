package resp

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/store"
)

// same reports whether a text is a word in capitals, in any case.
func same(text []byte, word string) bool {
	if len(text) != len(word) {
		return false
	}
	for i, c := range text {
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		if c != word[i] {
			return false
		}
	}
	return true
}

// wrong answers a value that is none.
func (c *conn) wrong(what string, got []byte, want string) outcome {
	c.w.fail(fmt.Sprintf("ERR %s is %q, want %s", what, got[:min(len(got), 32)], want))
	return failed
}

// number reads a whole number from 0 to most.
func (c *conn) number(what string, text []byte, least, most int64) (int64, bool) {
	n, ok := whole(text)
	if !ok || n < least || n > most {
		c.wrong(what, text, "a whole number from "+strconv.FormatInt(least, 10)+" to "+strconv.FormatInt(most, 10))
		return 0, false
	}
	return n, true
}

// whole reads a whole number that is not negative.
func whole(text []byte) (n int64, ok bool) {
	if len(text) == 0 || len(text) > 18 {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

const (
	mostCount  = 1e18 - 1
	mostPeriod = int64((1<<63 - 1) / time.Second)
)

// throttle is redis-cell's command.
func (c *conn) throttle(args [][]byte) outcome {
	burst, ok := c.number("max_burst", args[1], 0, mostCount)
	if !ok {
		return failed
	}
	count, ok := c.number("count", args[2], 1, mostCount)
	if !ok {
		return failed
	}
	period, ok := c.number("period", args[3], 1, mostPeriod)
	if !ok {
		return failed
	}
	cost := int64(1)
	if len(args) == 5 {
		if cost, ok = c.number("quantity", args[4], 0, mostCount); !ok {
			return failed
		}
	}
	return c.five(args[0], override.Terms{Burst: burst + 1, Count: count, Period: time.Duration(period) * time.Second}, cost)
}

// gcra is the command that Redis has merged and not released.
func (c *conn) gcra(args [][]byte) outcome {
	burst, ok := c.number("max_burst", args[1], 0, mostCount)
	if !ok {
		return failed
	}
	count, ok := c.number("tokens_per_period", args[2], 1, mostCount)
	if !ok {
		return failed
	}
	period, ok := seconds(args[3])
	if !ok {
		return c.wrong("period", args[3], "seconds above 0, such as 60 or 0.5")
	}
	cost := int64(1)
	switch {
	case len(args) == 5, len(args) == 6 && !same(args[4], "TOKENS"):
		c.w.fail("ERR syntax error, want TOKENS count after the period")
		return failed
	case len(args) == 6:
		if cost, ok = c.number("TOKENS", args[5], 0, mostCount); !ok {
			return failed
		}
	}
	return c.five(args[0], override.Terms{Burst: burst + 1, Count: count, Period: period}, cost)
}

// seconds reads a number of seconds, to the nanosecond.
func seconds(text []byte) (time.Duration, bool) {
	if n, ok := whole(text); ok {
		return time.Duration(n) * time.Second, 0 < n && n <= mostPeriod
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(f > 0 && f <= float64(mostPeriod)) {
		return 0, false
	}
	d := time.Duration(f * float64(time.Second))
	return d, d > 0
}

// five takes from a bucket and answers as redis-cell does.
func (c *conn) five(key []byte, t override.Terms, cost int64) outcome {
	if c.opts.Buckets == nil {
		c.w.fail("ERR " + c.opts.NoBuckets)
		return failed
	}
	v, err := c.opts.Buckets.Take(c.ctx, &c.call, key, t, cost)
	if err != nil {
		return c.fails(err)
	}
	c.w.five(&v, t.Burst)
	if v.Allowed {
		return allowed
	}
	return refused
}

// del drops buckets, so that their keys are as new.
func (c *conn) del(keys [][]byte) outcome {
	if c.opts.Buckets == nil {
		c.w.fail("ERR " + c.opts.NoBuckets)
		return failed
	}
	n := int64(0)
	for _, key := range keys {
		used, err := c.opts.Buckets.Reset(c.ctx, &c.call, key)
		if err != nil {
			return c.fails(err)
		}
		n += oneIf(used)
	}
	c.w.integer(n)
	return done
}

// fails answers an error of what was asked.
func (c *conn) fails(err error) outcome {
	switch {
	case errors.Is(err, engine.ErrBadRequest), errors.Is(err, reserve.ErrBad), errors.Is(err, override.ErrTerms):
		c.w.fail("ERR " + err.Error())
	case errors.Is(err, reserve.ErrUnknown):
		c.w.fail("NOTFOUND " + err.Error())
	case errors.Is(err, reserve.ErrSettled):
		c.w.fail("SETTLED " + err.Error())
	case errors.Is(err, store.ErrFull):
		c.w.fail("TRYAGAIN too many reservations are open: ask again later")
	default:
		c.w.fail("TRYAGAIN the store of the counters does not answer: ask again later")
	}
	return failed
}
