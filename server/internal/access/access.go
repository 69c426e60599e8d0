// Package access says who somebody is, and what he may do: identities with tokens or names of client
// certificates, and their roles, from a file that is read again when it changes.
//
// It knows no protocol: where a token or a certificate comes from is for those to say who serve a
// port, and so is what a refusal becomes there.
package access

import (
	"errors"
	"fmt"
	"strings"
)

// Role is what somebody may do.
type Role uint8

// The roles.
const (
	Any    Role = iota // what every identity may do
	Take               // ask for decisions
	Lease              // hold a stream on which parts of limits are lent
	Admin              // the admin port
	Member             // speak for a server of the same cluster; it may lease as well
)

var roleNames = [...]string{Any: "any", Take: "take", Lease: "lease", Admin: "admin", Member: "member"}

// String returns the name of the role in files.
func (r Role) String() string { return roleNames[r] }

// Identity is somebody who has proved who he is. It does not change.
type Identity struct {
	Name                string
	take, admin, member bool
	leases              *Leases // nil without the role lease
}

// Leases is what an identity may be lent.
type Leases struct {
	Limits    []string // names, and patterns with stars
	MaxBand   uint8
	MaxWeight uint32
	// MaxStreams bounds the instances at one time, MaxKeys what they have open together.
	MaxStreams, MaxKeys int
}

// The bounds of the role lease where the file says nothing.
const (
	DefaultMaxWeight  = 1
	DefaultMaxStreams = 1000
	DefaultMaxKeys    = 100_000
)

// May says whether the identity has the role.
func (id *Identity) May(r Role) bool {
	switch r {
	case Any:
		return true
	case Take:
		return id.take
	case Lease:
		return id.leases != nil || id.member
	case Admin:
		return id.admin
	case Member:
		return id.member
	}
	return false
}

// Leases returns the bounds of what the identity may be lent; nil = none, as for a member.
func (id *Identity) Leases() *Leases {
	if id.member {
		return nil
	}
	return id.leases
}

// Refuses returns an error that says which role is missing and how to give it; nil = the identity has
// the role.
func (id *Identity) Refuses(r Role) error {
	if id.May(r) {
		return nil
	}
	return fmt.Errorf("the identity %s lacks the role %s: add it to its roles in the file of --auth", id.Name, r)
}

// Covers says whether a limit may be lent.
func (l *Leases) Covers(limit string) bool {
	for _, pattern := range l.Limits {
		if matches(pattern, limit) {
			return true
		}
	}
	return false
}

// Includes says whether everything that other covers is covered, as far as the patterns show it, and no
// band or weight of it is too high.
func (l *Leases) Includes(other *Leases) bool {
	if other.MaxBand > l.MaxBand || other.MaxWeight > l.MaxWeight {
		return false
	}
	for _, pattern := range other.Limits {
		if !l.Covers(pattern) {
			return false
		}
	}
	return true
}

// matches says whether the text is that of the pattern, in which a star stands for any text.
func matches(pattern, text string) bool {
	first, rest, star := strings.Cut(pattern, "*")
	if !strings.HasPrefix(text, first) {
		return false
	}
	text = text[len(first):]
	for star {
		var part string
		part, rest, star = strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(text, part)
		}
		at := strings.Index(text, part)
		if at < 0 {
			return false
		}
		text = text[at+len(part):]
	}
	return text == ""
}

// Why somebody has no identity.
var (
	ErrNone        = errors.New("nothing proves who you are: send a token as Authorization: Bearer TOKEN, or show a client certificate")
	ErrToken       = errors.New("the token is not known: it is mistyped, was taken back, or is not in the file of --auth yet")
	ErrCertificate = errors.New("the names of the client certificate are those of no identity: add one of them to the file of --auth")
	ErrAmbiguous   = errors.New("the names of the client certificate are those of several identities: use a certificate for each")
	ErrExpired     = errors.New("the client certificate has expired: renew it and connect again")
	ErrMalformed   = errors.New("the token is malformed: send one token of visible characters, once, as Authorization: Bearer TOKEN")
)
