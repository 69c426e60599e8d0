package remote

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/bench/internal/contender"
)

// gcra is the script that one would write: a bucket in one integer, the time in
// microseconds at which it is full again.
const gcra = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local interval, tolerance, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local full = tonumber(redis.call('GET', KEYS[1]) or now)
if full < now then full = now end
local later = full + cost * interval
local short = later - now - tolerance
if short > 0 then
	return {0, math.floor((tolerance - (full - now)) / interval), short}
end
redis.call('SET', KEYS[1], string.format('%.0f', later), 'PX', math.ceil((later - now) / 1000))
return {1, math.floor((tolerance - (later - now)) / interval), 0}
`

// bare calls gcra once for each request and does nothing else.
type bare struct {
	client rueidis.Client
	script *rueidis.Lua
	args   []string
}

func newBare(addr string, p contender.Plan) (Limiter, error) {
	const buffer = 64 << 10
	c, err := rueidis.NewClient(rueidis.ClientOption{ // as stint has them
		InitAddress: []string{addr}, ForceSingleClient: true, ClientSetInfo: rueidis.DisableClientSetInfo,
		DisableRetry: true, DisableCache: true, ReadBufferEachConn: buffer, WriteBufferEachConn: buffer,
	})
	if err != nil {
		return nil, err
	}
	interval := (p.Period / time.Duration(p.Count)).Microseconds()
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	return &bare{c, rueidis.NewLuaScript(gcra), []string{number(interval), number(interval * p.Burst), "1"}}, nil
}

func (b *bare) Close() error {
	b.client.Close()
	return nil
}

func (b *bare) Caller() Caller {
	key := make([]string, 1)
	return func(ctx context.Context, k string) (Answer, error) {
		key[0] = "bare:" + k
		reply, err := b.script.Exec(ctx, b.client, key, b.args).ToArray()
		if err != nil {
			return Answer{}, err
		}
		if len(reply) != 3 {
			return Answer{}, fmt.Errorf("remote: the bare script answered %d values, want 3", len(reply))
		}
		var n [3]int64
		for i := range n {
			if n[i], err = reply[i].AsInt64(); err != nil {
				return Answer{}, err
			}
		}
		return Answer{n[0] == 1, n[1], time.Duration(n[2]) * time.Microsecond}, nil
	}
}
