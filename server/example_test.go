package server_test

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	"github.com/stint-io/stint/server"
)

// A service in a program of one's own, until ctx ends.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	s, err := server.New(server.Options{HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()

	<-s.Ready()
	answer, err := http.Post("http://"+s.Addrs().HTTP.String()+"/v1/take", "application/json", strings.NewReader(`{"attributes": {"ip": "192.0.2.7"}}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	answer.Body.Close()
	fmt.Println(answer.Status)
	stop()
	fmt.Println(<-ended)
	// Output:
	// 200 OK
	// <nil>
}
