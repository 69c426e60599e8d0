package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// A ban is in the state of its key, like what was counted. To list it, a sorted set for each limit
// that bans has the keys, by the time at which the ban ends:
//
//	stint:1:{bans:ID}
//
// The script cannot write it, as in a Cluster it is in another slot than the key. So the instance
// whose Take meets a ban for the first time adds it, after the answer; the first refusal by any
// other instance does the same, which mends an index that lost an entry when a process ended in
// between. Requests that are not refused cost nothing. The alternative, a SCAN for keys of bans,
// walks all keys of the server for each page, and reads the counters of all who were not banned.
//
// A list shows what the states say: entries whose ban has ended or was lifted are dropped.
type banIndex struct {
	notes chan note

	mu    sync.Mutex
	known map[string]int64 // by key of the state: when the ban ends that the index has
}

// note asks for an entry, or is a sync request.
type note struct {
	counters *Counters
	member   string // the key's values, as the key of the state has them
	key      string
	ends     int64         // microseconds
	done     chan struct{} // closed when all notes before it are written
}

// banTally are the bans of one limit.
type banTally struct {
	active atomic.Int64
	begun  atomic.Uint64
	lost   atomic.Uint64
}

const (
	// notesQueued bounds the entries that wait to be written; further ones are written when their
	// key is refused again.
	notesQueued = 4096
	// notesAtOnce bounds those of one exchange.
	notesAtOnce = 256
	// knownBans bounds the bans that are known to be in the index, some 10 MB. One that is not
	// known is written again when its key is refused.
	knownBans = 1 << 16
	// peeksAtOnce bounds the states that one exchange of a list reads.
	peeksAtOnce = 128
	// banFigures is how often the number of bans is read. Not more often: each limit that bans is
	// asked for. Not less often: that is how often metrics are.
	banFigures = 5 * time.Second
	// firstBanFigures is when it is read first: limits are bound by then.
	firstBanFigures = 500 * time.Millisecond
	// banGrace is how long an entry is kept after its ban has ended, and the whole index after the
	// last one: clocks differ.
	banGrace = 5 * time.Second
)

var _ store.BanKeeper = (*Store)(nil)

func (b *banIndex) init() {
	b.notes = make(chan note, notesQueued)
	b.known = make(map[string]int64)
}

func (s *Store) bansKey(id string) string {
	b := append([]byte(s.opts.Prefix+formatVersion), "{bans:"...)
	return string(append(appendEscaped(b, id, ":"), '}'))
}

// endOf returns when the ban of a state ends, in microseconds; 0 = there is none.
func (r *rule) endOf(s *state) int64 {
	if r.policy.Ban == 0 || s.fixed.Count <= r.policy.Rate.Count {
		return 0
	}
	return int64(s.fixed.Start.Add(r.policy.Rate.Period).Add(r.policy.Ban)) / 1000
}

// note has the bans that refused an operation written to their index.
func (b *banIndex) note(o *operation) {
	for i := range o.parts {
		p := &o.parts[i]
		if p.ends == 0 || p.verdict.Allowed {
			continue
		}
		b.mu.Lock()
		known := b.known[p.key] == p.ends
		if !known {
			if len(b.known) >= knownBans {
				for other := range b.known {
					delete(b.known, other) // any
					break
				}
			}
			b.known[p.key] = p.ends
		}
		b.mu.Unlock()
		if known {
			continue
		}
		select {
		case b.notes <- note{counters: p.counters, member: p.member(), key: p.key, ends: p.ends}:
		default:
			p.counters.bans.lost.Add(1)
			b.forget(p.key, p.ends)
		}
	}
}

// forget has a ban written again when its key is refused.
func (b *banIndex) forget(key string, ends int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known[key] == ends {
		delete(b.known, key)
	}
}

// member is the key of a part without what is the same for all keys of the limit.
func (p *part) member() string {
	head := p.counters.bound.Load().head
	return strings.TrimSuffix(strings.TrimPrefix(p.key, head), "}")
}

