package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/configstore"
	"github.com/stint-io/stint/internal/etcdtest"
)

// history is what was pushed to a backend, in any way, and what members said that they enforce.
type history struct {
	*pusher
	random *rand.Rand
	heads  [][]byte // that the backend had

	mu    sync.Mutex
	rates map[uint64][]string // of valid versions; several where the backend has lost one, and its number was used again
	seen  map[uint64]int      // versions, and how often they were seen in force with the rate that belongs to them
}

// TestHistoriesOfVersions: three members, and an operator who pushes, rolls back, and writes what does not
// validate past the command; a backend that loses records, is set back, and is killed; members that are
// restarted. The version that a member enforces only rises while it runs. What it decides by is the content of
// that version, and never one that does not validate. Afterwards one push is in force everywhere.
func TestHistoriesOfVersions(t *testing.T) {
	if testing.Short() {
		t.Skip("TestConfigurationIsFollowed has the same goroutines: nothing for the race detector")
	}
	t.Parallel()
	etcd := etcdtest.Start(t)
	for seed := range seeding.Draw(t, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			h := &history{
				pusher: newPusher(t, fmt.Sprintf("etcd://%s/%d", etcd.Addr(), seed)),
				random: rand.New(rand.NewPCG(seed, 0)), rates: map[uint64][]string{}, seen: map[uint64]int{},
			}
			h.valid()
			var members []*watched
			for i := range 3 {
				members = append(members, h.watch(fmt.Sprint("n", i), t.TempDir()))
			}
			for range 120 {
				switch n := h.random.IntN(40); {
				case n < 14:
					h.valid()
				case n < 20:
					h.rollback()
				case n < 28:
					h.invalid()
				case n < 31:
					h.damage()
				case n < 34:
					h.setBack()
				case n == 34:
					h.write("config/head", nil)
				case n == 35:
					etcd.Kill()
					etcd.Restart()
				case n == 36:
					i := h.random.IntN(len(members))
					h.repair() // a start needs a version that it can have, or a copy
					members[i].end()
					members[i] = h.watch(members[i].node, members[i].dir)
				default:
					<-time.After(time.Duration(h.random.IntN(100)) * time.Millisecond)
				}
			}
			h.repair()
			// Their reports say all that they enforce, so that the last push is above it.
			for _, m := range members {
				h.reported(m.node, func(r configstore.Report) bool { return fmt.Sprint(r.Version) == m.now() })
			}
			last := h.valid()
			for _, m := range members {
				m.eventually(m.admin+"/readyz", fmt.Sprintf("ready\nconfig version %d\n", last))
			}
			for _, m := range members {
				m.end()
			}
			if len(h.seen) < 10 {
				t.Errorf("%d versions only were seen in force, want 10 at least: %v", len(h.seen), h.seen)
			}
			t.Logf("%d valid versions, %d of them seen in force", len(h.rates), len(h.seen))
		})
	}
}

// pushText makes a version of a text as long as another push is not in between, or the backend away.
func (h *history) pushText(text, rate string) uint64 {
	h.t.Helper()
	for begun := time.Now(); ; {
		h.mu.Lock() // no member is compared with a version that is not noted yet
		m, err := h.Push(h.t.Context(), h.draft(text))
		if err == nil && rate != "" {
			h.rates[m.Version] = append(h.rates[m.Version], rate)
		}
		h.mu.Unlock()
		var damaged *configstore.Damaged
		switch {
		case err == nil, errors.Is(err, configstore.ErrUnchanged):
			return m.Version
		case errors.As(err, &damaged):
			h.repair()
		case time.Since(begun) > time.Minute:
			h.t.Fatal(err)
		}
	}
}

// valid pushes a version that every member can enforce. No two have the same content.
func (h *history) valid() uint64 {
	rate := strconv.Itoa(1_000 + h.random.IntN(1_000_000))
	version := h.pushText("limits:\n  - {name: per-user, key: [user], rate: "+rate+"/hour}\n", rate)
	if record, err := h.register.Read(h.t.Context(), "config/head"); err == nil && record.Revision != 0 {
		h.heads = append(h.heads, record.Value)
	}
	return version
}

// invalid pushes, past the command, what no member can enforce.
func (h *history) invalid() {
	h.pushText([]string{
		"limits: []\n", "limits:\n  - {name: per-user, raet: 1/s}\n", "{", "store: redis://127.0.0.1:1\nlimits:\n  - {name: per-user, key: [user], rate: 1/hour}\n",
	}[h.random.IntN(4)]+"# "+strconv.Itoa(h.random.IntN(1_000_000))+"\n", "")
}

