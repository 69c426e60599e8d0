package stint_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
)

// Limiters in several places spend one limit when the file names a Redis, and decide
// as the limits say when it has gone.
func TestOpenWithRedis(t *testing.T) {
	r := redistest.Start(t, "--requirepass", "s3cret")
	path := filepath.Join(t.TempDir(), "stint.yaml")
	text := fmt.Sprintf("store: redis://:s3cret@%s\nlimits:\n  - {name: a, rate: 2/hour, on_store_failure: reject}\n", r.Addr())
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(text)
	take := func(l *stint.Limiter, cost int64) limit.Result {
		t.Helper()
		d, err := l.Take(context.Background(), limit.Request{Cost: cost, Peek: cost == 0})
		if err != nil {
			t.Fatal(err)
		}
		return d.Results[0]
	}
	limiters := make([]*stint.Limiter, 2)
	for i := range limiters {
		var err error
		if limiters[i], err = stint.Open(path); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := limiters[i].Close(); err != nil {
				t.Error(err)
			}
		})
		awaitStore(t, func() bool { return !take(limiters[i], 0).StoreFailed })
	}
	for i, want := range []bool{true, true, false} {
		if got := take(limiters[i%2], 1); got.Allowed != want || got.StoreFailed {
			t.Errorf("request %d: %+v", i+1, got)
		}
	}

	write(strings.Replace(text, "s3cret@", "s3cret-too@", 1))
	if err := limiters[0].Reload(); err == nil || !strings.Contains(err.Error(), "store: has changed") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("a reload with another store: %v", err)
	}
	write(strings.Replace(text, "2/hour", "20/hour", 1))
	if err := limiters[0].Reload(); err != nil {
		t.Error(err)
	}

	r.Kill()
	awaitStore(t, func() bool { return take(limiters[0], 1).StoreFailed })
	if got := take(limiters[0], 1); got.Allowed || got.Reason != limit.ReasonStoreFailure {
		t.Errorf("without Redis: %+v", got)
	}
}

// awaitStore asks until ok says yes.
func awaitStore(t *testing.T, ok func() bool) {
	t.Helper()
	late := time.After(10 * time.Second)
	often := time.NewTicker(10 * time.Millisecond)
	defer often.Stop()
	for !ok() {
		select {
		case <-often.C:
		case <-late:
			t.Fatal("the store did not get there")
		}
	}
}

func TestWrongRedisURL(t *testing.T) {
	_, err := stint.Parse("store: redis://:s3cret@host?timeuot=1s\nlimits: []\n")
	if err == nil || !strings.Contains(err.Error(), "timeout") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("%v", err)
	}
}