// keepBans writes the index until the store closes.
func (s *Store) keepBans() {
	ticker := time.NewTicker(firstBanFigures)
	defer ticker.Stop()
	batch := make([]note, 0, notesAtOnce)
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
			s.countBans()
			ticker.Reset(banFigures)
			continue
		case n := <-s.bans.notes:
			batch = append(batch[:0], n)
		}
	gather:
		for len(batch) < notesAtOnce {
			select {
			case n := <-s.bans.notes:
				batch = append(batch, n)
			default:
				break gather
			}
		}
		s.writeBans(batch)
		for _, n := range batch {
			if n.done != nil {
				close(n.done)
			}
		}
	}
}

// writeBans writes entries.
func (s *Store) writeBans(batch []note) {
	c := *s.client.Load()
	ctx, cancel := context.WithTimeout(s.ctx, max(s.opts.Timeout, time.Second))
	defer cancel()
	var commands rueidis.Commands
	var adds []note
	for _, n := range batch {
		if n.counters == nil {
			continue
		}
		p := n.counters.bound.Load().rule.policy
		key := s.bansKey(n.counters.id)
		keep := (p.Rate.Period + p.Ban + time.Hour).Milliseconds()
		commands = append(commands,
			c.B().Zadd().Key(key).Ch().ScoreMember().ScoreMember(float64(n.ends), n.member).Build(),
			c.B().Pexpire().Key(key).Milliseconds(keep).Build())
		adds = append(adds, n)
	}
	if len(commands) == 0 {
		return
	}
	for i, r := range c.DoMulti(ctx, commands...) {
		if i%2 != 0 {
			continue
		}
		n := adds[i/2]
		changed, err := r.AsInt64()
		if err != nil {
			n.counters.bans.lost.Add(1)
			s.bans.forget(n.key, n.ends)
			if forbidden(err) {
				s.health.odd(s, fmt.Errorf("bans stand but are not listed: %w", describe(err, s.opts)))
			}
			continue
		}
		// Of several instances that meet a ban one changes the index.
		n.counters.bans.begun.Add(uint64(changed))
	}
}

// banners are the counters that ban.
func (s *Store) banners() (list []*Counters) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.counters {
		if c.bound.Load().rule.policy.Ban > 0 {
			list = append(list, c)
		}
	}
	return list
}

// countBans drops the entries of bans that have ended, and counts the others.
func (s *Store) countBans() {
	list := s.banners()
	if len(list) == 0 || s.down(s.laneOf(s.presenceKey()).breaker) != nil {
		return
	}
	c := *s.client.Load()
	ctx, cancel := context.WithTimeout(s.ctx, max(s.opts.Timeout, time.Second))
	defer cancel()
	ended := strconv.FormatInt(s.serverMicros()-banGrace.Microseconds(), 10)
	var commands rueidis.Commands
	for _, of := range list {
		key := s.bansKey(of.id)
		commands = append(commands,
			c.B().Zremrangebyscore().Key(key).Min("-inf").Max(ended).Build(),
			c.B().Zcard().Key(key).Build())
	}
	for i, r := range c.DoMulti(ctx, commands...) {
		if n, err := r.AsInt64(); i%2 == 1 && err == nil {
			list[i/2].bans.active.Store(n)
		}
	}
}

// serverMicros is about the time on the server's clock.
func (s *Store) serverMicros() int64 {
	if s.now != nil {
		return int64(s.now()) / 1000
	}
	return time.Now().UnixMicro()
}

// written waits until the notes so far are in the index.
func (s *Store) written(ctx context.Context) error {
	n := note{done: make(chan struct{})}
	select {
	case s.bans.notes <- n:
	case <-ctx.Done():
		return givenUp(ctx)
	case <-s.ctx.Done():
		return errors.New("redis: the store is closed")
	}
	select {
	case <-n.done:
		return nil
	case <-ctx.Done():
		return givenUp(ctx)
	case <-s.ctx.Done():
		return errors.New("redis: the store is closed")
	}
}

