package redis

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// commands are those that a user must be allowed to run, besides HELLO and AUTH, which are
// always allowed. args are what they are tried with; KEY is a key that holds a text and CHANNEL
// a channel.
//
// Those that create a key of another type fail on that text, having passed the ACL.
var commands = []struct {
	name string
	args []string
}{
	{"PING", nil},
	{"ASKING", nil}, // in a Cluster
	{"TIME", nil},
	{"EVAL", []string{"return 1", "1", "KEY"}},
	{"EVALSHA", []string{sha("return 1"), "1", "KEY"}},
	{"SET", []string{"KEY", "1", "PX", "10000"}},
	{"GET", []string{"KEY"}},
	{"MGET", []string{"KEY"}},
	{"LINDEX", []string{"KEY", "0"}},
	{"LLEN", []string{"KEY"}},
	{"LPUSH", []string{"KEY", "1"}},
	{"LRANGE", []string{"KEY", "0", "0"}},
	{"LSET", []string{"KEY", "0", "1"}},
	{"LTRIM", []string{"KEY", "0", "0"}},
	{"RPUSH", []string{"KEY", "1"}},
	{"HDEL", []string{"KEY", "f"}},
	{"HGET", []string{"KEY", "f"}},
	{"HMGET", []string{"KEY", "f"}},
	{"HSET", []string{"KEY", "f", "1"}},
	{"SADD", []string{"KEY", "m"}},
	{"SMEMBERS", []string{"KEY"}},
	{"SREM", []string{"KEY", "m"}},
	{"WAIT", []string{"0", "0"}},
	{"ZADD", []string{"KEY", "1", "m"}},
	{"ZCARD", []string{"KEY"}},
	{"ZRANGE", []string{"KEY", "0", "0"}},
	{"ZRANGEBYLEX", []string{"KEY", "-", "+"}},
	{"ZSCORE", []string{"KEY", "1"}},
	{"ZRANGEBYSCORE", []string{"KEY", "0", "0"}},
	{"ZREM", []string{"KEY", "m"}},
	{"ZREMRANGEBYSCORE", []string{"KEY", "0", "0"}},
	{"PEXPIRE", []string{"KEY", "10000"}},
	{"PUBLISH", []string{"CHANNEL", "1"}},
	{"DEL", []string{"KEY"}},
}

// creators are commands that leave a key where there was none.
var creators = []string{"LPUSH", "RPUSH", "HSET", "SADD", "ZADD"}

// permissions tries every command, and then a script. Every key that it writes has a unique name
// and expires.
func (e *examination) permissions(ctx context.Context, c rueidis.Client) error {
	lacking, err := e.missing(ctx, c)
	if err != nil {
		return err
	}
	if len(lacking) > 0 {
		e.add("acl", Bad, "the user lacks "+strings.Join(lacking, " "),
			"ACL SETUSER "+cmp.Or(e.o.Username, "default")+" "+strings.Join(lacking, " "))
		return nil
	}
	e.add("acl", Good, "the user may do all that is needed", "")
	return e.scripts(ctx, c)
}

// name returns a name for a key or a channel of this examination.
func (e *examination) name() string { return e.o.Prefix + "doctor:" + rand.Text() }

// missing returns what the user may not do, as ACL SETUSER would give it.
func (e *examination) missing(ctx context.Context, c rueidis.Client) ([]string, error) {
	name := e.name()
	missing, err := e.try(ctx, c, name, func(command string) bool { return command == "SET" || command == "DEL" })
	if err != nil {
		return nil, err
	}
	// Without SET there is no key, so these commands would create one, and without DEL it would
	// never be deleted.
	careful := len(missing) == 2
	missing, err = e.try(ctx, c, name, func(command string) bool {
		return !(careful && slices.Contains(creators, command)) && (command != "ASKING" || e.o.Topology == Cluster)
	})
	if err != nil {
		return nil, err
	}
	more, err := e.subscribe(ctx, c, name)
	if err != nil {
		return nil, err
	}
	missing = append(missing, more...)
	slices.Sort(missing)
	return slices.Compact(missing), nil
}

// try runs the wanted commands in one pipeline and returns the permissions that the user lacks
// for them.
func (e *examination) try(ctx context.Context, c rueidis.Client, name string, wanted func(string) bool) ([]string, error) {
	var tried, missing []string
	var batch rueidis.Commands
	for _, command := range commands {
		if !wanted(command.name) {
			continue
		}
		args := slices.Clone(command.args)
		for i, a := range args {
			if a == "KEY" || a == "CHANNEL" {
				args[i] = name
			}
		}
		tried = append(tried, command.name)
		batch = append(batch, c.B().Arbitrary(command.name).Args(args...).Build())
	}
	for i, r := range c.DoMulti(ctx, batch...) {
		if err := r.NonRedisError(); err != nil {
			return nil, err
		}
		if err := r.Error(); deniedByACL(err) {
			missing = append(missing, e.permission(tried[i], err))
		}
	}
	return missing, nil
}

