package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// heartbeat is how often an instance announces itself. One that has not for three times as long
// is not counted.
const heartbeat = time.Second

// luaPresence keeps the set of instances at a prefix, each with the time of its last heartbeat,
// and returns their number.
const luaPresence = `
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
redis.call('ZADD', KEYS[1], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
redis.call('ZREMRANGEBYSCORE', KEYS[1], now + tonumber(ARGV[2]), '+inf') -- before the clock was set back
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])`

// maintain connects, then announces this instance and listens for refunds and resets of others,
// until the store closes.
func (s *Store) maintain() {
	if !s.connect() {
		return
	}
	s.wg.Go(s.listen)
	s.wg.Go(s.keepBans)
	name := fmt.Sprintf("%016x", rand.Uint64())
	b := s.laneOf(s.presenceKey())
	for {
		s.present(name, b.breaker)
		s.settleAll()
		if !s.wait(jitter(2 * heartbeat)) {
			return
		}
	}
}

// settleAll charges what was admitted without Redis, or part of it, at every server that answers.
func (s *Store) settleAll() {
	s.repaying.Lock()
	defer s.repaying.Unlock()
	for i := range s.lanes {
		if b := s.lanes[i].breaker; i == 0 || b != s.lanes[i-1].breaker {
			s.settle(b)
			s.repay(b)
		}
	}
}

// connect tries until there is a connection to a suitable server. It returns false when the
// store closed before.
func (s *Store) connect() bool {
	const longest = 2 * time.Second
	first := true
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, longest) {
		c, err := s.dial()
		if err == nil {
			if !s.meet(&c) {
				c.Close()
				return false
			}
			if first {
				close(s.tried)
			}
			return true
		}
		s.health.lost(s, err)
		if first {
			close(s.tried)
			first = false
		}
		if !s.wait(jitter(pause)) {
			return false
		}
	}
}

// meet makes c the client, unless the store is closed. What shares have decided until then is settled first, as
// after an outage.
func (s *Store) meet(c *rueidis.Client) bool {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return false
	}
	l := &s.localCharges
	l.mu.Lock()
	var opened []*breaker
	for key := range l.keys {
		if b := s.laneOf(key).breaker; !b.open.Load() {
			b.open.Store(true)
			b.key.Store(&key)
			opened = append(opened, b)
		}
	}
	s.client.Store(c)
	l.mu.Unlock()
	s.mu.Unlock()
	for _, b := range opened {
		s.health.opened(s, errConnecting)
		if !s.start(b.probe) {
			s.stats.open.Add(-1)
		}
	}
	s.health.found(s)
	return true
}

func (s *Store) dial() (rueidis.Client, error) {
	c, err := newClient(s.ctx, s.opts)
	if err != nil {
		return nil, describe(err, s.opts)
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	defer cancel()
	if _, err := inspect(ctx, c); err != nil {
		c.Close()
		return nil, describe(err, s.opts)
	}
	if err := probe(ctx, c, s.presenceKey()); forbidden(err) {
		c.Close()
		return nil, describe(err, s.opts)
	}
	return c, nil
}

// forbidden reports whether the user may not run the script or its commands.
func forbidden(err error) bool {
	e, ok := rueidis.IsRedisErr(err)
	return ok && (strings.HasPrefix(e.Error(), "NOPERM") || strings.HasPrefix(e.Error(), "The user executing the script"))
}

func (s *Store) presenceKey() string { return s.opts.Prefix + formatVersion + "{instances}" }

// present announces this instance and reads how many there are. Without requests this is also
// how a lost connection is noticed.
func (s *Store) present(name string, b *breaker) {
	if b.open.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.opts.Timeout)
	defer cancel()
	asked := s.clock()
	c := *s.client.Load()
	ttl := fmt.Sprint(3 * heartbeat.Milliseconds())
	n, err := c.Do(ctx, c.B().Eval().Script(luaPresence).Numkeys(1).Key(s.presenceKey()).Arg(name, ttl).Build()).AsInt64()
	if err != nil {
		if infrastructure(err) {
			b.failed(describe(err, s.opts), asked, s.presenceKey())
		}
		return
	}
	now := s.clock()
	b.succeeded(now)
	if s.presence.answered(asked, now) || n >= s.instances.Load() {
		s.instances.Store(n)
	}
}

// presence is the state of the heartbeats, on the store's clock.
type presence struct {
	contact int64 // since when they are answered
	heard   int64 // when the last one was answered
}

// answered records that a heartbeat was answered. It returns whether other instances, had they
// been cut off as well, have had the time to announce themselves again: before that, a smaller
// number of instances than before is not used.
func (p *presence) answered(asked, now int64) (enough bool) {
	const lost = 3 * int64(heartbeat)
	if asked-p.heard > lost {
		p.contact = asked
	}
	p.heard = now
	return asked-p.contact >= lost
}

// channel is the channel on which refunds and resets of keys are published.
func (s *Store) channel() string { return s.opts.Prefix + formatVersion + "freed" }

// listen handles refunds and resets of other instances. While it is not subscribed, refusals are
// not remembered.
func (s *Store) listen() {
	c := *s.client.Load()
	for pause := shortestPause; ; pause = min(2*pause, 10*longestPause) {
		began := time.Now()
		ctx := rueidis.WithOnSubscriptionHook(s.ctx, func(p rueidis.PubSubSubscription) {
			if p.Kind == "subscribe" {
				s.denials.listens(s.clock())
			} else {
				s.denials.deaf()
			}
		})
		// It returns when the connection is lost, or the ACL forbids it.
		err := c.Receive(ctx, c.B().Subscribe().Channel(s.channel()).Build(), func(m rueidis.PubSubMessage) {
			s.denials.hear(m.Message)
		})
		s.denials.deaf()
		if _, ok := rueidis.IsRedisErr(err); ok {
			s.health.odd(s, fmt.Errorf("cannot hear of refunds, so every refusal is asked for: %w", describe(err, s.opts)))
		}
		if time.Since(began) > 10*longestPause {
			pause = shortestPause
		}
		if !s.wait(jitter(pause)) {
			return
		}
	}
}
