// Package remote holds the limiters that keep their counters in Redis, one file
// for each, and the bare script: what one call per request costs and no more.
//
// All get the same plan, the same keys and the same server. Each is set up as its
// users would for speed: rivals over go-redis have a connection for each request
// in flight.
package remote

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/stint-io/stint/bench/internal/contender"
)

// Connections is the pool of the rivals over go-redis.
const Connections = 64

// Answer is what a caller can do something with.
type Answer struct {
	Allowed    bool
	Remaining  int64
	RetryAfter time.Duration
}

// Caller takes one for a key. It is used by one goroutine at a time.
type Caller func(ctx context.Context, key string) (Answer, error)

// Limiter is a contender under a plan, connected to a server.
type Limiter interface {
	// Caller returns a caller for one goroutine. Callers share the limiter and
	// its connections.
	Caller() Caller
	Close() error
}

// Timed limiters know what their calls to the server take.
type Timed interface {
	RoundTrip() time.Duration
}

// Contender makes limiters. The zero value is of no use.
type Contender struct {
	Name string
	New  func(addr string, p contender.Plan) (Limiter, error)
}

// Stint is the Redis store of this project.
func Stint() Contender { return Contender{"stint", newStint} }

// Bare is one script for each request, through the client that stint uses.
func Bare() Contender { return Contender{"bare script (rueidis)", newBare} }

// Rivals returns the other limiters, in the order of the tables.
func Rivals() []Contender {
	return []Contender{
		{"redis_rate/v10 Allow", newRedisRate},
		{"throttled/v2 (goredisstore.v9)", newThrottled},
		{"ulule/limiter/v3 (redis)", newUlule},
	}
}

// dial connects a rival.
func dial(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, PoolSize: Connections})
}
