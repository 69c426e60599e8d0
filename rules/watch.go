package rules

import (
	"context"

	"github.com/stint-io/stint/internal/filewatch"
)

// Watch calls onChange each time the content of the files and folders has changed, with the new
// Set or, when there is a fault in them, with the error; the last good Set stays the caller's.
// It compares with what the files hold when it is called: a change between an earlier Load and
// that moment is not seen; use [Set.Watch] for that.
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
	return filewatch.Watch(ctx, func() []string { return paths }, func() {
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
	})
}