func (h *history) rollback() {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept, err := h.History(h.t.Context())
	if err != nil {
		return
	}
	to := kept[h.random.IntN(len(kept))]
	m, err := h.Rollback(h.t.Context(), to.Version, "ben", "", nil)
	if err == nil {
		h.rates[m.Version] = append(h.rates[m.Version], h.rates[to.Version]...)
	}
}

// damage changes a record past the store.
func (h *history) damage() {
	h.mu.Lock()
	defer h.mu.Unlock()
	kept, err := h.History(h.t.Context())
	if err != nil {
		return
	}
	version := kept[len(kept)-1].Version
	if h.random.IntN(2) == 0 {
		// One that members have not read yet, whose files are not those that the head names.
		version++
		head, err := json.Marshal(map[string]any{"versions": append(kept, configstore.Meta{Version: version, SHA256: "0"})})
		if err != nil {
			h.t.Fatal(err)
		}
		defer h.write("config/head", head)
	}
	h.write(fmt.Sprint("config/versions/", version), [][]byte{[]byte("{"), nil, []byte(`{"files":[{"name":"limits.yaml","text":"limits:\n  - {name: per-user, key: [user], rate: 1/hour}\n"}]}`)}[h.random.IntN(3)])
	if h.random.IntN(2) == 0 {
		h.write("config/head", []byte("{"))
	}
}

// setBack makes the backend one that was restored from a copy.
func (h *history) setBack() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.write("config/head", h.heads[h.random.IntN(len(h.heads))])
}

// repair makes the head readable and its latest version one that a start can enforce.
func (h *history) repair() {
	record, err := h.register.Read(h.t.Context(), "config/head")
	if err == nil && record.Revision != 0 && !json.Valid(record.Value) {
		h.write("config/head", nil)
	}
	h.valid()
}

// watched is a member whose every statement is compared with the history.
type watched struct {
	*service
	h         *history
	node, dir string
	stopWatch context.CancelFunc
	watching  sync.WaitGroup

	mu   sync.Mutex
	last string // version
}

func (h *history) watch(node, dir string) *watched {
	h.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	w := &watched{service: start(h.t, "", h.follows(node, dir)), h: h, node: node, dir: dir, stopWatch: stop}
	w.watching.Go(func() {
		for highest := uint64(0); ctx.Err() == nil; <-time.After(5 * time.Millisecond) {
			highest = w.compare(highest)
		}
	})
	return w
}

// compare asks which version is in force before and after a decision. Where it is the same one, the decision
// was by its content.
func (w *watched) compare(highest uint64) uint64 {
	before, quota, after := w.version(), w.quota(), w.version()
	if before == 0 || after == 0 || quota == "" {
		return highest // it stops
	}
	if before < highest || after < before {
		w.t.Errorf("%s enforces version %d, then %d, then %d", w.node, highest, before, after)
	}
	w.mu.Lock()
	w.last = fmt.Sprint(after)
	w.mu.Unlock()
	w.h.mu.Lock()
	defer w.h.mu.Unlock()
	if before == after {
		if w.h.seen[before]++; !slices.Contains(w.h.rates[before], quota) {
			w.t.Errorf("%s enforces %s by version %d, which is one of %q", w.node, quota, before, w.h.rates[before])
		}
	}
	return max(highest, after)
}

func (w *watched) now() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

var (
	inForce = regexp.MustCompile(`\nconfig version (\d+)\n`)
	ofUsed  = regexp.MustCompile(`of (\d+) used`)
)

func (w *watched) version() uint64 {
	m := inForce.FindStringSubmatch(w.ask(http.Get(w.admin + "/readyz")))
	if m == nil {
		return 0
	}
	version, _ := strconv.ParseUint(m[1], 10, 64)
	return version
}

// quota is what the member admits of an hour.
func (w *watched) quota() string {
	m := ofUsed.FindStringSubmatch(w.ask(http.Post(w.http+"/v1/explain", "application/json", strings.NewReader(`{"attributes":{"user":"u"}}`))))
	if m == nil {
		return ""
	}
	return m[1]
}

// ask returns an answer; "" while the member stops.
func (w *watched) ask(reply *http.Response, err error) string {
	if err != nil {
		return ""
	}
	defer func() { _ = reply.Body.Close() }()
	body, _ := io.ReadAll(reply.Body)
	return string(body)
}

// end stops the member.
func (w *watched) end() {
	w.t.Helper()
	w.stopWatch()
	w.watching.Wait()
	if err := w.stop(); err != nil {
		w.t.Error(err)
	}
}