// Bans lists bans in the order in which they end, and the keys by their bytes where they end
// together.
func (s *Store) Bans(ctx context.Context, c store.Counters, after string, most int) ([]store.Ban, string, error) {
	own, err := s.own(c)
	if err != nil {
		return nil, "", err
	}
	if s.client.Load() == nil {
		return nil, "", fmt.Errorf("redis: %w: there is no connection yet", store.ErrUnavailable)
	}
	if err := s.written(ctx); err != nil {
		return nil, "", err
	}
	from, err := parseEntry(after)
	if err != nil {
		return nil, "", err
	}
	most = max(most, 1)
	var list []store.Ban
	for {
		entries, err := s.entriesAfter(ctx, own, from, most)
		if err != nil || len(entries) == 0 {
			return list, "", err
		}
		for len(entries) > 0 {
			some := entries[:min(len(entries), peeksAtOnce)]
			entries = entries[len(some):]
			if list, err = s.appendBans(ctx, own, some, list); err != nil {
				return nil, "", err
			}
			if from = some[len(some)-1]; len(list) >= most {
				return list, from.String(), nil
			}
		}
	}
}

// entry is a member of the index.
type entry struct {
	ends   int64
	member string
}

func (e entry) String() string { return fmt.Sprintf("%d=%s", e.ends, e.member) }

func parseEntry(text string) (entry, error) {
	if text == "" {
		return entry{}, nil
	}
	ends, member, ok := strings.Cut(text, "=")
	n, err := strconv.ParseInt(ends, 10, 64)
	if !ok || err != nil {
		return entry{}, fmt.Errorf("redis: %.100q does not say where a list goes on: %w", text, store.ErrBanID)
	}
	return entry{n, member}, nil
}

// entriesAfter returns up to most entries behind one.
func (s *Store) entriesAfter(ctx context.Context, own *Counters, from entry, most int) ([]entry, error) {
	c := *s.client.Load()
	for offset := 0; ; offset += most {
		found, err := c.Do(ctx, c.B().Zrangebyscore().Key(s.bansKey(own.id)).Min(strconv.FormatInt(from.ends, 10)).Max("+inf").
			Withscores().Limit(int64(offset), int64(most)).Build()).AsZScores()
		if err != nil {
			return nil, fmt.Errorf("redis: the bans are not listed: %w: %w", store.ErrUnavailable, describe(err, s.opts))
		}
		out := make([]entry, 0, len(found))
		for _, f := range found {
			if e := (entry{int64(f.Score), f.Member}); e.ends > from.ends || e.member > from.member || from == (entry{}) {
				out = append(out, e)
			}
		}
		if len(out) > 0 || len(found) < most {
			return out, nil
		}
	}
}

// appendBans appends the entries whose bans stand, and drops the others from the index.
func (s *Store) appendBans(ctx context.Context, own *Counters, some []entry, list []store.Ban) ([]store.Ban, error) {
	b := own.bound.Load()
	o := newOperation(verbPeek, s.clock())
	for _, e := range some {
		o.parts = append(o.parts, part{counters: own, rule: b.rule, key: b.head + e.member + "}", shadow: true})
	}
	if o = s.perform(ctx, o); o == nil {
		return nil, givenUp(ctx)
	}
	defer o.release()
	if err := o.unread(); err != nil {
		return nil, err
	}
	for i, e := range some {
		if p := &o.parts[i]; p.ends > 0 {
			list = append(list, store.Ban{ID: "=" + e.member, Key: unescape(e.member), Left: p.verdict.ResetAfter})
		} else {
			s.dropEntry(ctx, own, e)
		}
	}
	return list, nil
}

