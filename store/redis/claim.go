package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/stint-io/stint/store"
)

// A claim says which process does what only one of those that share a prefix may do. It
// is held by the process that set it, for as long as it renews it.

// releasedStay is how long a cleanly released claim is kept, with the value "-". Not shorter:
// services are stopped over night. Not longer: an unused prefix should leave no keys.
const releasedStay = 24 * time.Hour

// luaClaim takes or renews a claim that is free or the caller's. It returns who else holds it,
// or the state in which it was found.
const luaClaim = `
local held = redis.call('GET', KEYS[1])
local free = not held or held == '-'
if not free and string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return {'other', held} end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
if not held then return {'absent', ''} end
return {free and 'released' or 'own', ''}`

// luaUnclaim releases a claim that is the caller's.
const luaUnclaim = `
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, #ARGV[1]) ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], '-', 'PX', ARGV[2]) end
return 1`

// ClaimState is the state in which a claim was found.
type ClaimState struct {
	// Holder describes the other process that holds the claim; "" = it is the caller's from now
	// on.
	Holder string
	// Lost says that the previous holder is unknown: there was none, it has not renewed the
	// claim, or Redis has lost it.
	Lost bool
}

func (s *Store) claimKey(name string) string { return s.opts.Prefix + formatVersion + "{" + name + "}" }

// Claim takes the claim of that name for the process that id names, for so long, or
// renews it. about tells people who that is. An error says that Redis did not answer;
// the claim may have been taken.
func (s *Store) Claim(ctx context.Context, name, id, about string, lasts time.Duration) (ClaimState, error) {
	value := id + " " + about
	reply, err := s.claimCall(ctx, luaClaim, name, id+" ", value, fmt.Sprint(lasts.Milliseconds()))
	if err != nil {
		return ClaimState{}, err
	}
	if len(reply) != 2 {
		return ClaimState{}, errors.New("redis: a claim was answered in a way that is not known")
	}
	if reply[0] == "other" {
		_, about, ok := strings.Cut(reply[1], " ")
		if !ok {
			about = "a process that does not say which"
		}
		return ClaimState{Holder: about}, nil
	}
	return ClaimState{Lost: reply[0] == "absent"}, nil
}

// Unclaim gives up a claim; one that another process holds stays. clean says that the
// next one to claim it need not wait for anything that was done under it.
func (s *Store) Unclaim(ctx context.Context, name, id string, clean bool) error {
	stay := ""
	if clean {
		stay = fmt.Sprint(releasedStay.Milliseconds())
	}
	_, err := s.claimCall(ctx, luaUnclaim, name, id+" ", stay)
	return err
}

func (s *Store) claimCall(ctx context.Context, script, name string, args ...string) ([]string, error) {
	if s.client.Load() == nil {
		s.awaitContact(ctx)
	}
	client := s.client.Load()
	if client == nil || s.ctx.Err() != nil {
		return nil, fmt.Errorf("redis: %w: %w", store.ErrUnavailable, s.health.why())
	}
	c := *client
	r := c.Do(ctx, c.B().Eval().Script(script).Numkeys(1).Key(s.claimKey(name)).Arg(args...).Build())
	if err := r.Error(); err != nil {
		return nil, describe(err, s.opts)
	}
	if reply, err := r.AsStrSlice(); err == nil {
		return reply, nil
	}
	return nil, nil
}
