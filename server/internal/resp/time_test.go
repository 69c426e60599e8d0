package resp

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestRestOfACommandHasTime: a client that sends commands without a pause is never cut off, however its writes are
// divided; one that does not send the rest of a command is, after readTime.
func TestRestOfACommandHasTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t)
		near, far := net.Pipe()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.conn(context.Background(), far).run()
			_ = far.Close()
		}()
		answers := make(chan string)
		go func() {
			text, _ := io.ReadAll(near)
			answers <- string(text)
		}()
		const n = 40
		all := strings.Repeat("PING\r\n", n)
		begin := time.Now()
		for at := 3; at < len(all); at += 6 { // each write ends within a command
			if _, err := io.WriteString(near, all[max(0, at-6):at]); err != nil {
				t.Fatalf("cut off after %v: %v", time.Since(begin), err)
			}
			time.Sleep(time.Second)
		}
		last := time.Now()
		<-ended
		if waited := time.Since(last); waited < readTime-2*time.Second || waited > readTime {
			t.Errorf("half a command was waited for %v, want %v", waited, readTime)
		}
		if got := <-answers; strings.Count(got, "+PONG\r\n") != n-1 {
			t.Errorf("%d answers, want %d", strings.Count(got, "+PONG\r\n"), n-1)
		}
	})
}
