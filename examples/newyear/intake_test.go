package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// startIntake starts an intake as a process of its own, and returns its URL.
func startIntake(t *testing.T, job intakeJob) (url string, kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0], intakeArg)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	if err := json.NewEncoder(in).Encode(job); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line), kill
}

// TestKilledIntakeLosesNothing kills an intake with kill -9 while it accepts and processes.
func TestKilledIntakeLosesNothing(t *testing.T) {
	t.Parallel()
	const messages, killAt = 300, 60
	var mu sync.Mutex
	got := map[string]int{}
	reached, all := make(chan struct{}), make(chan struct{})
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		if got[string(id)]++; got[string(id)] == 1 {
			switch len(got) {
			case killAt:
				close(reached)
			case messages:
				close(all)
			}
		}
		w.WriteHeader(http.StatusNoContent)
	}))
	defer provider.Close()
	job := intakeJob{Journal: filepath.Join(t.TempDir(), "journal"), Provider: provider.URL, Limit: 200}
	first, kill := startIntake(t, job)
	var url atomic.Pointer[string]
	url.Store(&first)
	var senders sync.WaitGroup
	for s := range 4 {
		senders.Go(func() {
			for i := s; i < messages && t.Context().Err() == nil; {
				resp, err := http.Post(*url.Load(), "text/plain", strings.NewReader("id-"+strconv.Itoa(i)))
				if err != nil {
					continue // killed: the same message again
				}
				_ = resp.Body.Close()
				if resp.StatusCode == http.StatusAccepted {
					i += 4
				}
			}
		})
	}
	<-reached
	kill()
	second, _ := startIntake(t, job)
	url.Store(&second)
	senders.Wait()
	select {
	case <-all:
	case <-time.After(time.Minute): // of the 2 s that it takes
		t.Error("messages that were acknowledged never came")
	}
	mu.Lock()
	defer mu.Unlock()
	repeated := 0
	for _, n := range got {
		repeated += n - 1
	}
	if repeated > 1 {
		t.Errorf("%d messages came twice, want at most the 1 in flight", repeated)
	}
	t.Logf("%d messages, %d repeated", len(got), repeated)
}

func TestJournalDropsALineThatWasCutOff(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "journal")
	text := formatLine(accepted, "a") + formatLine(accepted, "b") + formatLine(processed, "a") + formatLine(accepted, "c")[:12]
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := openJournal(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b", "d"} { // a and b are known
		if err := j.accept(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.file.Close(); err != nil {
		t.Fatal(err)
	}
	if j, err = openJournal(name); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = j.file.Close() }()
	var waiting []string
	for id, ok := j.next(); ok; id, ok = j.next() {
		waiting = append(waiting, id)
	}
	if want := "b d"; strings.Join(waiting, " ") != want {
		t.Errorf("%v wait, want %s", waiting, want)
	}
}
