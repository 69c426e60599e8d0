package costs

import (
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// thread is the CPU clock of a thread of this process, which other threads may read.
type thread struct{ clock uintptr }

// lockThread binds the calling goroutine to its thread and returns that. ok is false where threads
// have no clock; the goroutine is not bound then.
func lockThread() (t thread, ok bool) {
	runtime.LockOSThread()
	// As pthread_getcpuclockid makes it: the complement of the thread, and that the clock is one
	// thread's and counts by the scheduler.
	const perThread, byScheduler = 4, 2
	t = thread{uintptr(^syscall.Gettid()<<3 | perThread | byScheduler)}
	if t.used() == 0 {
		runtime.UnlockOSThread()
		return t, false
	}
	return t, true
}

// used is the CPU time of the thread so far; 0 when it has ended.
func (t thread) used() time.Duration {
	var at syscall.Timespec
	if _, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, t.clock, uintptr(unsafe.Pointer(&at)), 0); failed != 0 {
		return 0
	}
	return time.Duration(at.Nano())
}
