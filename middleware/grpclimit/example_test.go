package grpclimit_test

import (
	"google.golang.org/grpc"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/grpclimit"
)

func ExampleUnaryServerInterceptor() {
	// Any limit.Taker will do: an engine on a store, a leasing client.
	var taker limit.Taker = &budget{size: 100}

	byKey := grpclimit.WithMetadata("x-api-key")
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(grpclimit.UnaryServerInterceptor(taker, byKey)),
		grpc.ChainStreamInterceptor(grpclimit.StreamServerInterceptor(taker, byKey)))
	server.Stop()
}

func ExampleServerInHandle() {
	var taker limit.Taker = &budget{size: 100}

	server := grpc.NewServer(grpc.InTapHandle(grpclimit.ServerInHandle(taker)))
	server.Stop()
}
