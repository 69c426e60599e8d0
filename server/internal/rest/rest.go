// Package rest is stint's own JSON API: take, explain, finish, and what a limit is configured to be. It translates
// requests into calls of the engine and decisions into JSON and header fields. It
// decides nothing.
package rest

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/limit"
)

// Options are the choices of the API.
type Options struct {
	// Answer says which header fields are sent.
	Answer answer.Options
	// Changed returns a channel that is closed when another configuration is in force; nil = that
	// is not known. Done ends what waits for one.
	Changed func() <-chan struct{}
	Done    <-chan struct{}
	// Reservations are taken and settled by POST /v1/reserve, /v1/renew, /v1/commit and /v1/release.
	Reservations Reservations
	// Usage reads what was used; nil = nothing is kept.
	Usage History
	// Logger gets a line about an attribute whose name seems to be misspelled, once; nil = it gets none.
	Logger *slog.Logger
}

type api struct {
	engine  *engine.Engine
	opts    Options
	buffers sync.Pool // of *[]byte
	doubts  doubts

	// The values of header fields that all answers share. Nobody writes to them.
	isJSON, noStore []string
}

// New returns the handler of POST /v1/take, /v1/explain, /v1/finish, /v1/reserve, /v1/renew, /v1/commit and /v1/release, and of GET /v1/limits/NAME and /v1/usage.
func New(e *engine.Engine, opts Options) http.Handler {
	a := &api{engine: e, opts: opts, isJSON: []string{"application/json"}, noStore: []string{"no-store"}}
	a.doubts.log = opts.Logger
	a.buffers.New = func() any { room := make([]byte, 0, 1<<10); return &room }
	usage := usageHandler(opts.Usage)
	posts := map[string]http.HandlerFunc{
		"/v1/take": a.post(a.take), "/v1/explain": a.post(a.explain), "/v1/finish": a.post(a.finish),
		"/v1/reserve": a.post(a.reserve), "/v1/renew": a.post(a.renew), "/v1/commit": a.post(a.commit), "/v1/release": a.post(a.release),
	}
	var names []string
	for _, call := range slices.Sorted(maps.Keys(posts)) {
		names = append(names, path.Base(call))
	}
	calls := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, limitsPrefix) {
			a.limits(w, r)
			return
		}
		if post := posts[r.URL.Path]; post != nil {
			post(w, r)
			return
		}
		if r.URL.Path == "/v1/usage" {
			usage(w, r)
			return
		}
		if near, ok := document.Suggest(path.Base(r.URL.Path), names); ok {
			answer.WriteError(w, http.StatusNotFound, "no such call, did you mean POST /v1/"+near+"?")
			return
		}
		answer.WriteError(w, http.StatusNotFound, "no such call, the calls are POST /v1/take, /v1/explain, /v1/finish, /v1/reserve, /v1/renew, /v1/commit and /v1/release, GET /v1/limits/NAME, GET /v1/usage and GET /openapi.yaml, which describes them; gateways ask below /v1/gate/, Envoy's format is POST /json, and /healthz says that the process is there")
	})
	return Guard(calls)
}

// Guard refuses what pages of other origins send: a page in a user's browser must
// not spend the limits of a service that listens on the same machine.
func Guard(next http.Handler) http.Handler {
	guard := http.NewCrossOriginProtection()
	guard.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer.WriteError(w, http.StatusForbidden, "requests from pages of other origins are refused")
	}))
	return guard.Handler(next)
}

// post reads the body and hands it on. The content type does not matter: curl -d
// says that it sends a form.
func (a *api) post(call func(http.ResponseWriter, *http.Request, []byte)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			answer.WriteError(w, http.StatusMethodNotAllowed, "use POST, with a body in JSON")
			return
		}
		buffer := a.buffers.Get().(*[]byte)
		defer a.keep(buffer)
		src, err := readBody(w, r, (*buffer)[:0])
		*buffer = src[:0]
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			answer.WriteError(w, http.StatusRequestEntityTooLarge, "the body is larger than 512 KiB")
			return
		}
		if err != nil {
			answer.WriteError(w, http.StatusBadRequest, "the body cannot be read")
			return
		}
		call(w, r, src)
	}
}

// maxKept bounds the buffers that are used again. Nearly all bodies and answers are below it.
const maxKept = 4 << 10

// keep takes back a buffer that nothing refers to any more.
func (a *api) keep(buffer *[]byte) {
	if cap(*buffer) <= maxKept {
		a.buffers.Put(buffer)
	}
}

// readBody reads a body into the room of to, as far as it has some. What is read is valid until
// that room is used again: who keeps a part of it copies it.
func readBody(w http.ResponseWriter, r *http.Request, to []byte) ([]byte, error) {
	if r.ContentLength >= 0 && r.ContentLength <= int64(cap(to)) {
		// net/http reads no more than the length that was announced.
		to = to[:r.ContentLength]
		n, err := io.ReadFull(r.Body, to)
		return to[:n], err
	}
	all, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBodyBytes))
	return all, err
}

