package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// The kinds of budget, as limits.yaml calls them. What a request costs of one says nothing of the other.
const (
	unitTokens = "tokens"
	unitMoney  = "micro-dollars"
)

// service asks stint over HTTP.
type service struct {
	base string // http://host:port
	http *http.Client
}

// maxBody bounds the bodies that the example reads.
const maxBody = 1 << 20

// answer is what stint says.
type answer struct {
	status int
	header http.Header
	body   struct {
		ID       string   `json:"id"`
		Reserved int64    `json:"reserved"`
		Clamped  bool     `json:"clamped"`
		Allowed  bool     `json:"allowed"`
		Limits   []figure `json:"limits"`
		// Of a refusal.
		Detail   string   `json:"detail"`
		Violated []string `json:"violated-policies"`
	}
}

// figure is how a limit stands, of /v1/explain.
type figure struct {
	Name  string `json:"name"`
	Quota int64  `json:"quota"`
	Used  int64  `json:"used"`
}

// post makes a call. A refusal, 429, is no error.
func (s *service) post(ctx context.Context, path string, body any) (*answer, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+path, bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	res, err := s.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return nil, fmt.Errorf("stint: POST %s: %w", path, err)
	}
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusTooManyRequests {
		return nil, fmt.Errorf("stint: POST %s is answered with %d: %.300s", path, res.StatusCode, text)
	}
	a := &answer{status: res.StatusCode, header: res.Header}
	if err := json.Unmarshal(text, &a.body); err != nil {
		return nil, fmt.Errorf("stint: POST %s: %w", path, err)
	}
	return a, nil
}

// admit takes or reserves. That no limit applies is an error: a gateway that minds money does not go on without one.
func (s *service) admit(ctx context.Context, path string, body asked) (*answer, error) {
	a, err := s.post(ctx, path, body)
	if err == nil && !a.refused() && len(a.body.Limits) == 0 {
		return nil, fmt.Errorf("stint: no limit applies to %v: is it the right configuration?", body.Attributes)
	}
	return a, err
}

// asked is the body of /v1/take, /v1/reserve and /v1/explain.
type asked struct {
	Attributes map[string]string `json:"attributes"`
	Cost       int64             `json:"cost"`
	TTL        string            `json:"ttl,omitempty"`
}

func about(tenant, model, unit string, cost int64) asked {
	return asked{Attributes: map[string]string{"tenant": tenant, "model": model, "unit": unit}, Cost: cost}
}

// settled is the body of /v1/commit, /v1/release and /v1/renew.
type settled struct {
	ID     string `json:"id"`
	Used   *int64 `json:"used,omitempty"`
	Actual *int64 `json:"actual,omitempty"`
	TTL    string `json:"ttl,omitempty"`
}

// refused reports whether an answer refuses.
func (a *answer) refused() bool { return a.status == http.StatusTooManyRequests }

// openAI translates how the tightest limit stands into the header fields that clients of OpenAI read. Stint has
// chosen the limit already: its own X-RateLimit fields are of one limit.
func (a *answer) openAI(to http.Header) {
	for _, f := range []struct{ from, to string }{
		{"X-Ratelimit-Limit", "X-Ratelimit-Limit-Tokens"}, {"X-Ratelimit-Remaining", "X-Ratelimit-Remaining-Tokens"},
	} {
		if v := a.header.Get(f.from); v != "" {
			to.Set(f.to, v)
		}
	}
	if seconds, err := strconv.ParseInt(a.header.Get("X-Ratelimit-Reset"), 10, 64); err == nil {
		to.Set("X-Ratelimit-Reset-Tokens", (time.Duration(seconds) * time.Second).String())
	}
}
