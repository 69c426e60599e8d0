package server

import (
	"context"
	"strconv"

	"google.golang.org/grpc/metadata"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/server/internal/rlqs"
	"github.com/stint-io/stint/server/internal/spending"
)

// openQuotas makes the service that assigns quotas to Envoys: each of their buckets is an instance of
// the coordinator. draining is closed before their streams end.
func (s *Server) openQuotas(draining <-chan struct{}) {
	away := client.NewTransport(s.opts.peers())
	s.quotas = rlqs.New(rlqs.Options{
		Match: s.engine.Matching, ShardOf: s.leases.ShardOf, Shards: s.leases.Shards(), Draining: draining, Logger: s.opts.Logger,
		Connect: func(ctx context.Context, shard int) (rlqs.Stream, error) {
			leader, here, err := s.leases.FindLeader(ctx, shard)
			if err != nil {
				return nil, err
			}
			if here {
				return s.leases.LastingPipe(ctx, shard)
			}
			if shard > 0 {
				ctx = metadata.AppendToOutgoingContext(ctx, client.ShardHeader, strconv.Itoa(shard))
			}
			stream, err := away.Connect(ctx, leader.Address)
			if err != nil {
				return nil, err
			}
			return spending.Away(stream), nil
		},
	})
	s.config.reassign = s.quotas.Reload
}
