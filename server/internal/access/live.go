package access

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/filewatch"
)

// Live is the file of --auth as it is in force. It is safe for concurrent use.
type Live struct {
	path  string
	log   *slog.Logger
	table atomic.Pointer[Table]

	mu      sync.Mutex // held while files are read
	content map[string]string
	files   []string // that the latest reading names
	figures Figures
}

// Figures are for metrics.
type Figures struct {
	OK                bool // the file holds what is in force
	Reloads, Failures uint64
	Identities        int
}

// Open reads the file. Its error says what is wrong with it.
func Open(path string, log *slog.Logger) (*Live, error) {
	l := &Live{path: path, log: log}
	table, content, err := l.read()
	if err != nil {
		return nil, err
	}
	l.content, l.figures.OK = content, true
	l.table.Store(table)
	return l, nil
}

// read reads the file and those that it names. What was read is returned with an error as well, to
// know whether it has changed.
func (l *Live) read() (table *Table, content map[string]string, err error) {
	content = map[string]string{}
	text, err := os.ReadFile(l.path)
	if err != nil {
		content[l.path] = err.Error()
		return nil, content, fmt.Errorf("the file of --auth cannot be read: %w", err)
	}
	content[l.path] = string(text)
	l.files = []string{l.path}
	table, err = Parse(l.path, text, func(path string) ([]byte, error) {
		l.files = append(l.files, path)
		text, err := readTokenFile(path)
		content[path] = string(text)
		if err != nil {
			content[path] = err.Error()
		}
		return text, err
	})
	return table, content, err
}

// Identify says who shows the credential.
func (l *Live) Identify(c *Credential) (*Identity, error) {
	return l.table.Load().Identify(c, time.Now())
}

// Begin returns a session of who shows the credential, for streams that last.
func (l *Live) Begin(c Credential) *Session { return &Session{live: l, credential: c} }

// Reload reads the file again. On an error what was in force stays.
func (l *Live) Reload() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	table, content, err := l.read()
	same := equal(content, l.content)
	l.content = content
	switch {
	case err != nil:
		if !same || l.figures.OK {
			l.log.Error("the identities are refused, the former ones stay in force", "error", err)
			l.figures.Failures++
		}
		l.figures.OK = false
		return err
	case same && l.figures.OK:
		return nil
	}
	l.table.Store(table)
	l.figures.OK = true
	l.figures.Reloads++
	l.log.Info("identities loaded", "identities", len(table.identities))
	return nil
}

func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, there := b[k]; !there || v != w {
			return false
		}
	}
	return true
}

// Watch reloads the files when they change, until ctx ends.
func (l *Live) Watch(ctx context.Context) error {
	err := filewatch.Watch(ctx, func() []string {
		l.mu.Lock()
		defer l.mu.Unlock()
		return append([]string{l.path}, l.files...)
	}, func() {
		// Reload logs its fault and counts it.
		_ = l.Reload()
	})
	if errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// Figures returns the figures of this moment.
func (l *Live) Figures() Figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.figures
	f.Identities = len(l.table.Load().identities)
	return f
}

// Session is who has begun a stream. He is identified again at each use: an identity that the file
// lost, or a certificate that has expired, ends it. It is not safe for concurrent use.
type Session struct {
	live       *Live
	credential Credential
	table      *Table // in which identity was found
	identity   *Identity
}

// Identity returns who it is at this moment.
func (s *Session) Identity() (*Identity, error) {
	table, now := s.live.table.Load(), time.Now()
	if s.table == table && s.credential.hasToken {
		return s.identity, nil
	}
	id, err := table.Identify(&s.credential, now)
	if err != nil {
		return nil, err
	}
	s.table, s.identity = table, id
	return id, nil
}

// Still says whether who has begun the stream has the role at this moment. A nil Session has every role: nobody
// asked who it is.
func (s *Session) Still(r Role) bool {
	if s == nil {
		return true
	}
	id, err := s.Identity()
	return err == nil && id.May(r)
}

type contextKey struct{}

// NewContext returns a context that carries the session of a stream.
func NewContext(ctx context.Context, s *Session) context.Context {
	return context.WithValue(ctx, contextKey{}, s)
}

// FromContext returns the session of a stream; nil = nobody asked who it is.
func FromContext(ctx context.Context) *Session {
	s, _ := ctx.Value(contextKey{}).(*Session)
	return s
}
