// Noop is the ceiling for a rate limit service over gRPC: a server whose
// ShouldRateLimit looks at nothing and says OK for every descriptor. It has the options
// of stint's own server, so that what is between the two is the work of a decision.
package main

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"

	"google.golang.org/grpc"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/internal/grpcserver"
)

type service struct {
	rls.UnimplementedRateLimitServiceServer
}

// ShouldRateLimit fills in what a limiter's answer has, so that both servers
// encode as many bytes.
func (service) ShouldRateLimit(_ context.Context, req *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	statuses := make([]*rls.RateLimitResponse_DescriptorStatus, len(req.Descriptors))
	for i := range statuses {
		statuses[i] = &rls.RateLimitResponse_DescriptorStatus{
			Code: rls.RateLimitResponse_OK,
			CurrentLimit: &rls.RateLimitResponse_RateLimit{
				RequestsPerUnit: 1, Unit: rls.RateLimitResponse_RateLimit_HOUR,
			},
			LimitRemaining: 9999,
		}
	}
	return &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK, Statuses: statuses}, nil
}

func main() {
	addr := flag.String("grpc", "127.0.0.1:0", "address to listen on")
	flag.Parse()
	if err := serve(*addr); err != nil {
		fmt.Fprintln(os.Stderr, "noop:", err)
		os.Exit(1)
	}
}

func serve(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	s := grpc.NewServer(grpcserver.Options(grpcserver.Config{Streams: context.Background(), Fault: func(method string, p any) {
		fmt.Fprintln(os.Stderr, "noop:", method, p)
	}})...)
	rls.RegisterRateLimitServiceServer(s, service{})
	return s.Serve(l)
}
