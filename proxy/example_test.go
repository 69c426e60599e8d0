package proxy_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/stint-io/stint/proxy"
	"github.com/stint-io/stint/server"
)

func ExampleNew() {
	// The server to protect. It may be written in any language.
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "hello %s\n", r.Header.Get("X-Real-Ip"))
	}))
	defer app.Close()
	folder, err := os.MkdirTemp("", "limits")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(folder)
	limits := filepath.Join(folder, "stint.yaml")
	if err := os.WriteFile(limits, []byte("limits: [{name: per-ip, key: [ip], rate: 1/hour}]\n"), 0o600); err != nil {
		fmt.Println(err)
		return
	}

	p, err := proxy.New(proxy.Options{
		Upstreams: []string{app.URL},
		HTTPAddr:  "127.0.0.1:0",
		Decide: server.Options{
			ConfigPaths: []string{limits}, AdminAddr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	<-p.Ready()

	for range 2 {
		res, err := http.Get("http://" + p.Addr().String())
		if err != nil {
			fmt.Println(err)
			return
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			fmt.Print(res.StatusCode, " ", string(body))
		} else {
			fmt.Println(res.StatusCode, "retry after", res.Header.Get("Retry-After"))
		}
	}
	stop()
	fmt.Println(<-ended)
	// Output:
	// 200 hello 127.0.0.1
	// 429 retry after 3600
	// <nil>
}
