package fleet

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// now is the time since the machine was started, in nanoseconds, by the one clock
// that all processes of a host read alike and that nobody sets: the times of
// different processes can be compared.
func now() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		panic(fmt.Sprintf("fleet: this system has no monotonic clock: %v", err))
	}
	return t.Nano()
}

// After returns the time that is d ahead, by the clock that [Load] and [Admission] are
// in.
func After(d time.Duration) int64 { return now() + int64(d) }

// Until is how long it takes until t has come.
func Until(t int64) time.Duration { return time.Duration(t - now()) }

// Stalls returns the stalls of this process, whose proxy carries what the others say,
// until ctx ends.
func Stalls(ctx context.Context) (stalls []Stall) {
	const every = 5 * time.Millisecond
	timer := time.NewTimer(every)
	defer timer.Stop()
	for due := now() + int64(every); sleep(ctx, timer, due); due += int64(every) {
		t := now()
		if t-due > int64(Patience) {
			stalls = append(stalls, Stall{due, t})
			due = t
		}
	}
	return stalls
}
