package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// refusal is about what a node answers when it refuses.
const refusal = `{"type":"about:blank","title":"Quota exceeded","status":429,"detail":"nothing is limited here, and nothing admitted; retry after 1 s","violated-policies":["bystander"],"reason":"rate_exceeded","retry_after":1}`

// runBystander answers 429 to everything, and prints its address. It ends with its input.
func runBystander(ctx context.Context, in io.Reader, out io.Writer) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s := &http.Server{
		ReadHeaderTimeout: 10 * time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			_, _ = io.WriteString(w, refusal)
		}),
	}
	t := newTasks(ctx)
	t.start(func(context.Context) error {
		if err := s.Serve(listener); err != http.ErrServerClosed {
			return err
		}
		return nil
	})
	if _, err := fmt.Fprintln(out, "http://"+listener.Addr().String()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	_ = s.Close()
	if ended := t.wait(); err == nil {
		err = ended
	}
	return err
}
