package leased

import (
	"context"
	"errors"

	"github.com/stint-io/stint/store"
)

// No leased limit bans, so bans are those of the store behind.
var _ store.BanKeeper = (*Store)(nil)

var errNoKeeper = errors.New("leased: the store behind lists no bans")

// keeper returns the store behind, and its counters.
func (s *Store) keeper(c store.Counters) (store.BanKeeper, store.Counters, error) {
	own, err := ours(c)
	if err != nil {
		return nil, nil, err
	}
	k, ok := s.exact.(store.BanKeeper)
	if !ok {
		return nil, nil, errNoKeeper
	}
	return k, own.exact, nil
}

// Bans implements store.BanKeeper.
func (s *Store) Bans(ctx context.Context, c store.Counters, after string, most int) ([]store.Ban, string, error) {
	k, exact, err := s.keeper(c)
	if err != nil {
		return nil, "", err
	}
	return k.Bans(ctx, exact, after, most)
}

// Lift implements store.BanKeeper.
func (s *Store) Lift(ctx context.Context, c store.Counters, b store.Ban) (bool, error) {
	k, exact, err := s.keeper(c)
	if err != nil {
		return false, err
	}
	return k.Lift(ctx, exact, b)
}

// BanFigures implements store.BanKeeper.
func (s *Store) BanFigures(c store.Counters) store.BanFigures {
	k, exact, err := s.keeper(c)
	if err != nil {
		return store.BanFigures{}
	}
	return k.BanFigures(exact)
}
