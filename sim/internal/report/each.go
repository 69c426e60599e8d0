package report

import (
	"context"
	"errors"
	"runtime"
	"sync"
)

// Each calls do for each of n jobs, as many at a time as there are processors, and returns what
// went wrong first: the others are then ended through their context.
func Each(ctx context.Context, n int, do func(ctx context.Context, job int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	failed := make([]error, n)
	jobs := make(chan int)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), n) {
		workers.Go(func() {
			for job := range jobs {
				if err := do(ctx, job); err != nil {
					failed[job] = err
					cancel(err)
				}
			}
		})
	}
	for job := range n {
		jobs <- job
	}
	close(jobs)
	workers.Wait()
	if errors.Join(failed...) != nil {
		return context.Cause(ctx)
	}
	return nil
}
