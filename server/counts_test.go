package server

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
)

const monthly = "limits: [{name: month, key: [account], algorithm: fixed_window, rate: 10/month}]\n"

// counting makes a server whose counts are in a folder, and closes it when close is called.
func counting(t *testing.T, o Options, file string) *Server {
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
	if info, err := os.Stat(filepath.Join(folder, countsFile)); err != nil || info.Mode().Perm() != 0o600 {
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
	if err == nil || !strings.Contains(err.Error(), "another process has") {
		t.Errorf("%v", err)
	}
	for _, bad := range []Options{{Sync: "often"}, {Sync: "1ms"}, {Sync: "1h"}, {Store: "file://relative"}, {Store: "file:///x?sync=always"}} {
		if _, err := New(bad); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}
