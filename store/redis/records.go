package redis

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/store"
)

var _ store.Records = (*Store)(nil)

// Records of a table are in one slot: a hash of the values by key, a sorted set of the keys in the order of their
// bytes, and one of when they end. What has ended is not there for anybody, and is removed by later writes. A table
// without records that are kept for ever expires with the last one.

// luaRecords begins each script. KEYS are the three, ARGV[1] is the time in milliseconds, or 0 for the server's
// own.
const luaRecords = `
local call = redis.call
local now = tonumber(ARGV[1])
if now == 0 then
	local t = call('TIME')
	now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local function read(key)
	local ends = call('ZSCORE', KEYS[3], key)
	if ends and tonumber(ends) <= now then return false end
	return call('HGET', KEYS[1], key)
end
local function remove(key)
	call('HDEL', KEYS[1], key)
	call('ZREM', KEYS[2], key)
	call('ZREM', KEYS[3], key)
end
local function write(key, value, keep)
	call('HSET', KEYS[1], key, value)
	call('ZADD', KEYS[2], 0, key)
	if keep > 0 then call('ZADD', KEYS[3], now + keep, key) else call('ZREM', KEYS[3], key) end
end
local function sweep(most)
	for _, key in ipairs(call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, most)) do remove(key) end
	if ARGV[1] ~= '0' then return end -- by a clock that is not the server's
	local left = 100 * 365 * 86400000 -- for ever: more commands would need more rights
	local last = call('ZRANGE', KEYS[3], -1, -1, 'WITHSCORES')[2]
	if last and call('ZCARD', KEYS[3]) == call('ZCARD', KEYS[2]) then left = math.max(tonumber(last) - now, 0) + 1000 end
	for i = 1, 3 do call('PEXPIRE', KEYS[i], string.format('%.0f', left)) end
end
`

// luaGet returns the value of a key.
const luaGet = luaRecords + `return read(ARGV[2])`

// luaSwap: key, whether there must be one, which, whether there shall be one, which, how long it is kept.
const luaSwap = luaRecords + `
local key, old, value = ARGV[2], ARGV[3] == '1' and ARGV[4] or false, ARGV[5] == '1' and ARGV[6] or false
local is = read(key)
if is ~= old then return {0, is} end
if value then write(key, value, tonumber(ARGV[7])) else remove(key) end
sweep(20)
return {1, value}`

// luaRange: the least and the greatest key as ZRANGEBYLEX takes them, and how many. It returns keys and values.
const luaRange = luaRecords + `
local from, most, found = ARGV[2], tonumber(ARGV[4]), {}
while #found < 2 * most do
	local keys = call('ZRANGEBYLEX', KEYS[2], from, ARGV[3], 'LIMIT', 0, most)
	for _, key in ipairs(keys) do
		local value = #found < 2 * most and read(key)
		if value then
			found[#found + 1] = key
			found[#found + 1] = value
		end
	end
	if #keys < most then break end
	from = '(' .. keys[#keys]
end
return found`

// luaRaise: how long marks are kept, then keys and numbers of eight bytes, which Lua cannot compare as one.
const luaRaise = luaRecords + `
local keep = tonumber(ARGV[2])
for i = 3, #ARGV, 2 do
	local key, value = ARGV[i], ARGV[i + 1]
	local is = read(key)
	if is and #is == 8 then
		local a, b = struct.unpack('>I4I4', is)
		local c, d = struct.unpack('>I4I4', value)
		if a > c or a == c and b >= d then value = nil end
	end
	if value then write(key, value, keep) end
end
sweep(2 * #ARGV)
return 1`

// Get implements [store.Records].
func (s *Store) Get(ctx context.Context, table, key string) ([]byte, error) {
	if err := store.CheckRecord(table, key, nil); err != nil {
		return nil, err
	}
	return valueOf(s.evalRecords(ctx, luaGet, table, key))
}

func valueOf(r rueidis.RedisMessage, err error) ([]byte, error) {
	if err != nil || r.IsNil() {
		return nil, err
	}
	text, err := r.ToString()
	if err != nil {
		return nil, errAnswer
	}
	return append([]byte{}, text...), nil
}

// Swap implements [store.Records].
func (s *Store) Swap(ctx context.Context, table, key string, old, value []byte, keep time.Duration) (bool, []byte, error) {
	if err := store.CheckRecord(table, key, value); err != nil {
		return false, nil, err
	}
	r, err := s.evalRecords(ctx, luaSwap, table, key, truth(old != nil), string(old), truth(value != nil), string(value), millis(keep))
	if err != nil {
		return false, nil, err
	}
	answer, err := r.ToArray()
	if err != nil || len(answer) < 1 {
		return false, nil, errAnswer
	}
	swapped, err := answer[0].AsInt64()
	if err != nil || len(answer) < 2 { // the end of a table of Lua that ends with false
		return swapped == 1, nil, err
	}
	present, err := valueOf(answer[1], nil)
	return swapped == 1, present, err
}

