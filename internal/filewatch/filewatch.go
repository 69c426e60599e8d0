// Package filewatch says when files may have changed: by the notifications of the system, and by a
// regular check where there are none. It follows editors that replace a file and the symbolic links
// that Kubernetes swaps. It reads no file: whether the content differs is for the caller to find.
package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long the files must be quiet before they are checked. Not
	// shorter: an editor's save is several steps. Not longer: a person waits.
	settle = 100 * time.Millisecond

	// interval is how often the files are checked without a notification, for file systems that
	// send none. Not shorter: a check reads every byte.
	interval = 10 * time.Second
)

// Watch calls check at once, then each time that one of the paths may have changed, and every ten
// seconds. paths returns files and folders; it is called before each check, so that they may
// change. check is called by one goroutine at a time. Watch returns when ctx ends, with its
// error, after all it started has ended.
func Watch(ctx context.Context, paths func() []string, check func()) error {
	var events chan fsnotify.Event
	var failures chan error
	// Without notifications (a limit of the system, a network file system) the regular check
	// remains.
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		events, failures = watcher.Events, watcher.Errors
	}
	run := func() {
		if watcher != nil {
			follow(watcher, paths())
		}
		check()
	}
	run()
	quiet := time.NewTimer(settle)
	quiet.Stop()
	defer quiet.Stop()
	regular := time.NewTicker(interval)
	defer regular.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case _, open := <-events:
			if !open {
				events = nil
				continue
			}
			quiet.Reset(settle)
		case _, open := <-failures:
			// The queue of notifications overflowed: something changed.
			if !open {
				failures = nil
				continue
			}
			quiet.Reset(settle)
		case <-quiet.C:
			run()
		case <-regular.C:
			run()
		}
	}
}

// follow watches the folders of all paths, and those that symbolic links lead
// to: a file that is replaced takes its own watch with it. Folders that have
// gone are forgotten by the watcher itself.
func follow(watcher *fsnotify.Watcher, paths []string) {
	watched := make(map[string]bool)
	for _, name := range watcher.WatchList() {
		watched[name] = true
	}
	add := func(folder string) {
		if !watched[folder] && watcher.Add(folder) == nil {
			watched[folder] = true
		}
	}
	for _, path := range paths {
		for _, name := range []string{path, resolved(path)} {
			if info, err := os.Stat(name); err == nil && info.IsDir() {
				add(name)
			}
			add(filepath.Dir(name))
		}
	}
}

func resolved(path string) string {
	if name, err := filepath.EvalSymlinks(path); err == nil {
		return name
	}
	return path
}
