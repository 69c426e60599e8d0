package server

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stint-io/stint/server/internal/admin"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/durable"
	"github.com/stint-io/stint/store/memory"
	"github.com/stint-io/stint/store/redis"
)

// shared is a store that other processes use as well, and that may not answer.
type shared interface {
	store.BanKeeper
	Ready() error
	Stats() redis.Stats
}

// storage is where a server's counters are.
type storage struct {
	store.BanKeeper // what the engine asks

	// local has the counters of this process: all of them, or those of the limits
	// that decide by their share while the shared store does not answer.
	local *memory.Store
	// shared is nil when local is all there is.
	shared shared
	// file has the long windows of local as well; nil = they end with the process.
	file *durable.Store
	// name is for people; it has no password, and url may have one.
	name, url string
}

// parseStore reads the name of a store; nil Options are memory, with a file if file is not "". Errors show no
// more of the name than how it begins, for it may hold a password.
func parseStore(name string) (remote *redis.Options, file string, err error) {
	if name == StoreMemory {
		return nil, "", nil
	}
	if path, ok := strings.CutPrefix(name, "file://"); ok {
		if !filepath.IsAbs(path) || strings.ContainsAny(path, "?#") {
			return nil, "", errors.New("the store file:// wants the absolute path of a file, as in file:///var/lib/stint/counts.db")
		}
		return nil, path, nil
	}
	kind, _, _ := strings.Cut(name, ":")
	if !strings.HasPrefix(name, kind+"://") || !strings.HasPrefix(kind, "redis") && !strings.HasPrefix(kind, "valkey") {
		known := strings.HasPrefix(kind, "redis") || strings.HasPrefix(kind, "valkey")
		if !known && !strings.HasPrefix(name, kind+"://") || strings.Trim(kind, "abcdefghijklmnopqrstuvwxyz+") != "" {
			kind = "..." // it may be a user or a password
		}
		return nil, "", fmt.Errorf("unknown store %q, want memory, a URL such as redis://127.0.0.1:6379, or a file such as file:///var/lib/stint/counts.db", kind)
	}
	o, err := redis.ParseURL(name)
	if err != nil {
		return nil, "", fmt.Errorf("the URL of the store is wrong: %w", err)
	}
	return &o, "", nil
}

// openStorage opens the store of that name. It does not wait for a shared store to
// answer: one that comes up later than this process is found then.
func openStorage(name string, o *Options) (*storage, error) {
	remote, file, err := parseStore(name)
	if err != nil {
		return nil, err
	}
	inMemory := memory.Options{MaxBytes: o.MaxBytes, Logger: o.Logger}
	if remote == nil {
		st, err := openFile(file, inMemory, o)
		if err != nil {
			return nil, err
		}
		if st != nil {
			return &storage{BanKeeper: st, local: st.Store, file: st, name: name}, nil
		}
		local := memory.New(inMemory)
		return &storage{BanKeeper: local, local: local, name: StoreMemory}, nil
	}
	local := memory.New(inMemory)
	remote.Local, remote.Logger = local, o.Logger
	st, err := redis.New(*remote)
	if err != nil {
		return nil, errors.Join(err, local.Close())
	}
	return &storage{BanKeeper: st, local: local, shared: st, name: remote.String(), url: name}, nil
}

// CountsFile is the name of the file with the counts of long windows in the state directory.
const CountsFile = "counts.db"

// defaultFolderWait is how long a start waits for a default folder that another process has. Not shorter: one that was
// just killed needs some 100 ms on a busy machine, and without the folder its counts would begin anew. Not longer: the
// other process may run on, and this one starts without a folder.
const defaultFolderWait = 500 * time.Millisecond

