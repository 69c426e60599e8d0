package resp

import (
	"strings"
	"time"

	"github.com/stint-io/stint/server/internal/access"
)

// This file has what clients say to a server before and between decisions.

func (c *conn) ok() outcome {
	c.w.simple("OK")
	return done
}

func (c *conn) ping(args [][]byte) outcome {
	if len(args) == 1 {
		return c.echo(args)
	}
	c.w.simple("PONG")
	return done
}

func (c *conn) echo(args [][]byte) outcome {
	c.w.bulk(string(args[0]))
	return done
}

func (c *conn) leave([][]byte) outcome {
	c.quit = true
	return c.ok()
}

// reset makes a connection as it was at its beginning.
func (c *conn) reset([][]byte) outcome {
	c.block, c.name, c.w.three = nil, "", false
	if c.session = c.first; c.session == nil && c.opts.Identities != nil {
		c.readBy(time.Now().Add(connectTime))
	}
	c.w.simple("RESET")
	return done
}

// hello says which protocol is spoken from now on, and who speaks.
func (c *conn) hello(args [][]byte) outcome {
	three := c.w.three
	if len(args) > 0 {
		switch string(args[0]) {
		case "2":
			three = false
		case "3":
			three = true
		default:
			c.w.fail("NOPROTO unsupported protocol version, want 2 or 3")
			return failed
		}
		args = args[1:]
	}
	name := c.name
	for len(args) > 0 {
		switch {
		case same(args[0], "AUTH") && len(args) >= 3:
			if !c.prove(args[1], args[2]) {
				return failed
			}
			args = args[3:]
		case same(args[0], "SETNAME") && len(args) >= 2:
			if !c.mayBeNamed(args[1]) {
				return failed
			}
			name, args = string(args[1]), args[2:]
		default:
			c.w.fail("ERR syntax error in HELLO, want HELLO [2|3 [AUTH name token] [SETNAME name]]")
			return failed
		}
	}
	if !c.may() {
		return failed
	}
	c.w.three, c.name = three, name
	c.w.pairs(7)
	c.w.bulk("server")
	c.w.bulk("stint")
	c.w.bulk("version")
	c.w.bulk(c.opts.Version)
	c.w.bulk("proto")
	c.w.integer(2 + oneIf(three))
	c.w.pair("id", c.id)
	c.w.bulk("mode")
	c.w.bulk("standalone")
	c.w.bulk("role")
	c.w.bulk("master")
	c.w.bulk("modules")
	c.w.array(0)
	return done
}

// auth takes a token, or a name and a token: the name is that of the identity, or default.
func (c *conn) auth(args [][]byte) outcome {
	name := []byte("default")
	if len(args) == 2 {
		name, args = args[0], args[1:]
	}
	if !c.prove(name, args[0]) {
		return failed
	}
	return c.ok()
}

func (c *conn) prove(name, token []byte) bool {
	if c.opts.Identities == nil {
		c.w.fail("ERR AUTH was sent, and this server asks nobody who he is: start it with --auth FILE, or send no token")
		return false
	}
	shown, err := access.TokenOf(string(token))
	if err == nil && string(name) != "default" {
		var id *access.Identity
		if id, err = c.opts.Identities.Identify(&shown); err == nil && id.Name != string(name) {
			err = access.ErrToken
		}
	}
	if err == nil {
		err = c.identify(shown)
	}
	if err != nil {
		c.figures.unauthenticated.Add(1)
		c.w.fail("WRONGPASS " + err.Error())
		return false
	}
	return true
}

// mayBeNamed holds names of connections to what a list of them can show.
func (c *conn) mayBeNamed(name []byte) bool {
	good := len(name) <= 128
	for _, b := range name {
		good = good && b > ' ' && b < 0x7f
	}
	if !good {
		c.w.fail("ERR the name of a connection has at most 128 visible characters and no spaces")
	}
	return good
}

func (c *conn) client(args [][]byte) outcome {
	switch {
	case same(args[0], "SETNAME") && len(args) == 2:
		if !c.mayBeNamed(args[1]) {
			return failed
		}
		c.name = string(args[1])
		return c.ok()
	case same(args[0], "GETNAME") && len(args) == 1:
		if c.name == "" {
			c.w.null()
		} else {
			c.w.bulk(c.name)
		}
		return done
	case same(args[0], "ID") && len(args) == 1:
		c.w.integer(c.id)
		return done
	case same(args[0], "SETINFO") && len(args) == 3, same(args[0], "NO-EVICT") && len(args) == 2, same(args[0], "NO-TOUCH") && len(args) == 2:
		return c.ok() // there is nothing to list, to evict or to touch
	case same(args[0], "TRACKING"):
		c.w.fail("ERR decisions are not cached: turn client side caching off")
		return failed
	}
	c.w.fail("ERR unknown subcommand of CLIENT, want SETNAME name, GETNAME, ID, or SETINFO name value")
	return failed
}

func (c *conn) choose(args [][]byte) outcome {
	if string(args[0]) != "0" {
		c.w.fail("ERR there are no databases but 0: put what tells them apart into the keys")
		return failed
	}
	return c.ok()
}

func (c *conn) info([][]byte) outcome {
	c.w.bulk(strings.Join([]string{"# Server", "server_name:stint", "stint_version:" + c.opts.Version, "redis_mode:standalone", "# Persistence", "loading:0", ""}, "\r\n"))
	return done
}

// list answers that there is no list: clients ask for hints only.
func (c *conn) list(args [][]byte) outcome {
	if len(args) > 0 && same(args[0], "COUNT") {
		c.w.integer(0)
		return done
	}
	c.w.array(0)
	return done
}

func (c *conn) config(args [][]byte) outcome {
	if same(args[0], "GET") {
		c.w.pairs(0)
		return done
	}
	c.w.fail("ERR the configuration is in the files of stint: see stint check")
	return failed
}
