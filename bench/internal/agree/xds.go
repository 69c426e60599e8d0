package agree

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	control "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	config "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
)

// node is how the services name themselves to the control plane.
const node = "agree"

// controlPlane is go-control-plane with one configuration, for both services.
type controlPlane struct {
	addr   string
	states cache.SnapshotCache
	grpc   *grpc.Server
	ended  chan error
}

// put makes files the configuration. The protocol has no field for share_threshold
// and value_to_metric: neither service sees them.
func (c *controlPlane) put(ctx context.Context, version int, files []File) error {
	var list []types.Resource
	for _, f := range files {
		list = append(list, &config.RateLimitConfig{Name: f.Name, Domain: f.Domain, Descriptors: resources(f.Descriptors)})
	}
	snapshot, err := cache.NewSnapshot(fmt.Sprint(version), map[resource.Type][]types.Resource{resource.RateLimitConfigType: list})
	if err == nil {
		err = c.states.SetSnapshot(ctx, node, snapshot)
	}
	if err != nil {
		return fmt.Errorf("agree: %w", err)
	}
	return nil
}

// serveXDS serves until it is stopped, nothing at first.
func serveXDS(ctx context.Context) (*controlPlane, error) {
	states := cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("agree: %w", err)
	}
	c := &controlPlane{addr: l.Addr().String(), states: states, grpc: grpc.NewServer(), ended: make(chan error, 1)}
	discovery.RegisterAggregatedDiscoveryServiceServer(c.grpc, control.NewServer(ctx, states, nil))
	go func() { c.ended <- c.grpc.Serve(l) }() // ends with stop
	return c, nil
}

func (c *controlPlane) stop() error {
	c.grpc.Stop()
	if err := <-c.ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("agree: %w", err)
	}
	return nil
}

// unshared is the set as the protocol of xDS carries it.
func (s Set) unshared() Set {
	domains := map[string][]Rule{}
	for name, rules := range s.domains {
		domains[name] = unshare(rules)
	}
	s.domains = domains
	return s
}

func unshare(rules []Rule) (list []Rule) {
	for _, r := range rules {
		r.ShareThreshold = false
		r.Descriptors = unshare(r.Descriptors)
		list = append(list, r)
	}
	return list
}

func resources(rules []Rule) (list []*config.RateLimitDescriptor) {
	for _, r := range rules {
		d := &config.RateLimitDescriptor{
			Key: r.Key, Value: r.Value, ShadowMode: r.ShadowMode, DetailedMetric: r.DetailedMetric,
			Descriptors: resources(r.Descriptors),
		}
		if r.Limit != nil {
			d.RateLimit = &config.RateLimitPolicy{
				Unit:            config.RateLimitUnit(config.RateLimitUnit_value[strings.ToUpper(r.Limit.Unit)]),
				RequestsPerUnit: r.Limit.Requests, Unlimited: r.Limit.Unlimited, Name: r.Limit.Name,
			}
			for _, other := range r.Limit.Replaces {
				d.RateLimit.Replaces = append(d.RateLimit.Replaces, &config.RateLimitReplace{Name: other.Name})
			}
		}
		list = append(list, d)
	}
	return list
}
