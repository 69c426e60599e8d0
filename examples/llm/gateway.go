package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// defaultMaxTokens is the most that a request may be answered with which does not say it.
	defaultMaxTokens = 600
	// ahead is how many tokens more than it has seen a gateway says that are used. Not smaller: the model makes
	// further ones while stint is told, and until it notices that the gateway is gone. Not larger: as many are
	// charged for nothing when the gateway dies.
	ahead = 48
	// settleWithin bounds what has to be said at the end of a request, whose client may be gone by then.
	settleWithin = 5 * time.Second
	settleTries  = 3
)

// gateway stands in front of a model: it admits requests by their budgets, and passes on what the model says.
type gateway struct {
	way      way
	stint    *service
	upstream string // http://host:port of the model
	http     *http.Client
	keep     time.Duration // how often a stream in which nothing comes says that it goes on
	log      *slog.Logger
}

func (g *gateway) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", g.complete)
	return mux
}

// tenants are who has which key.
var tenants = map[string]string{"sk-acme": "acme", "sk-bolt": "bolt", "sk-cedar": "cedar"}

// complete is one request, from its client to the model and back.
func (g *gateway) complete(w http.ResponseWriter, r *http.Request) {
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	tenant, known := tenants[bearer]
	if !known {
		writeChatError(w, http.StatusUnauthorized, newChatError("invalid_request_error", "invalid_api_key", "no such API key"))
		return
	}
	ask, text := readChat(w, r)
	if text != "" {
		writeChatError(w, http.StatusBadRequest, newChatError("invalid_request_error", "bad_request", text))
		return
	}
	ask.User = tenant
	m := newMeter(ask)
	answers, account, err := g.way.begin(r.Context(), tenant, ask.Model, m.most())
	switch {
	case err != nil:
		// Without stint nobody knows what is left, and money is at stake: the gateway fails closed.
		g.log.Warn("stint does not answer", "error", err)
		writeChatError(w, http.StatusServiceUnavailable, newChatError("server_error", "budget_unknown", "the budget cannot be checked now, try again"))
		return
	case account == nil:
		answers[0].openAI(w.Header())
		g.refuse(r.Context(), w, tenant, ask, answers[len(answers)-1])
		return
	}
	answers[0].openAI(w.Header())
	// The model bills the prompt when it has it.
	m.said = m.ahead()
	if err := account.spending(r.Context(), m.with(m.said)); err != nil {
		g.log.Warn("stint is not told", "error", err)
		g.settle(r.Context(), account.undo)
		writeChatError(w, http.StatusServiceUnavailable, newChatError("server_error", "budget_unknown", "the budget cannot be checked now, try again"))
		return
	}
	res, err := g.ask(r.Context(), ask, account, m)
	if err == nil && res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		g.settle(r.Context(), account.undo)
		w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		w.WriteHeader(res.StatusCode)
		_, _ = io.Copy(w, io.LimitReader(res.Body, maxBody))
		return
	}
	if err != nil {
		g.settle(r.Context(), account.undo)
		writeChatError(w, http.StatusBadGateway, newChatError("server_error", "upstream", "the model does not answer"))
		return
	}
	g.stream(r.Context(), w, res, account, m)
	g.settle(r.Context(), func(ctx context.Context) error { return account.end(ctx, m.actual()) })
}

// readChat returns a request that can be passed on, or what is wrong with it.
func readChat(w http.ResponseWriter, r *http.Request) (*chatRequest, string) {
	ask := new(chatRequest)
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(ask); err != nil {
		return nil, err.Error()
	}
	_, known := models[ask.Model]
	switch {
	case !known:
		return nil, fmt.Sprintf("no model %q, there are %v", ask.Model, slices.Sorted(maps.Keys(models)))
	case !ask.Stream:
		return nil, `this gateway streams: send "stream": true`
	case ask.MaxTokens < 0 || ask.MaxTokens > 1<<20 || len(ask.Messages) == 0:
		return nil, "want messages, and max_tokens of 1 to 1048576"
	case ask.MaxTokens == 0:
		ask.MaxTokens = defaultMaxTokens
	}
	ask.StreamOptions = &streamOptions{IncludeUsage: true, ContinuousUsage: true}
	return ask, ""
}

// ask sends a request to the model, and waits for the beginning of the answer: it may take longer than a reservation
// lasts.
func (g *gateway) ask(ctx context.Context, ask *chatRequest, account account, m *meter) (*http.Response, error) {
	data, err := json.Marshal(ask)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, g.upstream+"/v1/chat/completions", bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	var res *http.Response
	begun := make(chan struct{})
	go func() {
		defer close(begun)
		res, err = g.http.Do(req)
	}()
	keep := time.NewTicker(g.keep)
	defer keep.Stop()
	for {
		select {
		case <-begun:
			return res, err
		case <-keep.C:
			g.renew(ctx, account, m)
		}
	}
}

