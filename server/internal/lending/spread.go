package lending

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/cluster"
)

// handOverEvery is the shortest time between two shards that this member hands over. Not shorter: when
// a member joins, its shards come one by one, and each is without a coordinator for a moment. Not
// longer: the new one has nothing to do meanwhile.
const handOverEvery = time.Second

// spread has each shard led by the member that rendezvous hashing prefers among those that are alive. A
// member that joins or leaves moves its own shards alone. The elections do not depend on it: what it
// knows may be wrong, and then a shard is led by another member.
type spread struct {
	presence *cluster.Presence
	self     cluster.Member
}

// yield says whether another member than this one and holder, which had the scope last, should lead it.
func (p *spread) yield(scope, holder string) bool {
	members := slices.DeleteFunc(slices.Clone(p.presence.Members()), func(m cluster.Member) bool {
		return m.ID == holder && m.ID != p.self.ID
	})
	preferred, ok := cluster.Preferred(members, scope)
	return ok && preferred.ID != p.self.ID
}

// Join makes each service one of several members, before Run. Several shards are spread over them.
func (s *Service) Join(c Cluster, o cluster.PresenceOptions) error {
	if len(s.all) > 1 {
		s.spread = &spread{cluster.NewPresence(o), c.Self}
		c.yield = s.spread.yield
	}
	for _, one := range s.all {
		if err := one.join(c); err != nil {
			return err
		}
	}
	return nil
}

// Presence says which members are there; nil where there is one shard.
func (s *Service) Presence() *cluster.Presence {
	if s.spread == nil {
		return nil
	}
	return s.spread.presence
}

// beginSpreading hands over what others should lead, until stop.
func (s *Service) beginSpreading() (stop func()) {
	if s.spread == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { s.spread.presence.Run(ctx) })
	wg.Go(func() {
		tick := time.NewTicker(handOverEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				s.handOver(ctx)
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// handOver hands one shard over, if the same members have been there for a while and another one should
// lead it. A shard whose former leader was killed stays for as long as its recovery may take: until then that one may
// count as alive.
func (s *Service) handOver(ctx context.Context) {
	if !s.spread.presence.Stable() {
		return
	}
	members := s.spread.presence.Members()
	for shard, one := range s.all {
		_, here, _ := one.leader()
		preferred, _ := cluster.Preferred(members, Scope(shard, len(s.all)))
		if !here || preferred.ID == s.spread.self.ID || !one.settled() {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, handOverEvery)
		defer cancel()
		// Where it fails the term has ended, or ends: the next tick looks again.
		_ = one.handOver(bounded)
		return
	}
}
