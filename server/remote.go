package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/clusterurl"
	"github.com/stint-io/stint/internal/configstore"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/admin"
)

const (
	// firstRead is how long a start waits for the backend of the configuration.
	firstRead = 5 * time.Second

	// laterRead bounds a check while the server runs. Not longer: a check waits for the one before.
	laterRead = 2 * time.Second
)

// nodeName is what a member that publishes its version may be called.
var nodeName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)

// remoteConfig returns the URL that stands for the configuration; "" = it is in files.
func (o *Options) remoteConfig() (string, error) {
	for _, path := range o.ConfigPaths {
		if !IsConfigURL(path) {
			continue
		}
		if len(o.ConfigPaths) > 1 {
			return "", errors.New("server: --config has a URL and something else: a configuration is in files, or at one URL")
		}
		return path, nil
	}
	return "", nil
}

// IsConfigURL reports whether an entry of [Options.ConfigPaths] is a URL, and no file or folder.
func IsConfigURL(path string) bool { return strings.Contains(path, "://") }

// remote is a configuration that is kept in a backend. A version that this server cannot enforce is
// kept out: the one in force stays.
type remote struct {
	store    *configstore.Store
	register cluster.Register
	place    string // the URL without its password, for people
	node     string
	program  string
	copied   string        // the file with a copy of the version in force; "" = none
	changed  chan struct{} // receives when the report has changed

	checking struct {
		sync.Mutex                  // held from reading a version until it is in force
		seen       configstore.Meta // the latest that was tried
	}
	mu struct {
		sync.Mutex
		inForce configstore.Meta
		refused uint64 // the version that is kept out; 0 = none, or it is not known
		problem string // why the latest version is not in force; "" = it is
		away    string // why the backend does not answer; "" = it does
	}
}

// openRemote opens the backend of the configuration.
func openRemote(url string, o *Options) (*remote, error) {
	if o.Cluster.Node != "" && !nodeName.MatchString(o.Cluster.Node) {
		return nil, fmt.Errorf("server: --node is %q, want at most 100 letters, digits, dots, hyphens and underscores", o.Cluster.Node)
	}
	register, err := clusterurl.Open(url)
	if err != nil {
		return nil, fmt.Errorf("server: --config: %w", err)
	}
	r := &remote{
		store: configstore.New(register), register: register, place: clusterurl.Redacted(url),
		node: cmp.Or(o.Cluster.Node, randomNode()), program: o.Version, changed: make(chan struct{}, 1),
	}
	if o.StateDir != "" {
		r.copied = configstore.CopyName(o.StateDir, r.place)
	}
	return r, nil
}

// randomNode is the name of a server that was given none.
func randomNode() string {
	host, _ := os.Hostname() // "" where it cannot be read
	number := make([]byte, 3)
	rand.Read(number) // never fails
	return cmp.Or(host, "stint") + "-" + hex.EncodeToString(number)
}

// compile returns the limits of a version.
func (c *config) compile(v *configstore.Version) (*rules.Set, error) {
	files := make([]rules.File, len(v.Files))
	for i, f := range v.Files {
		files[i] = rules.File{Name: f.Name, Text: []byte(f.Text)}
	}
	set, err := c.rules.Compile(files...)
	if err == nil {
		err = c.full(set)
	}
	return set, err
}

// first returns the configuration to begin with: the latest version, or the copy of the one that was
// in force before, where the latest cannot be had or is refused.
func (r *remote) first(c *config) (*rules.Set, error) {
	ctx, cancel := context.WithTimeout(context.Background(), firstRead)
	defer cancel()
	v, err := r.store.Latest(ctx)
	var set *rules.Set
	if err == nil {
		r.checking.seen = v.Meta // what cannot be read is tried again, and nothing else
		set, err = c.compile(&v)
	}
	if err == nil {
		r.mu.inForce = v.Meta
		r.copy(c, &v)
		return set, nil
	}
	kept, unread := configstore.ReadCopy(r.copied)
	if unread == nil {
		set, unread = c.compile(&kept)
	}
	if unread != nil {
		if errors.Is(err, configstore.ErrNone) {
			return nil, fmt.Errorf("server: there is no configuration at %s: push one with 'stint config push FILE --to URL', or correct the prefix at the end of the URL", r.place)
		}
		if v.Version != 0 {
			return nil, fmt.Errorf("server: version %d of the configuration at %s is refused, and there is no copy of a former one: %w", v.Version, r.place, err)
		}
		return nil, fmt.Errorf("server: the configuration at %s cannot be read, and there is no copy of a former one: %w", r.place, err)
	}
	r.mu.inForce = kept.Meta
	if v.Version == 0 && unanswered(err) {
		r.answers(c, err)
	} else {
		r.keptOut(v.Version, err)
		logFaults(c.log.With("version", v.Version), err)
	}
	c.log.Warn("the configuration is from the copy of a former version", "version", kept.Version, "file", r.copied)
	return set, nil
}

// copy keeps a copy of v for a start without the backend.
func (r *remote) copy(c *config, v *configstore.Version) {
	if r.copied == "" {
		return
	}
	if err := configstore.WriteCopy(r.copied, v); err != nil {
		c.log.Warn("no copy of the configuration can be kept for a start without its backend", "error", err)
	}
}

// unanswered reports whether err says that the backend does not answer, and nothing of a version.
func unanswered(err error) bool {
	damaged := (*configstore.Damaged)(nil)
	return err != nil && !errors.As(err, &damaged) && !errors.Is(err, configstore.ErrNone)
}

