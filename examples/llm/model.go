package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// chunkTokens is how many tokens the model sends at a time.
const chunkTokens = 4

// model is a server of language models that talks nonsense, at the pace and length of a real one. Answers have a
// lognormal length, cut at max_tokens. The same seed of a request has the same length, whoever sends it and when.
type model struct {
	seed   uint64
	rate   float64 // tokens a second of one stream
	median float64 // tokens of an answer
	sigma  float64 // of its logarithm

	mu     sync.Mutex
	billed map[[2]string]*entry // by user and model
}

// entry is what the provider bills: the prompt when it is taken, tokens when they are made.
type entry struct {
	User       string `json:"user"`
	Model      string `json:"model"`
	Requests   int64  `json:"requests"`
	Prompt     int64  `json:"prompt"`
	Cached     int64  `json:"cached"`
	Completion int64  `json:"completion"`
}

func newModel(seed uint64, rate float64) *model {
	return &model{seed: seed, rate: rate, median: 150, sigma: 1, billed: map[[2]string]*entry{}}
}

func (m *model) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/chat/completions", m.complete)
	mux.HandleFunc("GET /bill", m.bill)
	return mux
}

// plan draws how much of the prompt is cached, and how long the answer is.
func (m *model) plan(r *chatRequest, prompt int64) (cached, length int64) {
	rnd := rand.New(rand.NewPCG(m.seed, r.Seed))
	if rnd.IntN(2) == 0 {
		cached = prompt / 2
	}
	length = int64(min(max(1, m.median*math.Exp(m.sigma*rnd.NormFloat64())), 1<<20))
	if r.MaxTokens > 0 {
		length = min(length, r.MaxTokens)
	}
	return cached, length
}

func (m *model) complete(w http.ResponseWriter, r *http.Request) {
	var ask chatRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody)).Decode(&ask); err != nil {
		writeChatError(w, http.StatusBadRequest, newChatError("invalid_request_error", "bad_json", err.Error()))
		return
	}
	if _, known := models[ask.Model]; !known || !ask.Stream || len(ask.Messages) == 0 {
		writeChatError(w, http.StatusBadRequest, newChatError("invalid_request_error", "bad_request",
			fmt.Sprintf("want a model of %v, messages, and \"stream\": true", slices.Sorted(maps.Keys(models)))))
		return
	}
	prompt := promptTokens(ask.Messages)
	cached, length := m.plan(&ask, prompt)
	m.charge(&ask, entry{Requests: 1, Prompt: prompt, Cached: cached})
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-cache")
	options := streamOptions{}
	if ask.StreamOptions != nil {
		options = *ask.StreamOptions
	}
	s := sender{w: w, flush: http.NewResponseController(w), chunk: chunk{
		ID: fmt.Sprintf("chatcmpl-%016x", ask.Seed), Object: "chat.completion.chunk", Created: time.Now().Unix(), Model: ask.Model,
	}}
	tick := time.NewTicker(time.Duration(chunkTokens / m.rate * float64(time.Second)))
	defer tick.Stop()
	for made := int64(0); made < length; {
		select {
		case <-r.Context().Done(): // nobody listens any more
			return
		case <-tick.C:
		}
		n := min(chunkTokens, length-made)
		made += n
		m.charge(&ask, entry{Completion: n})
		var soFar *usage
		if options.ContinuousUsage {
			soFar = newUsage(prompt, cached, made)
		}
		var reason *string
		if made == length {
			why := "stop"
			if length == ask.MaxTokens {
				why = "length"
			}
			reason = &why
		}
		if s.send([]choice{{Delta: message{Role: "assistant", Content: strings.Repeat("word ", int(n))}, FinishReason: reason}}, soFar) != nil {
			return
		}
	}
	if options.IncludeUsage && s.send([]choice{}, newUsage(prompt, cached, length)) != nil {
		return
	}
	_ = s.write([]byte("[DONE]"))
}

func newUsage(prompt, cached, completion int64) *usage {
	return &usage{prompt, completion, prompt + completion, promptDetails{cached}}
}

// charge adds to the bill of a user.
func (m *model) charge(r *chatRequest, more entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := [2]string{r.User, r.Model}
	e := m.billed[key]
	if e == nil {
		e = &entry{User: r.User, Model: r.Model}
		m.billed[key] = e
	}
	e.Requests += more.Requests
	e.Prompt += more.Prompt
	e.Cached += more.Cached
	e.Completion += more.Completion
}

func (m *model) bill(w http.ResponseWriter, _ *http.Request) {
	m.mu.Lock()
	all := make([]entry, 0, len(m.billed))
	for _, e := range m.billed {
		all = append(all, *e)
	}
	m.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(all)
}

// sender writes server-sent events.
type sender struct {
	w     http.ResponseWriter
	flush *http.ResponseController
	chunk chunk
}

func (s *sender) send(choices []choice, u *usage) error {
	s.chunk.Choices, s.chunk.Usage = choices, u
	data, err := json.Marshal(&s.chunk)
	if err != nil {
		return err
	}
	return s.write(data)
}

func (s *sender) write(data []byte) error {
	if _, err := fmt.Fprintf(s.w, "data: %s\n\n", data); err != nil {
		return err
	}
	return s.flush.Flush()
}

func writeChatError(w http.ResponseWriter, status int, e *chatError) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(e)
}
