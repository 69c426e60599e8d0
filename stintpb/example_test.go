package stintpb_test

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stint-io/stint/server"
	"github.com/stint-io/stint/stintpb"
)

// A gateway reserves the most that an answer can cost, says before each piece what it will have sent, and commits what
// it has cost.
func Example() {
	address, stop := serve("limits: [{name: tokens, key: [tenant], rate: 1000/day, algorithm: fixed_window}]\n")
	defer stop()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	limits, ctx := stintpb.NewLimitsClient(conn), context.Background()

	made, err := limits.Reserve(ctx, &stintpb.ReserveRequest{
		Attributes: map[string]string{"tenant": "acme"}, Cost: 800, Ttl: durationpb.New(10 * time.Second),
	})
	if err != nil {
		log.Fatal(err)
	}
	if !made.GetDecision().GetAllowed() {
		log.Fatal("try again in ", made.GetDecision().GetRetryAfter().AsDuration())
	}
	id := made.GetReservation().GetId()
	for sent := int64(0); sent < 128; sent += 64 {
		if _, err := limits.Renew(ctx, &stintpb.RenewRequest{Id: id, Used: sent + 64}); err != nil {
			log.Fatal(err)
		}
	}
	done, err := limits.Commit(ctx, &stintpb.CommitRequest{Id: id, Actual: 100})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(done.GetState(), done.GetActual())
	// Output: STATE_COMMITTED 100
}

// serve runs a service as 'stint serve' does.
func serve(limits string) (address string, stop func()) {
	dir, err := os.MkdirTemp("", "stintpb")
	if err != nil {
		log.Fatal(err)
	}
	file := filepath.Join(dir, "stint.yaml")
	if err := os.WriteFile(file, []byte(limits), 0o600); err != nil {
		log.Fatal(err)
	}
	s, err := server.New(server.Options{
		ConfigPaths: []string{file}, HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	<-s.Ready()
	return s.Addrs().GRPC.String(), func() {
		cancel()
		if err := <-ended; err != nil {
			log.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			log.Fatal(err)
		}
	}
}
