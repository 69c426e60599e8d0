// Package holdoff remembers until when a server has asked not to be called: as a whole, by
// Retry-After, or for requests under one of its policies, by a RateLimit field with nothing
// remaining.
//
// A policy holds back the requests whose scope has met it, such as a path: a client cannot know
// what a policy covers before it has seen it in an answer, and to hold back everything for a limit
// on logins would be worse than a request that is refused. A Retry-After of an answer that names no
// exhausted policy holds back the whole server, and so do X-RateLimit fields that name no resource.
package holdoff

import (
	"time"

	"github.com/stint-io/stint/internal/answer/reader"
	"github.com/stint-io/stint/limit"
)

const (
	// maxPolicies and maxScopes bound what one server can have its client remember. Not more: a
	// server could name a new policy in each answer. Not fewer: APIs have some dozens.
	maxPolicies = 64
	maxScopes   = 256
)

// Whole is the name of a hold for the whole server.
const Whole = "retry-after"

// Book has the holds of one server. It is not safe for concurrent use; New makes one.
type Book struct {
	longest  time.Duration
	whole    limit.Time
	policies map[policy]limit.Time
	scopes   map[string][]policy
}

// policy is a limit of the server, by its name and its partition key.
type policy struct{ name, partition string }

// New returns an empty book. No hold is longer than longest.
func New(longest time.Duration) *Book { return &Book{longest: longest} }

// Until returns until when a request of a scope is held back, and by what: [Whole], or the name of a
// policy. Where nothing holds it back the time is not after now.
func (b *Book) Until(now limit.Time, scope string) (until limit.Time, by string) {
	until, by = b.whole, Whole
	for _, p := range b.scopes[scope] {
		if t := b.policies[p]; t > until {
			until, by = t, p.name
		}
	}
	return until, by
}

// Latest returns when the last hold ends.
func (b *Book) Latest() limit.Time {
	latest := b.whole
	for _, t := range b.policies {
		latest = max(latest, t)
	}
	return latest
}

// Heard notes what an answer to a request of a scope says. refused tells whether the answer is a
// refusal: the wait that another names, such as a redirect, is not for us. A hold is never
// shortened: answers overtake each other.
func (b *Book) Heard(now limit.Time, scope string, s reader.Standing, refused bool) {
	named, exhausted := false, false
	for _, q := range s.Quotas {
		if q.Policy == "" {
			continue
		}
		named = true
		exhausted = exhausted || q.Remaining == 0
	}
	if named {
		b.learn(now, scope, s.Quotas)
	}
	for _, q := range s.Quotas {
		wait := time.Duration(0)
		if q.Remaining == 0 && q.Reset != limit.Never {
			wait = q.Reset
		}
		if refused && s.Wait && q.Remaining == 0 {
			// The draft wants them equal; where they are not, what was said of this request
			// is right for it.
			wait = s.RetryAfter
		}
		if wait > 0 {
			b.hold(now, policy{q.Policy, q.Partition}, wait)
		}
	}
	if refused && s.Wait && !exhausted {
		b.hold(now, policy{}, s.RetryAfter)
	}
}

func (b *Book) hold(now limit.Time, p policy, wait time.Duration) {
	until := now.Add(min(wait, b.longest))
	if p.name == "" {
		b.whole = max(b.whole, until)
	} else if was, known := b.policies[p]; known {
		b.policies[p] = max(was, until)
	}
}

// learn notes which policies a scope has met. Where there is no room for another, it is one that
// nothing is held back by that goes, and if there is none, the new one is not learnt: its requests
// are sent and refused, as if its server had said nothing.
func (b *Book) learn(now limit.Time, scope string, quotas []reader.Quota) {
	if b.scopes == nil {
		b.scopes, b.policies = map[string][]policy{}, map[policy]limit.Time{}
	}
	met := make([]policy, 0, len(quotas))
	for _, q := range quotas {
		p := policy{q.Policy, q.Partition}
		if q.Policy == "" {
			continue
		}
		if _, known := b.policies[p]; !known {
			if len(b.policies) >= maxPolicies && !forget(b.policies, func(_ policy, t limit.Time) bool { return t <= now }) {
				continue
			}
			b.policies[p] = 0
		}
		met = append(met, p)
	}
	if _, known := b.scopes[scope]; !known && len(b.scopes) >= maxScopes {
		forget(b.scopes, func(string, []policy) bool { return true })
	}
	b.scopes[scope] = met
}

// forget deletes one entry for which old holds, and reports whether there was one.
func forget[K comparable, V any](m map[K]V, old func(K, V) bool) bool {
	for k, v := range m {
		if old(k, v) {
			delete(m, k)
			return true
		}
	}
	return false
}
