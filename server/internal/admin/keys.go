package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/audit"
	"github.com/stint-io/stint/internal/keyadmin"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// requestID is the header field that makes a change once.
const requestID = "Idempotency-Key"

// KeyHandler answers GET /v1/admin/keys, which shows how a key stands, POST /v1/admin/keys/reset, refund and grant,
// which change it, and GET /v1/admin/audit, which lists changes. who says who sends a request; nil = its address.
func KeyHandler(keys *keyadmin.Keys, log *audit.Log, who func(*http.Request) string) http.Handler {
	if who == nil {
		who = func(r *http.Request) string { return "admin from " + r.RemoteAddr }
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/admin/keys", func(w http.ResponseWriter, r *http.Request) {
		key, _, err := keyQuery(r)
		if err == nil && r.URL.Query().Has("amount") {
			err = errors.New("amount is for refund and grant")
		}
		if err != nil {
			answer.WriteError(w, http.StatusBadRequest, err.Error())
			return
		}
		list, err := keys.Get(r.Context(), key)
		if err != nil {
			failKeys(w, err)
			return
		}
		writeJSON(w, struct {
			Counters []keyadmin.State `json:"counters"`
		}{list})
	})
	change := func(do func(context.Context, keyadmin.Key, int64, keyadmin.Change) (keyadmin.State, error)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			key, n, err := keyQuery(r)
			if err != nil {
				answer.WriteError(w, http.StatusBadRequest, err.Error())
				return
			}
			s, err := do(r.Context(), key, n, keyadmin.Change{Who: who(r), ID: r.Header.Get(requestID)})
			if err != nil {
				failKeys(w, err)
				return
			}
			writeJSON(w, s)
		}
	}
	mux.HandleFunc("POST /v1/admin/keys/refund", change(keys.Refund))
	mux.HandleFunc("POST /v1/admin/keys/grant", change(keys.Grant))
	mux.HandleFunc("POST /v1/admin/keys/reset", change(func(ctx context.Context, key keyadmin.Key, n int64, by keyadmin.Change) (keyadmin.State, error) {
		if n != 0 {
			return keyadmin.State{}, fmt.Errorf("%w: a reset has no amount: it drops all", keyadmin.ErrBadRequest)
		}
		return keys.Reset(ctx, key, by)
	}))
	mux.HandleFunc("GET /v1/admin/audit", func(w http.ResponseWriter, r *http.Request) { listChanges(w, r, log) })
	return mux
}

// keyQuery reads which key is meant, and the amount; 0 = none is given.
func keyQuery(r *http.Request) (key keyadmin.Key, n int64, err error) {
	q, err := answer.Parameters(r, "limit", "override", "key", "amount")
	if err != nil {
		return key, 0, err
	}
	key.Limit, key.Override = q.Get("limit"), q.Get("override")
	if key.Limit == "" {
		return key, 0, errors.New("say which limit with limit=NAME")
	}
	if key.Attributes, err = keyOf(q); err != nil {
		return key, 0, err
	}
	if text := q.Get("amount"); text != "" {
		if n, err = strconv.ParseInt(text, 10, 64); err != nil || n < 1 {
			return key, 0, fmt.Errorf("amount is %.100q, want 1 to %d", text, int64(limit.MaxCount))
		}
	}
	return key, n, nil
}

func keyOf(q url.Values) (key []limit.Attribute, err error) {
	for _, text := range q["key"] {
		attribute, value, ok := strings.Cut(text, "=")
		if !ok || attribute == "" {
			return nil, fmt.Errorf("key is %.100q, want NAME=VALUE", text)
		}
		key = append(key, limit.Attribute{Name: attribute, Value: value})
	}
	return key, nil
}

func listChanges(w http.ResponseWriter, r *http.Request, log *audit.Log) {
	q, err := answer.Parameters(r, "what", "after", "max")
	most := usualBans
	if text := q.Get("max"); err == nil && text != "" {
		if most, err = strconv.Atoi(text); err != nil || most < 1 || most > audit.MaxPage {
			err = fmt.Errorf("max is %.100q, want 1 to %d", text, audit.MaxPage)
		}
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	list, next, err := log.List(r.Context(), q.Get("what"), q.Get("after"), most)
	if err != nil {
		failKeys(w, err)
		return
	}
	if list == nil {
		list = []audit.Entry{}
	}
	writeJSON(w, struct {
		Changes []audit.Entry `json:"changes"`
		Next    string        `json:"next,omitempty"`
	}{list, next})
}

func failKeys(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	switch {
	case errors.Is(err, keyadmin.ErrUnknown):
		code = http.StatusNotFound
	case errors.Is(err, keyadmin.ErrConflict), errors.Is(err, keyadmin.ErrUnfinished):
		code = http.StatusConflict
	case errors.Is(err, keyadmin.ErrBadRequest):
		code = http.StatusBadRequest
	case errors.Is(err, store.ErrUnavailable):
		code = http.StatusServiceUnavailable
	case errors.Is(err, store.ErrFull):
		code = http.StatusInsufficientStorage
	}
	answer.WriteError(w, code, err.Error())
}
