package process

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

// AwaitOK waits, at most 10 seconds, until GET of url answers 200: a service is
// up before it is ready.
func AwaitOK(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 10*time.Second, fmt.Errorf("process: %s is not OK within 10 s", url))
	defer cancel()
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return fmt.Errorf("process: %w", err)
		}
		if resp, err := http.DefaultClient.Do(req); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-again.C:
		}
	}
}
