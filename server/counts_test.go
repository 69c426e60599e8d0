package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

const monthly = "limits: [{name: month, key: [account], algorithm: fixed_window, rate: 10/month}]\n"

// counting makes a server whose counts are in a folder, and closes it when close is called.
func counting(t testing.TB, o Options, file string) *Server {
	t.Helper()
	o.HTTPAddr, o.GRPCAddr, o.AdminAddr = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	path := filepath.Join(t.TempDir(), "limits.yaml")
	if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	o.ConfigPaths = []string{path}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A month's count is there after a restart, in the state directory or in the file that is named; with never it
// is not.
func TestCountsOutliveAServer(t *testing.T) {
	folder := t.TempDir()
	named := "store: file://" + filepath.Join(t.TempDir(), "my.db") + "\n"
	for _, c := range []struct {
		name  string
		o     Options
		file  string
		after int64 // what remains after a second Take by a second server
	}{
		{"state directory", Options{StateDir: folder}, monthly, 4},
		{"always", Options{StateDir: t.TempDir(), Sync: SyncAlways}, monthly, 4},
		{"a file that is named", Options{}, named + monthly, 4},
		{"never", Options{StateDir: t.TempDir(), Sync: SyncNever}, monthly, 7},
		{"nowhere", Options{}, monthly, 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			var left int64
			for range 2 {
				s := counting(t, c.o, c.file)
				d, err := s.engine.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "acme"}}, Cost: 3})
				if err != nil {
					t.Fatal(err)
				}
				left = d.Results[0].Remaining
				if err := s.close(true); err != nil {
					t.Fatal(err)
				}
			}
			if left != c.after {
				t.Errorf("%d left, want %d", left, c.after)
			}
		})
	}
	if info, err := os.Stat(filepath.Join(folder, CountsFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info, err)
	}
}

// A default folder that another process has is no reason not to start; one that was asked for is.
func TestCountsFileInUse(t *testing.T) {
	folder := t.TempDir()
	first := counting(t, Options{StateDir: folder}, monthly)
	defer func() {
		if err := first.close(true); err != nil {
			t.Error(err)
		}
	}()
	second := counting(t, Options{StateDir: folder, StateDirIfFree: true}, monthly)
	if err := second.close(true); err != nil {
		t.Error(err)
	}
	_, err := New(Options{StateDir: folder})
	if err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("%v", err)
	}
	for _, bad := range []Options{{Sync: "often"}, {Sync: "1ms"}, {Sync: "1h"}, {Store: "file://relative"}, {Store: "file:///x?sync=always"}} {
		if _, err := New(bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}

// A default folder whose process is ending is waited for: without it the counts would begin anew.
func TestCountsFileOfOneThatEnds(t *testing.T) {
	folder := t.TempDir()
	first, ended := counting(t, Options{StateDir: folder}, monthly), make(chan error, 1)
	time.AfterFunc(50*time.Millisecond, func() { ended <- first.close(true) })
	second := counting(t, Options{StateDir: folder, StateDirIfFree: true}, monthly)
	if second.storage.file == nil {
		t.Error("the second server keeps no counts")
	}
	if err := errors.Join(<-ended, second.close(true)); err != nil {
		t.Error(err)
	}
}

// What the file costs of the service's throughput: decisions over HTTP on kept connections, of a month's limit of
// 1,000 and of 100,000 customers, by a server with a file and by one without, in turns.
//
//	go test ./server -run xxx -bench CountsFile -benchtime 7x
func BenchmarkCountsFile(b *testing.B) {
	for _, customers := range []int{1000, 100_000} {
		b.Run(fmt.Sprint(customers, " customers"), func(b *testing.B) {
			var urls []string
			for _, sync := range []string{SyncNever, "1s"} {
				path := filepath.Join(b.TempDir(), "limits.yaml")
				if err := os.WriteFile(path, []byte(strings.Replace(monthly, "10/month", "1G/month", 1)), 0o600); err != nil {
					b.Fatal(err)
				}
				s, err := New(Options{
					HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0", ConfigPaths: []string{path},
					StateDir: b.TempDir(), Sync: sync, Logger: slog.New(slog.DiscardHandler),
				})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(b.Context())
				ended := make(chan error, 1)
				go func() { ended <- s.Run(ctx) }()
				<-s.Ready()
				b.Cleanup(func() {
					cancel()
					if err := <-ended; err != nil {
						b.Error(err)
					}
				})
				urls = append(urls, "http://"+s.Addrs().HTTP.String()+"/v1/take")
			}
			var ratios []float64
			for b.Loop() {
				without := takesOver(b, urls[0], customers)
				ratios = append(ratios, float64(takesOver(b, urls[1], customers))/float64(without))
			}
			slices.Sort(ratios)
			b.ReportMetric(ratios[len(ratios)/2], "of-memory")
			b.ReportMetric(ratios[0], "least")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// takesOver returns how many decisions eight connections have in a second.
func takesOver(b *testing.B, url string, customers int) (n int64) {
	var all sync.WaitGroup
	var done atomic.Int64
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 8}}
	defer client.CloseIdleConnections()
	end := time.Now().Add(time.Second)
	for g := range 8 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 14))
			for time.Now().Before(end) {
				resp, err := client.Post(url, "application/json", strings.NewReader(fmt.Sprintf(`{"attributes":{"account":"customer-%d"}}`, r.IntN(customers))))
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				if resp.StatusCode != 200 {
					b.Error(resp.Status)
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	return done.Load()
}
