package rules

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long the files must be quiet before they are read. Not
	// shorter: an editor's save is several steps. Not longer: a person waits.
	settle = 100 * time.Millisecond

	// glance is how often the files are read without being told to, for file
	// systems that tell nothing. Not shorter: it reads every byte.
	glance = 10 * time.Second
)

// Watch calls onChange each time the content of the files and folders has
// changed, with the new Set or, when there is a fault in them, with the error; the
// last good Set stays the caller's. It begins with what the files hold when it is
// called: a change between an earlier Load and that moment is not seen; use
// [Set.Watch] for that.
//
// It follows editors that replace files and the symbolic links of Kubernetes.
// onChange is called by one goroutine at a time. Watch returns when ctx ends,
// with its error, after all it started has ended.
func Watch(ctx context.Context, paths []string, onChange func(*Set, error)) error {
	return watch(ctx, Options{}, paths, nil, onChange)
}

// Watch is like the function of that name, and begins with the content that the
// Set was made of, and with its Options. paths are those that were given to [Load].
func (s *Set) Watch(ctx context.Context, paths []string, onChange func(*Set, error)) error {
	return watch(ctx, s.options, paths, &s.content, onChange)
}

func watch(ctx context.Context, o Options, paths []string, last *fingerprint, onChange func(*Set, error)) error {
	var events chan fsnotify.Event
	var failures chan error
	// Without notices (a limit of the system, a foreign file system) the
	// regular glance remains.
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		events, failures = watcher.Events, watcher.Errors
	}
	check := func() {
		if watcher != nil {
			follow(watcher, paths)
		}
		sources, found := gather(paths)
		content := fingerprintOf(sources, found)
		if last != nil && content == *last {
			return
		}
		first := last == nil
		last = &content
		if !first {
			onChange(o.compile(sources, found))
		}
	}
	check()
	quiet := time.NewTimer(settle)
	quiet.Stop()
	defer quiet.Stop()
	regular := time.NewTicker(glance)
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
			// Overflowed notices: something changed.
			if !open {
				failures = nil
				continue
			}
			quiet.Reset(settle)
		case <-quiet.C:
			check()
		case <-regular.C:
			check()
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
