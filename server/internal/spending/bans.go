package spending

import (
	"context"

	"github.com/stint-io/stint/store"
)

// No leased limit bans, so bans are those of the store behind.
var _ store.BanKeeper = (*Store)(nil)

// Bans implements store.BanKeeper.
func (s *Store) Bans(ctx context.Context, c store.Counters, after string, most int) ([]store.Ban, string, error) {
	return s.BanKeeper.Bans(ctx, exact(c), after, most)
}

// Lift implements store.BanKeeper.
func (s *Store) Lift(ctx context.Context, c store.Counters, b store.Ban) (bool, error) {
	return s.BanKeeper.Lift(ctx, exact(c), b)
}

// BanFigures implements store.BanKeeper.
func (s *Store) BanFigures(c store.Counters) store.BanFigures {
	return s.BanKeeper.BanFigures(exact(c))
}
