package rest

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/rules"
)

const (
	limitsPrefix = "/v1/limits/"

	// longestWait bounds how long an answer waits for a change. Not longer: the server gives a
	// request ten seconds in all.
	longestWait = 5 * time.Second
)

// configured is what a limit is configured to be.
type configured struct {
	Name      string       `json:"name"`
	Algorithm string       `json:"algorithm"`
	Sharing   string       `json:"sharing"`
	Unlimited bool         `json:"unlimited,omitempty"`
	Rate      *rate        `json:"rate,omitempty"`
	Burst     int64        `json:"burst,omitempty"`
	InFlight  int64        `json:"max_in_flight,omitempty"`
	Split     *configSplit `json:"split,omitempty"`
}

// rate is count per period.
type rate struct {
	Count    int64 `json:"count"`
	PeriodNS int64 `json:"period_ns"`
}

// configSplit says between how many instances a limit is split.
type configSplit struct {
	Instances int64 `json:"instances"`
	Weight    int64 `json:"weight"`
}

func newConfigured(l *rules.Limit) configured {
	p := l.Base.Policy
	c := configured{
		Name: l.Name, Algorithm: p.Algorithm.String(), Sharing: l.Sharing.String(),
		Unlimited: p.Unlimited, Burst: p.Burst, InFlight: p.MaxInFlight,
	}
	if p.Rate.Period > 0 {
		c.Rate = &rate{p.Rate.Count, int64(p.Rate.Period)}
	}
	if l.Split.Instances > 0 {
		c.Split = &configSplit{l.Split.Instances, max(l.Split.Weight, 1)}
	}
	return c
}

// limits answers GET /v1/limits/NAME. With ?wait and the ETag of the answer before it waits for a change.
func (a *api) limits(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		w.Header().Set("Allow", http.MethodGet)
		answer.WriteError(w, http.StatusMethodNotAllowed, "use GET")
		return
	}
	wait := time.Duration(0)
	q, err := answer.Parameters(r, "wait")
	if text := q.Get("wait"); text != "" {
		if wait, err = time.ParseDuration(text); err != nil || wait < 0 {
			err = errors.New("wait is no duration, want one such as 5s")
		}
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	name, known := strings.TrimPrefix(r.URL.Path, limitsPrefix), r.Header.Get("If-None-Match")
	over := time.NewTimer(min(wait, longestWait))
	defer over.Stop()
	for last := wait == 0; ; {
		changed := a.changed() // before the look: a change after it is not missed
		text, found := a.configured(name)
		sum := sha256.Sum256(text)
		tag := `"` + hex.EncodeToString(sum[:8]) + `"`
		if last || tag != known || known == "" {
			w.Header().Set("ETag", tag)
			w.Header().Set("Cache-Control", "no-cache")
			switch {
			case tag == known:
				w.WriteHeader(http.StatusNotModified)
			case !found:
				answer.WriteError(w, http.StatusNotFound, "no limit of stint's format has this name")
			default:
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(text) // the client may have gone
			}
			return
		}
		select {
		case <-changed:
		case <-over.C:
			last = true
		case <-a.opts.Done:
			last = true
		case <-r.Context().Done():
			return
		}
	}
}

func (a *api) changed() <-chan struct{} {
	if a.opts.Changed == nil {
		return nil
	}
	return a.opts.Changed()
}

// configured returns the answer about a limit. That there is none has an empty one.
func (a *api) configured(name string) (text []byte, found bool) {
	for _, l := range a.engine.Set().Limits() {
		if !l.Envoy && l.Name == name {
			text, err := json.Marshal(newConfigured(l))
			return append(text, '\n'), err == nil
		}
	}
	return nil, false
}
