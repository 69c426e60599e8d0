package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"
)

const (
	// DefaultTTL is how long a term lasts without renewal. Not shorter: a garbage collection or a
	// write to a slow disk of the backend would end terms. Not longer: it is how long nobody leads
	// after a leader was killed.
	DefaultTTL = time.Second

	// minTTL leaves a quarter of it for a call of the register on the same machine.
	minTTL = 20 * time.Millisecond
)

// ErrNotLeader is the error of what only a leader may do.
var ErrNotLeader = errors.New("cluster: this member does not lead")

// Member is one of those that stand for election.
type Member struct {
	ID      string // differs from that of every other member
	Address string // where instances reach its lease port, host:port; "" = unknown
}

// Term is one leader's time in office.
type Term struct {
	Epoch  uint64 // above that of every earlier term
	Former uint64 // epoch of the latest term before it in which something was published; 0 = none is known
	State  []byte // what the former leader published last; nil = nothing

	// Unled is the epoch of the latest term after Former, in which nothing was published; 0 = there was none.
	Unled uint64

	// Clean says that the former leader resigned: it grants nothing any more.
	Clean bool

	// Watched says that this member saw the former leader's record renewed before it saw it as it was left.
	// So it is the latest one, also of a register that forgets.
	Watched bool

	// Lost says that State may be older than what a leader published last: the register has lost records, or had
	// none and was not known to be new.
	Lost bool
}

// Options are the options of an Election. Register, Scope and Self.ID are required.
type Options struct {
	Register Register
	Scope    string // which limits, such as "default"; letters, digits and "-._/"
	Self     Member
	TTL      time.Duration // 0 = DefaultTTL. It may differ between members.

	// First says that where there is no record none was lost: nobody has led the scope yet.
	First bool

	// Known is the epoch of the latest term that this member knows of from a former run; 0 = none. A record
	// of an earlier term, and none, is one that the register has lost.
	Known uint64

	// Epoch returns the highest epoch that is known from elsewhere, such as reports of instances,
	// a state folder, or the wall clock in nanoseconds. A new term's is above it. nil = 0. It is
	// called by the goroutine of Run and must not block.
	Epoch func() uint64

	// Yield says whether another member should lead: this one then waits for half a TTL longer before it
	// takes the record, and takes it if nobody else has. holder is the ID of the member that had it
	// last, "" if none did. nil = never. It only delays, so that nothing depends on whether it is right.
	// It is called by the goroutine of Run and must not block.
	Yield func(holder string) bool

	// Began is called once for each term, before Leads is true. The record is renewed meanwhile, and
	// Publish works. ctx ends with the term. An error gives the term up. It may not call Resign. What a leader does before
	// its first Publish has returned, its successor does not know: it is told of the term before.
	Began func(ctx context.Context, t Term) error

	// Ended is called once for each term whose Began returned nil, as soon as it is known that the
	// term has ended, after Leads is false. The next Began is called after it has returned, and a
	// term that is given up is free for others only then.
	Ended func()

	// Observed is called when another leader is known than before; known is false when none is. It is
	// called by the goroutine of Run and must not block.
	Observed func(leader Member, known bool)

	Logger *slog.Logger // nil = slog.Default()
}

// complete checks the options and sets defaults.
func (o *Options) complete() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("cluster: "+format, args...)) }
	if o.Register == nil {
		bad("no Register")
	}
	if !isKey(o.Scope) {
		bad("the scope %q is no path of letters, digits and -._/", o.Scope)
	}
	if o.Self.ID == "" {
		bad("this member has no ID")
	}
	if o.TTL == 0 {
		o.TTL = DefaultTTL
	}
	if most := time.Duration(maxTTLMillis) * time.Millisecond; o.TTL < minTTL || o.TTL > most {
		bad("a TTL of %v, want %v to %v", o.TTL, minTTL, most)
	}
	if o.Epoch == nil {
		o.Epoch = func() uint64 { return 0 }
	}
	if o.Yield == nil {
		o.Yield = func(string) bool { return false }
	}
	if o.Began == nil {
		o.Began = func(context.Context, Term) error { return nil }
	}
	if o.Ended == nil {
		o.Ended = func() {}
	}
	if o.Observed == nil {
		o.Observed = func(Member, bool) {}
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return errors.Join(errs...)
}

// isKey reports whether text can be a part of a key of a Register.
func isKey(text string) bool {
	for i := range len(text) {
		c := text[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && ('0' > c || c > '9') && c != '-' && c != '.' && c != '_' && c != '/' {
			return false
		}
	}
	return text != ""
}
