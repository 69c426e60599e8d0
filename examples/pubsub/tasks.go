package main

import (
	"context"
	"errors"
	"sync"
)

// tasks are goroutines of which the first that fails ends all.
type tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	errs   []error
}

func newTasks(ctx context.Context) *tasks {
	ctx, cancel := context.WithCancel(ctx)
	return &tasks{ctx: ctx, cancel: cancel}
}

func (t *tasks) start(f func(ctx context.Context) error) {
	t.wg.Go(func() {
		if err := f(t.ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.mu.Lock()
			t.errs = append(t.errs, err)
			t.mu.Unlock()
			t.cancel()
		}
	})
}

// wait returns when all have ended.
func (t *tasks) wait() error {
	t.wg.Wait()
	t.cancel()
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(t.errs...)
}