func (a *api) take(w http.ResponseWriter, r *http.Request, src []byte) {
	var b body
	var err error
	if !quick(src, &b) {
		b, err = parse(src, "attributes", "cost", "count_refused", "queue", "domain", "descriptors")
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	if b.request.IdempotencyKey, err = idempotencyKey(r.Header); err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	var d limit.Decision
	switch {
	case b.domain == "" && b.queue:
		d, err = a.engine.TakeInLine(r.Context(), b.request, patience(w, r))
	case b.domain == "":
		a.doubts.note(a.engine.Attributes(), b.request.Attributes)
		d, err = a.engine.TakeWithin(r.Context(), b.request, patience(w, r))
	default:
		q := b.query()
		err = a.engine.Decide(r.Context(), q)
		d = q.Decision
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	if b.request.Peek {
		for i := range d.Results {
			d.Results[i].Cost = 0 // whether 1 would be admitted was asked, and 0 was taken
		}
	}
	if !d.Allowed {
		// The caller is a program that asks for a decision, and its HTTP client must not follow a
		// redirect that is meant for the caller's own client.
		action := d.Action
		if action != nil {
			own := *action
			own.Status = answer.Status(&d)
			action, d.Action = &own, nil
			w.Header().Set("X-Stint-Status", strconv.Itoa(own.Status))
			if own.Location != "" {
				w.Header().Set("X-Stint-Location", own.Location)
			}
		}
		o, refused := a.opts.Answer, d // a copy: what is admitted does not go to the heap
		o.Members = func(to []byte) []byte { return appendRefusal(to, &refused, action) }
		answer.WriteRefusal(w, &refused, o)
		return
	}
	h := w.Header()
	answer.Header(h, &d, a.opts.Answer)
	// Each with the capacity of one: what is added makes a copy.
	h["Content-Type"], h["Cache-Control"] = a.isJSON[:1:1], a.noStore[:1:1]
	text := a.buffers.Get().(*[]byte)
	defer a.keep(text)
	*text = append(appendDecision((*text)[:0], &d), '\n')
	// A failed write means that the client has gone: there is nothing left to do.
	_, _ = w.Write(*text)
}

// idempotencyKey returns the key of a take; "" = it has none. Only this API reads it: a gateway passes on the header fields
// of its clients, which could repeat a key to be charged once for many requests.
func idempotencyKey(h http.Header) (string, error) {
	list := h["Idempotency-Key"]
	switch {
	case len(list) == 0:
		return "", nil
	case len(list) > 1:
		return "", errors.New("the header field Idempotency-Key is there twice, want one")
	case list[0] == "" || len(list[0]) > limit.MaxIdempotencyKey:
		return "", fmt.Errorf("the header field Idempotency-Key has %d bytes, want 1 to %d, such as a UUID", len(list[0]), limit.MaxIdempotencyKey)
	}
	return list[0], nil
}

// mostPatience is the longest max_wait of a queue.
const mostPatience = time.Minute

// patience returns how long the answer may be held back for limits with on_exceed: queue: what the caller asks for by the
// preference wait (RFC 7240), in seconds, here with a fraction, else longestWait. The deadlines of the connection make room for it.
func patience(w http.ResponseWriter, r *http.Request) time.Duration {
	for _, line := range r.Header["Prefer"] {
		for preference := range strings.SplitSeq(line, ",") {
			name, value, _ := strings.Cut(strings.TrimSpace(preference), "=")
			seconds, err := strconv.ParseFloat(value, 64)
			if !strings.EqualFold(name, "wait") || err != nil || !(seconds >= 0) { // also NaN
				continue
			}
			wait := time.Duration(min(seconds, mostPatience.Seconds()) * float64(time.Second))
			if wait > longestWait {
				control := http.NewResponseController(w)
				// A connection whose deadlines cannot be moved ends with the usual ones.
				_ = control.SetReadDeadline(time.Time{})
				_ = control.SetWriteDeadline(time.Now().Add(wait + longestWait))
			}
			return wait
		}
	}
	return longestWait
}

func (a *api) explain(w http.ResponseWriter, r *http.Request, src []byte) {
	b, err := parse(src, "attributes", "cost", "domain", "descriptors")
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	var x explain.Explanation
	if b.domain == "" {
		x, err = explain.Request(r.Context(), a.engine, b.request)
	} else {
		x, err = explain.Query(r.Context(), a.engine, b.query())
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	out := newExplanation(&x)
	if b.domain == "" && a.opts.Reservations != nil {
		guess, err := a.opts.Reservations.Guess(b.request.Attributes)
		if err != nil {
			a.failReservation(w, err)
			return
		}
		out.Estimate = newEstimate(guess)
	}
	writeJSON(w, out)
}

func (a *api) finish(w http.ResponseWriter, r *http.Request, src []byte) {
	b, err := parse(src, "attributes", "permit", "keep", "domain", "descriptors")
	if err == nil && !b.hasPermit {
		err = errors.New(`the field "permit" is missing, want the permit of the answer to /v1/take`)
	}
	if err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	switch {
	case b.domain == "" && b.keep:
		err = a.engine.Keep(r.Context(), b.request, b.permit)
	case b.domain == "":
		err = a.engine.Finish(r.Context(), b.request, b.permit)
	case b.keep:
		err = a.engine.KeepQuery(r.Context(), b.query(), b.permit)
	default:
		err = a.engine.FinishQuery(r.Context(), b.query(), b.permit)
	}
	if err != nil {
		a.fail(w, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (a *api) fail(w http.ResponseWriter, err error) {
	if errors.Is(err, engine.ErrBadRequest) {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	if errors.Is(err, engine.ErrKeysFull) {
		answer.WriteError(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	answer.WriteUnavailable(w)
}

func writeJSON(w http.ResponseWriter, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		answer.WriteUnavailable(w)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	// A failed write means that the client has gone: there is nothing left to do.
	_, _ = w.Write(append(text, '\n'))
}
