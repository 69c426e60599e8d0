package store

import (
	"context"
	"errors"
	"time"
)

// ErrBanID is wrapped by the errors of a [BanKeeper] about an ID, or a place in a list, that it never
// gave out.
var ErrBanID = errors.New("copy it from the list of bans")

// Ban is a key that a policy with a ban ([limit.Policy.Ban]) refuses.
type Ban struct {
	// ID names the ban for [BanKeeper.Lift] as long as the counters are bound. It is printable
	// ASCII without spaces.
	ID string

	// Key is the key of the bucket, as in [Charge]. nil = the store has kept only a hash of it,
	// because the key is long.
	Key []byte

	// Left is how long the ban lasts from now on.
	Left time.Duration
}

// BanFigures describe the bans of one limit.
type BanFigures struct {
	// Active are the bans that last, in a store that is shared those of all processes. It may be
	// some seconds old.
	Active int64
	// Begun are the bans since the counters were bound. Where several processes share a store,
	// each ban is counted by one of them.
	Begun uint64
	// Unlisted are bans that stand, and that Bans does not list because there was no room to keep
	// their keys.
	Unlisted uint64
}

// BanKeeper is a [Store] that lists and lifts bans. A store that bans should be one.
//
// A ban is part of a key's state and is dropped by nothing but its end and a lift. What is kept
// beside it to list it is written when the ban begins, so that requests that are not refused
// cost nothing.
type BanKeeper interface {
	Store

	// Bans returns bans of c, at least one and about most of them unless there are no more. after
	// is "" or what the call before returned as next; next is "" at the end. A ban that lasts
	// during all calls is among the results; a call that races with the beginning or the end of a
	// ban may miss it. A ban may be there twice in a store that is shared.
	Bans(ctx context.Context, c Counters, after string, most int) (bans []Ban, next string, err error)

	// Lift ends the ban with the ID of b, or that of the Key of b if b has no ID, and reports
	// whether there was one. The attempts of the key are forgotten: the next ban takes as many as
	// the first.
	Lift(ctx context.Context, c Counters, b Ban) (lifted bool, err error)

	// BanFigures returns the figures of c without asking anything.
	BanFigures(c Counters) BanFigures
}