// renew says again what was said, so that the stream keeps what it has reserved. One that fails is made up by the
// next, or found when more has to be said.
func (g *gateway) renew(ctx context.Context, account account, m *meter) {
	if err := account.spending(ctx, m.with(m.said)); err != nil {
		g.log.Warn("a stream cannot be renewed", "error", err)
	}
}

// settle says how a request has ended. It is tried again: the same commit twice is one.
func (g *gateway) settle(ctx context.Context, say func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), settleWithin)
	defer cancel()
	var err error
	for range settleTries {
		if err = say(ctx); err == nil {
			return
		}
	}
	g.log.Warn("stint does not know how a request has ended", "error", err)
}

// refuse answers in OpenAI's shape, and names a model whose budgets would admit the request.
func (g *gateway) refuse(ctx context.Context, w http.ResponseWriter, tenant string, ask *chatRequest, a *answer) {
	if !a.refused() {
		writeChatError(w, http.StatusBadRequest, newChatError("invalid_request_error", "too_large",
			fmt.Sprintf("the prompt and max_tokens %d are more than the budget ever admits", ask.MaxTokens)))
		return
	}
	e := newChatError("tokens", "rate_limit_exceeded", "")
	if slices.ContainsFunc(a.body.Violated, func(name string) bool { return !strings.HasSuffix(name, "/minute") }) {
		e.Error.Type, e.Error.Code = "insufficient_quota", "insufficient_quota"
	}
	e.Error.Message = fmt.Sprintf("budget of %s for model %s: %s", tenant, ask.Model, a.body.Detail)
	for _, other := range slices.Sorted(maps.Keys(models)) {
		if other != ask.Model && g.fits(ctx, tenant, other, ask) {
			e.Error.TryModel = other
			e.Error.Message += "; try model " + other
			break
		}
	}
	if v := a.header.Get("Retry-After"); v != "" {
		w.Header().Set("Retry-After", v)
	}
	writeChatError(w, http.StatusTooManyRequests, e)
}

// fits asks whether a request would be admitted with another model. It takes nothing.
func (g *gateway) fits(ctx context.Context, tenant, model string, ask *chatRequest) bool {
	other := *ask
	other.Model = model
	most := newMeter(&other).most()
	for _, unit := range units {
		a, err := g.stint.post(ctx, "/v1/explain", about(tenant, model, unit, most.of(unit)))
		if err != nil || !a.body.Allowed {
			return false
		}
	}
	return true
}

var errUncovered = errors.New("stint is not told what the stream costs")

// stream passes on what the model says, and says before what it costs.
func (g *gateway) stream(ctx context.Context, w http.ResponseWriter, res *http.Response, account account, m *meter) {
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	w.WriteHeader(http.StatusOK)
	lines, stop := make(chan []byte), make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(lines)
		readLines(res.Body, lines, stop)
	}()
	defer func() {
		close(stop)
		res.Body.Close()
		<-ended
	}()
	flush := http.NewResponseController(w)
	keep := time.NewTicker(g.keep)
	defer keep.Stop()
	for {
		select {
		case <-ctx.Done():
			return // the client has gone; the model is told by the end of the connection
		case <-keep.C:
			g.renew(ctx, account, m)
		case line, more := <-lines:
			if !more {
				return
			}
			if err := g.cover(ctx, account, m, line); err != nil {
				g.log.Warn("a stream is cut", "error", err)
				data, _ := json.Marshal(newChatError("server_error", "budget_unknown", "the budget cannot be checked any more"))
				_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
				return
			}
			if _, err := w.Write(line); err != nil {
				return
			}
			if len(bytes.TrimSpace(line)) == 0 && flush.Flush() != nil { // an event ends with an empty line
				return
			}
		}
	}
}

// cover says ahead what a line and those after it cost, when what was said covers half of ahead no more. A line
// that is not covered is not passed on.
func (g *gateway) cover(ctx context.Context, account account, m *meter, line []byte) error {
	data, isData := bytes.CutPrefix(line, []byte("data: "))
	if !isData || !bytes.HasPrefix(data, []byte("{")) {
		return nil // an empty line, or [DONE]
	}
	var c chunk
	if err := json.Unmarshal(data, &c); err != nil {
		return fmt.Errorf("a chunk cannot be read: %w", err)
	}
	m.see(&c)
	if m.covered() > ahead/2 || m.covered() >= 0 && m.said == m.maxTokens {
		return nil
	}
	next := m.ahead()
	err := account.spending(ctx, m.with(next))
	if err == nil {
		m.said = next
		return nil
	}
	if m.covered() >= 0 {
		g.log.Warn("stint is not told what a stream costs, it is tried again", "error", err)
		return nil
	}
	return errors.Join(errUncovered, err)
}

// readLines sends each line with its end, until there are no more or stop is closed.
func readLines(body io.Reader, lines chan<- []byte, stop <-chan struct{}) {
	in := bufio.NewReader(body)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		select {
		case lines <- line:
		case <-stop:
			return
		}
	}
}
