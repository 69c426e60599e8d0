package spoe

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/access"
)

const (
	// MaxConnections is the most connections at a time. Not smaller: HAProxy opens one for each of its threads, and
	// more under load. Not larger: each may hold a frame of [MaxFrame], and buffers.
	MaxConnections = 1024

	// MaxFrame is the longest frame that is taken, without its length. Not smaller: HAProxy offers its tune.bufsize, 16
	// KiB by default, less 4. Not larger: whoever connects can have as much kept for each frame.
	MaxFrame = 64 << 10

	// maxFlight is how many queries of a connection are decided at a time. Not smaller: HAProxy has 20 under way on a
	// connection by default. Not larger: a store that hangs holds them all.
	maxFlight = 128
)

// The times that a gateway may take.
const (
	connectTime = 5 * time.Second  // to shake hands, and to say HELLO
	readTime    = 10 * time.Second // to send the rest of a frame
	writeTime   = 15 * time.Second // to take answers
)

// Engine decides by the limits of the file. [engine.Engine] does.
type Engine interface {
	TakeWithin(ctx context.Context, req limit.Request, wait time.Duration) (limit.Decision, error)
}

var _ Engine = (*engine.Engine)(nil)

// TLS is the certificate of the listener.
type TLS interface {
	Config() *tls.Config
	Handshake(peer net.Addr, err error)
}

// Options are what a [Server] asks.
type Options struct {
	Engine Engine
	// Answer says which header fields are set as variables.
	Answer answer.Options
	// Identities say who comes, by the certificate that he shows; nil = nobody is asked.
	Identities *access.Live
	TLS        TLS // nil = plain text
	// Fault is told what a query has panicked with.
	Fault func(call string, p any)
	// MaxConnections bounds the connections at a time; 0 = [MaxConnections].
	MaxConnections int
}
