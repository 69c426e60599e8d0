package grpcthrottle_test

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/stint-io/stint/middleware/grpcthrottle"
	"github.com/stint-io/stint/throttle"
)

func ExampleUnaryServerInterceptor() {
	t, err := throttle.New(throttle.Options{Rate: 1.6}) // 80 % of two cores
	if err != nil {
		fmt.Println(err)
		return
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpcthrottle.UnaryServerInterceptor(t)),
		grpc.ChainStreamInterceptor(grpcthrottle.StreamServerInterceptor(t)))
	server.Stop()
}