// keptOut notes why a version is not in force; 0 = its number is not known. It reports whether that
// is news.
func (r *remote) keptOut(version uint64, err error) (news bool) {
	why := inOneLine(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	news = r.mu.problem != why || r.mu.refused != version
	r.mu.refused, r.mu.problem = version, why
	return news
}

// answers notes why the backend does not answer; nil = it does.
func (r *remote) answers(c *config, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.mu.away
	r.mu.away = ""
	if err != nil {
		r.mu.away = inOneLine(err)
	}
	switch {
	case before == "" && err != nil:
		c.log.Warn("the backend of the configuration does not answer, the version in force stays", "version", r.mu.inForce.Version, "error", r.mu.away)
	case before != "" && err == nil:
		c.log.Info("the backend of the configuration answers again", "version", r.mu.inForce.Version)
	}
}

// check puts the latest version in force if it is another one than was tried before; again tries the
// same one once more.
func (r *remote) check(ctx context.Context, c *config, again bool) error {
	r.checking.Lock()
	defer r.checking.Unlock()
	known := r.checking.seen
	if again {
		known = configstore.Meta{}
	}
	reading, cancel := context.WithTimeout(ctx, laterRead)
	defer cancel()
	v, changed, err := r.store.Next(reading, known)
	if ctx.Err() != nil {
		return nil // the server stops
	}
	if unanswered(err) {
		r.answers(c, err)
		return err
	}
	r.answers(c, nil)
	if err != nil {
		r.checking.seen = configstore.Meta{} // what comes back is tried again
		if r.keptOut(v.Version, err) {
			_ = c.apply(nil, err, "version", v.Version) // logs and counts it
			r.announce()
		}
		return err
	}
	if !changed {
		return nil
	}
	r.checking.seen = v.Meta
	var set *rules.Set
	if err = r.newer(&v); err == nil {
		set, err = c.compile(&v)
	}
	if err = r.enforce(c, &v, set, err); err != nil {
		r.keptOut(v.Version, err)
		r.announce()
		return err
	}
	r.copy(c, &v)
	r.announce()
	return nil
}

// enforce puts v in force. Nobody is told of one version while requests are decided by another.
func (r *remote) enforce(c *config, v *configstore.Version, set *rules.Set, err error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err = c.apply(set, err, "version", v.Version, "author", v.Author); err == nil {
		r.mu.inForce, r.mu.refused, r.mu.problem = v.Meta, 0, ""
	}
	return err
}

// newer returns an error if v does not come after the version in force and is not that one: the backend has
// lost what it acknowledged, or was set back. Other members may enforce what was lost, and the number
// that a member enforces only rises. A push takes a number above those that members report.
func (r *remote) newer(v *configstore.Version) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v.Version > r.mu.inForce.Version || v.Same(r.mu.inForce) {
		return nil
	}
	return fmt.Errorf("server: the backend has lost version %d, which is in force: push the configuration again", r.mu.inForce.Version)
}

// announce has the report written.
func (r *remote) announce() {
	select {
	case r.changed <- struct{}{}:
	default: // it will be
	}
}

// run follows the versions and publishes what is enforced, until ctx ends.
func (r *remote) run(ctx context.Context, c *config) {
	var running sync.WaitGroup
	running.Go(func() {
		r.store.Follow(ctx, func(ctx context.Context) (answered bool) {
			_ = r.check(ctx, c, false)
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.mu.away == ""
		})
	})
	running.Go(func() {
		r.store.Publish(ctx, r.node, r.changed, func() configstore.Report {
			r.mu.Lock()
			defer r.mu.Unlock()
			return configstore.Report{
				Version: r.mu.inForce.Version, SHA256: r.mu.inForce.SHA256,
				Refused: r.mu.refused, Reason: r.mu.problem, Program: r.program,
			}
		})
	})
	running.Wait()
}

// status says which version is in force, and what is amiss.
func (r *remote) status() (version, amiss string) {
	if r == nil {
		return "", ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.mu.refused != 0:
		amiss = fmt.Sprintf("config version %d stays in force, version %d is refused: %s", r.mu.inForce.Version, r.mu.refused, r.mu.problem)
	case r.mu.problem != "":
		amiss = fmt.Sprintf("config version %d stays in force: %s", r.mu.inForce.Version, r.mu.problem)
	case r.mu.away != "":
		amiss = fmt.Sprintf("config version %d stays in force, its backend does not answer: %s", r.mu.inForce.Version, r.mu.away)
	}
	return fmt.Sprintf("config version %d", r.mu.inForce.Version), amiss
}

// metrics returns what metrics show; nil = the configuration is in files.
func (r *remote) metrics() *admin.Config {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return &admin.Config{Version: r.mu.inForce.Version, Refused: r.mu.refused, BackendUp: r.mu.away == ""}
}

// close closes the backend.
func (r *remote) close() error {
	if r == nil {
		return nil
	}
	return r.register.Close()
}

// inOneLine is an error for a line of text: the first fault of several.
func inOneLine(err error) string {
	var list rules.Errors
	if !errors.As(err, &list) || len(list) == 0 {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	first := list[0]
	first.Excerpt, first.Hint = "", ""
	text := strings.ReplaceAll(first.Error(), "\n", "; ")
	if len(list) > 1 {
		text += fmt.Sprintf(" (and %d more)", len(list)-1)
	}
	return text
}