// unread returns an error if some state was not read, or not changed.
func (o *operation) unread() error {
	if o.err != nil {
		return o.err
	}
	for i := range o.parts {
		if o.parts[i].failed {
			return fmt.Errorf("redis: %w: bans are unknown", store.ErrUnavailable)
		}
	}
	return nil
}

// luaDrop removes an entry unless its ban has begun anew meanwhile.
const luaDrop = `
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], ARGV[1], ARGV[1])) do
	if member == ARGV[2] then
		return redis.call('ZREM', KEYS[1], member)
	end
end
return 0`

func (s *Store) dropEntry(ctx context.Context, own *Counters, e entry) {
	c := *s.client.Load()
	// If it fails, a list looks at the entry again.
	_ = c.Do(ctx, c.B().Eval().Script(luaDrop).Numkeys(1).Key(s.bansKey(own.id)).Arg(strconv.FormatInt(e.ends, 10), e.member).Build()).Error()
}

// Lift ends a ban, for all processes.
func (s *Store) Lift(ctx context.Context, c store.Counters, ban store.Ban) (bool, error) {
	own, err := s.own(c)
	if err != nil {
		return false, err
	}
	b := own.bound.Load()
	if b.rule.policy.Ban == 0 {
		return false, nil
	}
	member := strings.TrimSuffix(string(appendKey(nil, ban.Key)), "}")
	if ban.ID != "" {
		if member, err = memberOf(ban.ID); err != nil {
			return false, err
		}
	}
	ask := func(v verb) (ends int64, err error) {
		o := newOperation(v, s.clock())
		o.parts = append(o.parts, part{counters: own, rule: b.rule, key: b.head + member + "}", shadow: true})
		if o = s.perform(ctx, o); o == nil {
			return 0, givenUp(ctx)
		}
		defer o.release()
		return o.parts[0].ends, o.unread()
	}
	ends, err := ask(verbPeek)
	if err != nil || ends == 0 {
		return false, err
	}
	if _, err = ask(verbReset); err != nil {
		return false, err
	}
	if s.client.Load() != nil {
		s.dropEntry(ctx, own, entry{ends, member})
	}
	return true, nil
}

// memberOf returns the member of an ID, which must be one that appendKey can make.
func memberOf(id string) (string, error) {
	member, ok := strings.CutPrefix(id, "=")
	if hash, hashed := strings.CutPrefix(member, "#"); ok && hashed && len(hash) == 43 && strings.Trim(hash, base64URL) == "" {
		return member, nil
	}
	if !ok || strings.TrimSuffix(string(appendKey(nil, unescape(member))), "}") != member {
		return "", fmt.Errorf("redis: %.100q is not the ID of a ban: %w", id, store.ErrBanID)
	}
	return member, nil
}

const base64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// unescape is the inverse of appendEscaped; nil for a key of which there is a hash alone.
func unescape(member string) []byte {
	if strings.HasPrefix(member, "#") {
		return nil
	}
	out := make([]byte, 0, len(member))
	for i := 0; i < len(member); i++ {
		if member[i] == '%' && i+2 < len(member) {
			if n, err := strconv.ParseUint(member[i+1:i+3], 16, 8); err == nil {
				out = append(out, byte(n))
				i += 2
				continue
			}
		}
		out = append(out, member[i])
	}
	return out
}

// BanFigures returns what was last read of the index.
func (s *Store) BanFigures(c store.Counters) store.BanFigures {
	own, err := s.own(c)
	if err != nil || own.bound.Load().rule.policy.Ban == 0 {
		return store.BanFigures{}
	}
	return store.BanFigures{Active: own.bans.active.Load(), Begun: own.bans.begun.Load(), Unlisted: own.bans.lost.Load()}
}

// banEnds records in p when the ban of the state in k ends.
func (p *part) banEnds(k *bucket, now limit.Time) {
	if p.ends = p.rule.endOf(&k.state); p.ends <= int64(now)/1000 {
		p.ends = 0
	}
}
