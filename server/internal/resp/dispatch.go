package resp

import (
	"bytes"
	"fmt"
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
	now    bool // run at once within a block
}

// handlers are by the length of their names: to find one reads no text twice, and allocates nothing.
var handlers = func() (by [16][]handler) {
	for _, h := range [...]handler{
		{"MULTI", session, false, 0, 0, "", (*conn).multi, true},
		{"EXEC", session, false, 0, 0, "", (*conn).exec, true},
		{"DISCARD", session, false, 0, 0, "", (*conn).discard, true},
		{"RESET", session, true, 0, 0, "", (*conn).reset, true},
		{"QUIT", session, true, 0, MaxArguments, "", (*conn).leave, true},
		{"CL.THROTTLE", throttle, false, 4, 5, "key max_burst count period [quantity]", (*conn).throttle, false},
		{"GCRA", gcra, false, 4, 6, "key max_burst tokens_per_period period [TOKENS count]", (*conn).gcra, false},
		{"DEL", del, false, 1, MaxArguments, "key [key ...]", (*conn).del, false},
		{"RL.TAKE", take, false, 3, MaxArguments, "cost name value [name value ...]", (*conn).take, false},
		{"RL.PEEK", peek, false, 3, MaxArguments, "cost name value [name value ...]", (*conn).peek, false},
		{"RL.FINISH", finish, false, 3, MaxArguments, "permit name value [name value ...]", (*conn).finish, false},
		{"RL.RESERVE", reserving, false, 4, MaxArguments, "cost ttl_ms name value [name value ...] [CHARGE]", (*conn).reserve, false},
		{"RL.COMMIT", commit, false, 2, 2, "id actual", (*conn).commit, false},
		{"RL.RENEW", renew, false, 2, 3, "id used [ttl_ms]", (*conn).renew, false},
		{"RL.RELEASE", release, false, 1, 1, "id", (*conn).release, false},
		{"PING", session, false, 0, 1, "[text]", (*conn).ping, false},
		{"ECHO", session, false, 1, 1, "text", (*conn).echo, false},
		{"HELLO", session, true, 0, 7, "[2|3 [AUTH name token] [SETNAME name]]", (*conn).hello, false},
		{"AUTH", session, true, 1, 2, "[name] token", (*conn).auth, false},
		{"CLIENT", session, false, 1, MaxArguments, "SETNAME name | GETNAME | ID | SETINFO name value", (*conn).client, false},
		{"SELECT", session, false, 1, 1, "0", (*conn).choose, false},
		{"INFO", session, false, 0, MaxArguments, "", (*conn).info, false},
		{"COMMAND", session, false, 0, MaxArguments, "", (*conn).list, false},
		{"CONFIG", session, false, 1, MaxArguments, "GET name", (*conn).config, false},
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

// command answers one command.
func (c *conn) command(args [][]byte) {
	h := find(args[0])
	if c.block != nil && (h == nil || !h.now) {
		c.queue(h, args)
		return
	}
	if h == nil {
		c.strange(args)
		return
	}
	c.now = h.name
	how := failed
	if c.fits(h, args[1:]) {
		how = h.answer(c, args[1:])
	}
	c.figures.commands[h.kind][how].Add(1)
}

// fits reports whether the client may run a command with so many arguments, and answers if not.
func (c *conn) fits(h *handler, args [][]byte) bool {
	switch {
	case !h.open && !c.may():
		return false
	case len(args) < h.least || len(args) > h.most:
		c.w.fail("ERR wrong number of arguments for '" + h.name + "' command, want " + h.name + " " + h.usage)
		return false
	}
	return true
}

// strange answers a command that there is not. What only a browser sends ends the connection: a page must not spend
// limits by what it posts to this machine.
func (c *conn) strange(args [][]byte) {
	name := args[0]
	c.figures.commands[unknown][failed].Add(1)
	if len(args) == 3 && bytes.HasPrefix(args[2], []byte("HTTP/1")) {
		c.quit = true
		const text = "this port speaks the Redis protocol: stint answers HTTP at the address of --http\n"
		c.w.out = fmt.Appendf(c.w.out, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
		return
	}
	if same(name, "POST") || same(name, "HOST:") {
		c.quit = true
		c.w.fail("ERR this is no HTTP port: stint answers HTTP at the address of --http")
		return
	}
	if c.opts.Identities != nil && c.session == nil {
		c.may()
		return
	}
	c.w.fail(fmt.Sprintf("ERR unknown command %q: this is stint, which decides limits. It has CL.THROTTLE, GCRA, DEL, RL.TAKE, RL.PEEK, RL.FINISH, RL.RESERVE, RL.COMMIT, RL.RENEW, RL.RELEASE", name[:min(len(name), 32)]))
}