// subscribe returns the permissions that the user lacks to subscribe to a channel.
func (e *examination) subscribe(ctx context.Context, c rueidis.Client, channel string) ([]string, error) {
	waiting, cancel := context.WithTimeout(ctx, 2*connectTime)
	defer cancel()
	heard := rueidis.WithOnSubscriptionHook(waiting, func(rueidis.PubSubSubscription) { cancel() })
	err := c.Receive(heard, c.B().Subscribe().Channel(channel).Build(), func(rueidis.PubSubMessage) {})
	switch {
	case deniedByACL(err):
		return []string{e.permission("SUBSCRIBE", err)}, nil
	case ctx.Err() == nil && errors.Is(waiting.Err(), context.Canceled):
		return nil, nil
	}
	return nil, err
}

// deniedByACL reports whether err says that an ACL forbids the command.
func deniedByACL(err error) bool {
	var answer *rueidis.RedisError
	return errors.As(err, &answer) && strings.HasPrefix(answer.Error(), "NOPERM")
}

// permission returns the missing permission as ACL SETUSER takes it: the command, the keys or
// the channels.
func (e *examination) permission(command string, err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "keys"):
		return "~" + e.o.Prefix + "*"
	case strings.Contains(text, "channel"):
		return "&" + e.o.Prefix + "*"
	}
	return "+" + strings.ToLower(command)
}

// doctorScript does what the scripts of the store do: it writes, and writes again after it has
// read the time.
const doctorScript = `redis.call('SET', KEYS[1], ARGV[1], 'PX', 10000)
local t = redis.call('TIME')
local v = redis.call('GET', KEYS[1])
redis.call('DEL', KEYS[1])
return {v, t[1]}`

// scripts runs a script. In a Cluster it tries random keys until one is in a slot of this node,
// which refuses others.
func (e *examination) scripts(ctx context.Context, c rueidis.Client) error {
	const check = "scripts"
	// The odds of missing all slots of a master of 100 are one in ten million.
	const tries = 1600
	for range tries {
		reply, err := c.Do(ctx, c.B().Eval().Script(doctorScript).Numkeys(1).Key(e.name()).Arg("1").Build()).AsStrSlice()
		if refused, ok := rueidis.IsRedisErr(err); ok {
			if _, moved := refused.IsMoved(); moved && e.o.Topology == Cluster {
				continue
			}
		}
		switch {
		case err != nil:
			var answer *rueidis.RedisError
			if !errors.As(err, &answer) {
				return err
			}
			e.fail(check, err)
		case len(reply) != 2 || reply[0] != "1":
			e.add(check, Bad, fmt.Sprintf("a script that writes and reads answered %q", reply), "look what stands between here and the server")
		default:
			e.add(check, Good, "a script writes, reads and knows the time", "")
		}
		return nil
	}
	e.add(check, Warning, "no slots of this master were found: its scripts are not examined", "look at CLUSTER NODES")
	return nil
}

// roundTrip measures PINGs one after the other.
func (e *examination) roundTrip(ctx context.Context, c rueidis.Client) error {
	const count = 100
	took := make([]time.Duration, count)
	for i := range took {
		began := time.Now()
		if err := c.Do(ctx, c.B().Ping().Build()).Error(); err != nil && !deniedByACL(err) {
			return err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	e.pace(took[count/2], took[count-1], count)
	return nil
}

// pace judges round trips by how long a call may take.
func (e *examination) pace(median, worst time.Duration, count int) {
	text := fmt.Sprintf("median %v, worst %v of %d; a call may take %v", round(median), round(worst), count, e.o.Timeout)
	const advice = "move closer to the server, look what keeps it busy (SLOWLOG, LATENCY DOCTOR), or raise timeout in the URL"
	switch {
	case median > e.o.Timeout:
		e.add("round-trip", Bad, text, advice)
	case worst > e.o.Timeout/2:
		e.add("round-trip", Warning, text, advice)
	default:
		e.add("round-trip", Good, text, "")
	}
}

// round rounds a duration to about three digits.
func round(d time.Duration) time.Duration {
	for unit := time.Microsecond; ; unit *= 10 {
		if d < 1000*unit {
			return d.Round(unit)
		}
	}
}

// clock compares the clocks. Decisions go by the server's alone.
func (e *examination) clock(ctx context.Context, c rueidis.Client) error {
	began := time.Now()
	reply, err := c.Do(ctx, c.B().Time().Build()).AsIntSlice()
	took := time.Since(began)
	if deniedByACL(err) {
		return nil // permissions has reported it
	}
	if err != nil {
		return err
	}
	if len(reply) != 2 {
		e.add("clock", Bad, fmt.Sprintf("TIME answered %v", reply), "look what stands between here and the server")
		return nil
	}
	e.offset(time.Unix(reply[0], reply[1]*1000), began.Add(took/2), took)
	return nil
}

// offset judges the server's clock by ours, at a moment known to half of took.
func (e *examination) offset(server, own time.Time, took time.Duration) {
	ahead, way := server.Sub(own), "ahead of"
	if ahead < 0 {
		ahead, way = -ahead, "behind"
	}
	text := fmt.Sprintf("%v %s this machine, give or take %v; decisions go by the server's clock alone", round(ahead), way, round(took/2))
	if ahead > time.Second+took/2 {
		e.add("clock", Warning, text, "set both clocks by NTP: dates in logs and in Retry-After differ")
		return
	}
	e.add("clock", Good, text, "")
}