// openFile opens the file that keeps the counts of long windows; nil = there is none. Where nobody has asked for
// one, it is in the state directory, if that can be used.
func openFile(path string, inMemory memory.Options, o *Options) (*durable.Store, error) {
	asked := path != ""
	if !asked {
		if o.StateDir == "" || o.Sync == SyncNever {
			return nil, nil
		}
		path = filepath.Join(o.StateDir, CountsFile)
	}
	d := durable.Options{Path: path, Memory: inMemory, Logger: o.Logger}
	switch o.Sync {
	case "", SyncNever: // a file that is asked for is written
	case SyncAlways:
		d.Sync = true
	default:
		var err error
		if d.Bound, err = time.ParseDuration(o.Sync); err != nil {
			return nil, err
		}
	}
	var err error
	if !asked {
		if o.StateDirIfFree {
			d.Wait = defaultFolderWait
		}
		err = os.MkdirAll(o.StateDir, 0o700)
	}
	var st *durable.Store
	if err == nil {
		st, err = durable.Open(d)
	}
	if err != nil && !asked && o.StateDirIfFree {
		o.Logger.Warn("counts of long windows are kept in memory alone, and end with this process: name a folder with --state-dir", "error", err)
		return nil, nil
	}
	return st, err
}

// fileFigures returns what metrics show of the file; nil when there is none.
func (s *storage) fileFigures() *admin.CountsFile {
	if s.file == nil {
		return nil
	}
	st := s.file.FileStats()
	return &admin.CountsFile{Bytes: st.Bytes, Writes: st.Writes, Failures: st.Failures, Behind: st.Behind.Seconds(), Waits: st.Waits, Bound: st.Bound.Seconds()}
}

// Close closes the store, and the one behind it.
func (s *storage) Close() error {
	err := s.BanKeeper.Close()
	if s.shared != nil {
		err = errors.Join(err, s.local.Close())
	}
	return err
}

// shares is what keeps shares of tenants outside of this process; nil = nothing does.
func (s *storage) shares() store.Shares {
	kept, _ := s.shared.(store.Shares)
	return kept
}

// figures returns what metrics show of the shared store; nil when there is none.
func (s *storage) figures() *admin.SharedStore {
	if s.shared == nil {
		return nil
	}
	st := s.shared.Stats()
	return &admin.SharedStore{
		Up: s.shared.Ready() == nil, Calls: st.Calls, Failures: st.Failures, Timeouts: st.Timeouts,
		LocalRefusals: st.LocalRefusals, BreakersOpen: st.BreakerOpen, Instances: st.Instances, RoundTrip: st.RoundTrip.Seconds(),
		// What was refused from memory, or decided without an answer, was in no call.
		Called:     st.Operations - min(st.Operations, st.LocalRefusals+st.Fallbacks),
		BatchSizes: st.BatchSizes,
	}
}

// storeReady says whether requests should be sent here as far as the store is
// concerned, and what is to be said about it.
//
// A process that never had contact is not ready: most likely its configuration is
// wrong, and a roll-out must stop there. Later it stays ready, whatever its limits
// do without the store: a store fails for all instances at once, and were they all
// taken away, limits that admit without it would stop everything, and behind a
// gateway that lets requests pass when no server is ready, limits that refuse without
// it would admit everything.
func (s *Server) storeReady() (ready bool, text string) {
	if f := s.storage.file; f != nil {
		if why := f.FileStats().LastError; why != "" {
			return true, "counts cannot be written to their file, and are lost if this process ends: " + strings.ReplaceAll(why, "\n", "; ")
		}
	}
	if s.storage.shared == nil {
		return true, ""
	}
	err := s.storage.shared.Ready()
	if err == nil {
		s.met.Store(true)
		return true, ""
	}
	// Another line could be taken for another answer.
	why := strings.ReplaceAll(err.Error(), "\n", "; ")
	if !s.met.Load() {
		return false, fmt.Sprintf("store %s was not reached yet: %s", s.storage.name, why)
	}
	return true, fmt.Sprintf("store %s does not answer: %s", s.storage.name, why)
}
