package process

import (
	"testing"
	"time"
)

func TestReadCPU(t *testing.T) {
	line := "42 (a) b) c) S 1 42 42 0 -1 4194560 100 0 0 0 123 77 0 0 20 0 9 0 100 0 0\n"
	if d, err := readCPU(line); err != nil || d != 2*time.Second {
		t.Errorf("got %v %v, want 2s", d, err)
	}
	for _, bad := range []string{"", "42 (x) S 1 2", "42 (x) S 1 42 42 0 -1 4194560 100 0 0 0 x 77 0"} {
		if _, err := readCPU(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// The environment reaches the program, and what it prints is kept.
func TestStartPassesEnvironment(t *testing.T) {
	p, err := Start([]string{"STINT_BENCH_WORD=stint"}, "/bin/sh", "-c", "echo the word is $STINT_BENCH_WORD")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	<-p.Ended()
	if got := p.String(); got != "/bin/sh:\nthe word is stint\n" {
		t.Errorf("got %q", got)
	}
}
