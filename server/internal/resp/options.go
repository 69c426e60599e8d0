package resp

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/access"
)

// MaxConnections is the most connections at a time. Not larger: each may hold a command of [MaxCommand] and answers.
// Not smaller: Redis takes as many by default.
const MaxConnections = 10_000

// The times that a client may take.
const (
	connectTime = 5 * time.Second  // to shake hands, and to send a token where one is asked for
	readTime    = 10 * time.Second // to send the rest of a command
	writeTime   = 15 * time.Second // to take answers
	longestWait = 5 * time.Second  // for a limit with on_exceed: queue
)

// Engine decides by the limits of the file. [engine.Engine] does.
type Engine interface {
	TakeWithin(ctx context.Context, req limit.Request, most time.Duration) (limit.Decision, error)
	Finish(ctx context.Context, req limit.Request, permit uint64) error
}

var _ Engine = (*engine.Engine)(nil)

// Reservations are costs that are taken before they are known. [reserve.Book] has them.
type Reservations interface {
	Reserve(ctx context.Context, req limit.Request, ttl time.Duration, charge bool) (reserve.Reservation, limit.Decision, error)
	Commit(ctx context.Context, id string, actual int64) (reserve.Reservation, error)
	Renew(ctx context.Context, id string, used int64, ttl time.Duration) (reserve.Reservation, error)
	Release(ctx context.Context, id string) (reserve.Reservation, error)
}

// TLS is the certificate of the listener.
type TLS interface {
	Config() *tls.Config
	Handshake(peer net.Addr, err error)
}

// Options are what a [Server] asks.
type Options struct {
	Engine       Engine
	Reservations Reservations
	// Buckets are those of CL.THROTTLE and GCRA; nil = NoBuckets says why there are none.
	Buckets   *override.Buckets
	NoBuckets string
	// Identities say who comes; nil = nobody is asked.
	Identities *access.Live
	TLS        TLS // nil = plain text
	Version    string
	// Fault is told what a command has panicked with.
	Fault func(command string, p any)
	// MaxConnections bounds the connections at a time; 0 = [MaxConnections].
	MaxConnections int
}
