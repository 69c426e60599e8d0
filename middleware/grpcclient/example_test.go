package grpcclient_test

import (
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/stint-io/stint/middleware/grpcclient"
)

func ExampleNew() {
	guard, err := grpcclient.New(grpcclient.Policy{}, grpcclient.WithIdempotent(func(method string) bool {
		return method == healthpb.Health_Check_FullMethodName
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	conn, err := grpc.NewClient("dns:///backend.internal:443", append(guard.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = conn.Close() }()
	fmt.Println(guard.Stats().Sent)
	// Output: 0
}
