package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/banlist"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/store"
)

const (
	// usualBans and mostBans are how many bans a page has by default, and at most. Not more: a
	// page of them is some hundred kilobytes.
	usualBans = 100
	mostBans  = 1000
	// mostLifted bounds what one call lifts: it takes a second or two with Redis.
	mostLifted = 10_000
)

// ban is one on the wire.
type ban struct {
	Limit    string `json:"limit"`
	Override string `json:"override,omitempty"`
	ID       string `json:"id"`
	// Key is null where it is not known.
	Key    map[string]string `json:"key"`
	Exact  bool              `json:"exact"`
	EndsIn float64           `json:"ends_in"`
	Ends   time.Time         `json:"ends"`
}

// BanHandler answers GET and DELETE /v1/bans. Answers show keys, which are what clients sent.
func BanHandler(bans *banlist.Bans) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/bans", func(w http.ResponseWriter, r *http.Request) { listBans(w, r, bans) })
	mux.HandleFunc("DELETE /v1/bans", func(w http.ResponseWriter, r *http.Request) { liftBans(w, r, bans) })
	return mux
}

func listBans(w http.ResponseWriter, r *http.Request, bans *banlist.Bans) {
	q, err := answer.Parameters(r, "limit", "after", "max")
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	most := usualBans
	if text := q.Get("max"); text != "" {
		if most, err = strconv.Atoi(text); err != nil || most < 1 || most > mostBans {
			answer.WriteError(w, http.StatusBadRequest, fmt.Sprintf("max is %.100q, want 1 to %d", text, mostBans))
			return
		}
	}
	list, next, err := bans.Page(r.Context(), q.Get("limit"), q.Get("after"), most)
	if err != nil {
		failBans(w, err)
		return
	}
	now := time.Now()
	out := struct {
		Bans []ban  `json:"bans"`
		Next string `json:"next,omitempty"`
	}{make([]ban, 0, len(list)), next}
	for _, b := range list {
		one := ban{
			Limit: b.Limit, Override: b.Override, ID: b.ID, Exact: b.Exact,
			EndsIn: b.Left.Seconds(), Ends: now.Add(b.Left).UTC().Round(time.Millisecond),
		}
		if b.Key != nil {
			one.Key = make(map[string]string, len(b.Key))
			for _, a := range b.Key {
				one.Key[a.Name] = a.Value
			}
		}
		out.Bans = append(out.Bans, one)
	}
	writeJSON(w, out)
}

func liftBans(w http.ResponseWriter, r *http.Request, bans *banlist.Bans) {
	q, err := answer.Parameters(r, "limit", "key", "id", "all")
	name, keys, id := q.Get("limit"), q["key"], q.Get("id")
	all := q.Get("all") == "true"
	ways := 0
	for _, given := range []bool{len(keys) > 0, id != "", all} {
		if given {
			ways++
		}
	}
	key, wrong := keyOf(q)
	err = errors.Join(err, wrong)
	switch {
	case err != nil:
	case q.Has("all") && !all:
		err = errors.New("all is not true")
	case name == "" && !all:
		err = errors.New("say of which limit with limit=NAME, or lift all bans with all=true")
	case ways > 1:
		err = errors.New("key, id and all exclude each other")
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	out := struct {
		Lifted int  `json:"lifted"`
		More   bool `json:"more"`
	}{}
	switch {
	case all:
		out.Lifted, err = bans.LiftAll(r.Context(), name, mostLifted)
		out.More = out.Lifted >= mostLifted
	case id != "":
		out.Lifted, err = bans.LiftID(r.Context(), name, id)
	default:
		out.Lifted, err = bans.Lift(r.Context(), name, key) // a limit without a key has one bucket
	}
	if err != nil {
		failBans(w, err)
		return
	}
	writeJSON(w, out)
}

func failBans(w http.ResponseWriter, err error) {
	switch {
	case errors.Is(err, banlist.ErrNoBans):
		answer.WriteError(w, http.StatusNotFound, err.Error())
	case errors.Is(err, store.ErrUnavailable):
		answer.WriteError(w, http.StatusServiceUnavailable, err.Error())
	case errors.Is(err, engine.ErrBadRequest), errors.Is(err, store.ErrBanID):
		answer.WriteError(w, http.StatusBadRequest, err.Error())
	default:
		answer.WriteError(w, http.StatusInternalServerError, err.Error())
	}
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	text, err := json.Marshal(v)
	if err != nil {
		answer.WriteUnavailable(w)
		return
	}
	// A failed write means that the client has gone.
	_, _ = w.Write(append(answer.Printable(text), '\n'))
}

// exceedDescs describe what becomes of requests over limits.
type exceedDescs struct {
	active, begun, unlisted *prometheus.Desc
	waiting, waits          *prometheus.Desc
	tenants, taken          *prometheus.Desc
	purpose                 *prometheus.Desc
}

func newExceedDescs(desc func(name, help string, labels ...string) *prometheus.Desc) exceedDescs {
	return exceedDescs{
		active:   desc("bans_active", "Keys that a limit has banned now; with a shared store those of all processes.", "limit"),
		begun:    desc("bans_begun_total", "Bans that began. Of the processes that share a store one counts each.", "limit"),
		unlisted: desc("bans_unlisted_total", "Bans that stand and that a list may lack, because there was no room for their keys or the store did not take them.", "limit"),
		waiting:  desc("queue_waiting", "Requests that wait for a limit with on_exceed: queue.", "limit"),
		waits:    desc("queue_waits_total", "Ends of waits: admitted, late (the wait would have been too long, or was), full, or left by the caller. Requests that need not wait count as admitted.", "limit", "outcome"),
		tenants:  desc("share_tenants", "Tenants of a limit with share that have taken tokens which are not refilled yet; of a limit with a key those of the bucket that was asked last.", "limit"),
		taken:    desc("share_taken_ratio", "The part of the burst that these tokens are: 0 = all that is wanted fits, near 1 = tenants want more than there is.", "limit"),
		purpose:  desc("limit_info", "Always 1; the labels have the limit's purpose.", "limit", "purpose"),
	}
}

func (d *exceedDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{d.active, d.begun, d.unlisted, d.waiting, d.waits, d.tenants, d.taken, d.purpose} {
		ch <- one
	}
}

func (d *exceedDescs) collect(to metrics, f *Figures) {
	for _, b := range f.Bans {
		to.gauge(d.active, float64(b.Active), b.Limit)
		to.count(d.begun, b.Begun, b.Limit)
		to.count(d.unlisted, b.Unlisted, b.Limit)
	}
	for _, q := range f.Queues {
		to.gauge(d.waiting, float64(q.Waiting), q.Limit)
		to.count(d.waits, q.Admitted, q.Limit, "admitted")
		to.count(d.waits, q.Late, q.Limit, "late")
		to.count(d.waits, q.Full, q.Limit, "full")
		to.count(d.waits, q.Left, q.Limit, "left")
	}
	for _, s := range f.Shares {
		to.gauge(d.tenants, float64(s.Tenants), s.Limit)
		to.gauge(d.taken, s.Use, s.Limit)
	}
	for name, purpose := range f.Purposes {
		to.gauge(d.purpose, 1, name, purpose)
	}
}
