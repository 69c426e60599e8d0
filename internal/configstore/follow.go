package configstore

import (
	"context"
	"time"
)

const (
	// poll is how often members check without a hint. Not longer: a watch may be silent, and a version
	// is to be in force within half a second all the same. Not shorter: each check is a read of the
	// register by each member.
	poll = 400 * time.Millisecond

	// retry is how long after a check that failed the next one is made. Not longer: a read that fails
	// may be the one of a new version. Not shorter: a register that is gone is not asked all the time.
	retry = 200 * time.Millisecond
)

// Follow calls check at once, each time that the latest version may have changed, and regularly. Where
// check reports that the register did not answer, it is called again soon. Follow returns when ctx has
// ended.
func (s *Store) Follow(ctx context.Context, check func(context.Context) (answered bool)) {
	hints := s.register.Watch(ctx, headKey)
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-hints:
			if !open {
				hints = nil
				continue
			}
		case <-next.C:
		}
		pause := poll
		if !check(ctx) {
			pause = retry
		}
		next.Reset(pause)
	}
}
