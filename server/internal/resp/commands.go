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

// handler answers a command; args are those after its name. It returns how the command ended.
type handler struct {
	name   string
	kind   command
	open   bool // to those who have not said who they are
	least  int  // arguments
	most   int
	usage  string
	answer func(c *conn, args [][]byte) outcome
}

// handlers are by the length of their names: to find one reads no text twice, and allocates nothing.
var handlers = func() (by [16][]handler) {
	for _, h := range [...]handler{
		{"CL.THROTTLE", throttle, false, 4, 5, "key max_burst count period [quantity]", (*conn).throttle},
		{"GCRA", gcra, false, 4, 6, "key max_burst tokens_per_period period [TOKENS count]", (*conn).gcra},
		{"RL.TAKE", take, false, 3, MaxArguments, "cost name value [name value ...]", (*conn).take},
		{"RL.PEEK", peek, false, 3, MaxArguments, "cost name value [name value ...]", (*conn).peek},
		{"RL.FINISH", finish, false, 3, MaxArguments, "permit name value [name value ...]", (*conn).finish},
		{"RL.RESERVE", reserving, false, 4, MaxArguments, "cost ttl_ms name value [name value ...] [CHARGE]", (*conn).reserve},
		{"RL.COMMIT", commit, false, 2, 2, "id actual", (*conn).commit},
		{"RL.RENEW", renew, false, 2, 3, "id used [ttl_ms]", (*conn).renew},
		{"RL.RELEASE", release, false, 1, 1, "id", (*conn).release},
		{"PING", session, false, 0, 1, "[text]", (*conn).ping},
		{"ECHO", session, false, 1, 1, "text", (*conn).echo},
		{"HELLO", session, true, 0, 7, "[2|3 [AUTH name token] [SETNAME name]]", (*conn).hello},
		{"AUTH", session, true, 1, 2, "[name] token", (*conn).auth},
		{"QUIT", session, true, 0, MaxArguments, "", (*conn).leave},
		{"CLIENT", session, false, 1, MaxArguments, "SETNAME name | GETNAME | ID | SETINFO name value", (*conn).client},
		{"SELECT", session, false, 1, 1, "0", (*conn).choose},
		{"INFO", session, false, 0, MaxArguments, "", (*conn).info},
		{"COMMAND", session, false, 0, MaxArguments, "", (*conn).list},
		{"CONFIG", session, false, 1, MaxArguments, "GET name", (*conn).config},
	} {
		by[len(h.name)] = append(by[len(h.name)], h)
	}
	return by
}()

// find returns the handler of a name in any case; nil = there is none.
func find(name []byte) *handler {
	if len(name) >= len(handlers) {
		return nil
	}
	list := handlers[len(name)]
	for i := range list {
		if same(name, list[i].name) {
			return &list[i]
		}
	}
	return nil
}

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

// command answers one command.
func (c *conn) command(args [][]byte) {
	h := find(args[0])
	if h == nil {
		c.strange(args[0])
		return
	}
	args = args[1:]
	c.now = h.name
	how := failed
	switch {
	case !h.open && !c.may():
	case len(args) < h.least || len(args) > h.most:
		c.w.fail("ERR wrong number of arguments for '" + h.name + "' command, want " + h.name + " " + h.usage)
	default:
		how = h.answer(c, args)
	}
	c.server.figures.commands[h.kind][how].Add(1)
}

// strange answers a command that there is not. What only a browser sends ends the connection: a page must not spend
// limits by what it posts to this machine.
func (c *conn) strange(name []byte) {
	c.server.figures.commands[unknown][failed].Add(1)
	if same(name, "POST") || same(name, "HOST:") {
		c.quit = true
		c.w.fail("ERR this is no HTTP port: stint answers HTTP at the address of --http")
		return
	}
	if c.server.opts.Identities != nil && c.session == nil {
		c.may()
		return
	}
	c.w.fail(fmt.Sprintf("ERR unknown command %q: this is stint, which decides limits. It has CL.THROTTLE, GCRA, RL.TAKE, RL.PEEK, RL.FINISH, RL.RESERVE, RL.COMMIT, RL.RENEW, RL.RELEASE", name[:min(len(name), 32)]))
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
	if c.server.opts.Buckets == nil {
		c.w.fail("ERR " + c.server.opts.NoBuckets)
		return failed
	}
	v, err := c.server.opts.Buckets.Take(c.ctx, &c.call, key, t, cost)
	if err != nil {
		return c.fails(err)
	}
	c.w.five(&v, t.Burst)
	if v.Allowed {
		return allowed
	}
	return refused
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