// Range implements [store.Records].
func (s *Store) Range(ctx context.Context, table, prefix, after string, most int) (found []store.Record, err error) {
	err = s.rangeRecords(ctx, table, prefix, after, most, func(key, value string) {
		found = append(found, store.Record{Key: key, Value: []byte(value)})
	})
	return found, err
}

// Marks implements [store.Records].
func (s *Store) Marks(ctx context.Context, table, prefix, after string, most int) (found []store.Mark, err error) {
	err = s.rangeRecords(ctx, table, prefix, after, most, func(key, value string) {
		if len(value) == 8 {
			found = append(found, store.Mark{Key: key, N: binary.BigEndian.Uint64([]byte(value))})
		}
	})
	return found, err
}

func (s *Store) rangeRecords(ctx context.Context, table, prefix, after string, most int, f func(key, value string)) error {
	if err := store.CheckRecord(table, "any", nil); err != nil || most <= 0 {
		return err
	}
	from, to := "["+prefix, "+"
	if prefix == "" {
		from = "-"
	}
	if after != "" && after >= prefix {
		from = "(" + after
	}
	if next := successor(prefix); next != "" {
		to = "(" + next
	}
	r, err := s.evalRecords(ctx, luaRange, table, from, to, strconv.Itoa(most))
	if err != nil {
		return err
	}
	list, err := r.AsStrSlice()
	if err != nil || len(list)%2 != 0 {
		return errAnswer
	}
	for i := 0; i < len(list); i += 2 {
		f(list[i], list[i+1])
	}
	return nil
}

// successor is the least text above all that begin with prefix; "" = there is none.
func successor(prefix string) string {
	b := []byte(prefix)
	for len(b) > 0 {
		if b[len(b)-1]++; b[len(b)-1] != 0 {
			return string(b)
		}
		b = b[:len(b)-1]
	}
	return ""
}

// raisedAtOnce bounds the marks of one run of the script, so that others wait for a millisecond or so.
const raisedAtOnce = 500

// Raise implements [store.Records].
func (s *Store) Raise(ctx context.Context, table string, marks []store.Mark, keep time.Duration) error {
	for i := range marks {
		if err := store.CheckRecord(table, marks[i].Key, nil); err != nil {
			return err
		}
	}
	for len(marks) > 0 {
		part := marks[:min(raisedAtOnce, len(marks))]
		marks = marks[len(part):]
		args := []string{millis(keep)}
		for _, m := range part {
			args = append(args, m.Key, string(binary.BigEndian.AppendUint64(nil, m.N)))
		}
		if _, err := s.evalRecords(ctx, luaRaise, table, args...); err != nil {
			return err
		}
	}
	return nil
}

func truth(t bool) string {
	if t {
		return "1"
	}
	return "0"
}

// millis is how long a record is kept, at least a millisecond; 0 = for ever.
func millis(keep time.Duration) string {
	if keep <= 0 {
		return "0"
	}
	return strconv.FormatInt(max(keep.Milliseconds(), 1), 10)
}

// evalRecords runs a script on a table.
func (s *Store) evalRecords(ctx context.Context, script, table string, args ...string) (r rueidis.RedisMessage, err error) {
	ctx, cancel := context.WithTimeout(ctx, max(s.opts.Timeout, recordsPatience))
	defer cancel()
	if s.client.Load() == nil {
		s.awaitContact(ctx)
	}
	client := s.client.Load()
	if client == nil || s.ctx.Err() != nil {
		return r, fmt.Errorf("redis: %w: %w", store.ErrUnavailable, s.health.why())
	}
	now := "0"
	if s.now != nil {
		now = strconv.FormatInt(int64(s.now())/int64(time.Millisecond), 10)
	}
	c := *client
	head := s.opts.Prefix + formatVersion + "{r:" + table + "}"
	done := c.Do(ctx, c.B().Eval().Script(script).Numkeys(3).Key(head, head+":k", head+":e").Arg(append([]string{now}, args...)...).Build())
	if r, err = done.ToMessage(); err != nil && !rueidis.IsRedisNil(err) {
		return r, fmt.Errorf("redis: %w: %w", store.ErrUnavailable, describe(err, s.opts))
	}
	return r, nil
}

// recordsPatience is how long a call about records may take: they are not on the way of a decision, or of one that
// reserves, which may wait longer than others.
const recordsPatience = 250 * time.Millisecond
