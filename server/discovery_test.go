package server_test

import (
	"net"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/stint-io/stint/internal/xds"
	"github.com/stint-io/stint/server"
)

// management sends a configuration, and then one with a fault, again and again.
type management struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer
	refused chan struct{} // closed when the fault was refused three times
}

func (m *management) StreamAggregatedResources(s discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	good := &ratelimit.RateLimitConfig{Name: "edge", Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{
		{Key: "user", RateLimit: &ratelimit.RateLimitPolicy{Unit: ratelimit.RateLimitUnit_YEAR, RequestsPerUnit: 5}},
	}}
	bad := &ratelimit.RateLimitConfig{Name: "edge", Domain: "edge", Descriptors: []*ratelimit.RateLimitDescriptor{{Key: ""}}}
	for i, c := range []*ratelimit.RateLimitConfig{good, bad, bad, bad} {
		if _, err := s.Recv(); err != nil {
			return err
		}
		one, err := anypb.New(c)
		if err != nil {
			return err
		}
		version := map[bool]string{true: "1", false: "2"}[i == 0]
		if err := s.Send(&discovery.DiscoveryResponse{VersionInfo: version, TypeUrl: xds.TypeURL, Resources: []*anypb.Any{one}}); err != nil {
			return err
		}
	}
	if _, err := s.Recv(); err != nil {
		return err
	}
	close(m.refused)
	<-s.Context().Done()
	return nil
}

// TestRefusedDiscoveryIsLoggedOnce: a configuration by the discovery protocol that has a fault is logged once, however
// often it is sent.
func TestRefusedDiscoveryIsLoggedOnce(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := &management{refused: make(chan struct{})}
	g := grpc.NewServer()
	discovery.RegisterAggregatedDiscoveryServiceServer(g, m)
	ended := make(chan error, 1)
	go func() { ended <- g.Serve(l) }()
	s := start(t, "", func(o *server.Options) { o.ConfigPaths = []string{"xds://" + l.Addr().String() + "/node"} })
	<-m.refused
	// Before the test's clean-up, so that the stream ends.
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	g.Stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	var lines []string
	for line := range strings.Lines(s.log.String()) {
		if strings.Contains(line, "refused") && !strings.Contains(line, "ready, but degraded") {
			lines = append(lines, line)
		}
	}
	if len(lines) != 1 || !strings.Contains(lines[0], "version=2") {
		t.Errorf("%d lines about the fault, want one:\n%s", len(lines), strings.Join(lines, ""))
	}
}
