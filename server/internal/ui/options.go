package ui

import (
	"context"
	"iter"
	"net/http"
	"time"

	"github.com/stint-io/stint/internal/banlist"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/internal/watch"
	"github.com/stint-io/stint/rules"
)

const (
	pageRows = 50  // limits of a page. Not more: each is read by a person
	maxKeys  = 20  // of each list
	maxBans  = 100 // of a page
	// maxForm bounds what a form sends: the attributes of a request and some room.
	maxForm = 128 << 10
)

// Member is one of the servers that coordinate together.
type Member struct {
	Name, Address string
	Self          bool
	// Version is that of the configuration that it enforces; "" = that is not known. Refuses is a later one that it
	// cannot enforce, and Reason why.
	Version, Refuses, Reason string
	// Seen is when it last said so.
	Seen time.Time
	// Gone says that this is long ago.
	Gone bool
}

// Options are what the dashboard shows. All functions are safe for concurrent use.
type Options struct {
	// Version is that of the program, and ConfigVersion that of the configuration; "" = it is in files.
	Version       string
	ConfigVersion func() string
	// Ready is as for the admin port.
	Ready func() (ready bool, text string)
	// Limits are the limits in force, Tallies what they have answered, and Elsewhere what instances of other processes
	// have: requests that were admitted and refused.
	Limits    func() *rules.Set
	Tallies   func() iter.Seq[tally.Tally]
	Elsewhere func() map[string][2]uint64
	// Watch has their keys.
	Watch *watch.Watch
	// Leases answers as GET /v1/leases does.
	Leases http.Handler
	// Members are the servers of the cluster, and those that read the same configuration; none = there are no others.
	Members func(ctx context.Context) ([]Member, error)
	Bans    *banlist.Bans
	Engine  *engine.Engine
	// Done ends the streams of changes.
	Done <-chan struct{}
}
