package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server"
)

// maxServiceAnswer bounds an answer of the service in bytes. A decision about tens of limits fits.
const maxServiceAnswer = 256 << 10

// rest is how long the service is not asked after a failure: requests must not wait for the time-out of
// each call. Not longer: what decides meanwhile is second best.
const rest = 250 * time.Millisecond

// service is a [limit.Taker] that asks a stint service over HTTP.
type service struct {
	take, finish string // URLs
	token        string // the Authorization field; "" = none
	client       *http.Client
	timeout      time.Duration
	onFailure    OnFailure
	local        *server.Decider
	attributes   []string

	until atomic.Int64 // when it may be asked again after a failure, Unix nanoseconds; 0 = it answers

	answered, failed, skipped atomic.Uint64
}

var (
	_ limit.Finisher        = (*service)(nil)
	_ limit.AttributeReader = (*service)(nil)
)

func newService(o *Options, local *server.Decider) (*service, error) {
	u, err := url.Parse(strings.TrimSuffix(o.Service.URL, "/"))
	if err != nil {
		return nil, errors.New("proxy: the URL of the service is wrong, write it as http://127.0.0.1:8080")
	}
	s := &service{
		take: u.String() + "/v1/take", finish: u.String() + "/v1/finish",
		timeout: o.Service.Timeout, onFailure: o.Service.OnFailure, local: local, attributes: o.Service.Attributes,
		client: &http.Client{
			Transport: &http.Transport{
				DialContext:         (&net.Dialer{Timeout: o.Timeouts.Connect}).DialContext,
				MaxIdleConns:        maxIdle,
				MaxIdleConnsPerHost: maxIdle,
				IdleConnTimeout:     time.Minute, // below the two minutes of the service
				DisableCompression:  true,
				ForceAttemptHTTP2:   true,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if o.Service.TokenFile == "" {
		return s, nil
	}
	ip, err := netip.ParseAddr(u.Hostname())
	if u.Scheme != "https" && u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return nil, fmt.Errorf("proxy: the token is not sent in plain text to %s, where everybody on the way could read it: use https", u.Host)
	}
	text, err := os.ReadFile(o.Service.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("proxy: cannot read the token of the service: %w", err)
	}
	s.token = "Bearer " + strings.TrimSpace(string(text))
	return s, nil
}

// failing reports whether the last call failed.
func (s *service) failing() bool { return s.until.Load() != 0 }

// Attributes implements [limit.AttributeReader].
func (s *service) Attributes() []string {
	own := s.local.Attributes()
	if len(own) == 0 {
		return s.attributes
	}
	return slices.Concat(own, s.attributes)
}

// errService says that the service did not decide.
var errService = errors.New("proxy: the service does not answer")

// Take implements [limit.Taker].
func (s *service) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	until := s.until.Load()
	if now := time.Now().UnixNano(); until > now || until != 0 && !s.until.CompareAndSwap(until, now+int64(rest)) {
		// One request alone asks whether it is back.
		s.skipped.Add(1)
		return s.without(ctx, req)
	}
	d, err := s.ask(ctx, req)
	if err != nil {
		if ctx.Err() != nil {
			return limit.Decision{}, err // the client has gone
		}
		s.failed.Add(1)
		s.until.Store(time.Now().Add(rest).UnixNano())
		return s.without(ctx, req)
	}
	s.answered.Add(1)
	if until != 0 {
		s.until.Store(0)
	}
	return d, nil
}

// without decides while the service does not answer.
func (s *service) without(ctx context.Context, req limit.Request) (limit.Decision, error) {
	if s.onFailure == FailureLocal {
		d, err := s.local.Take(ctx, req)
		d.Permit <<= 1 // see Finish
		if d.Allowed && !req.Peek {
			s.local.CountNoService()
		}
		return d, err
	}
	if s.onFailure == FailureAllow && !req.Peek {
		s.local.CountNoService()
	}
	return limit.Decision{}, errService // the middleware allows or refuses
}

// Finish implements [limit.Finisher]. The lowest bit of a permit says who gave it.
func (s *service) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	if permit&1 == 0 {
		return s.local.Finish(ctx, req, permit>>1)
	}
	body := question(req)
	body["permit"] = permit >> 1
	res, err := s.post(ctx, s.finish, body)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

func question(req limit.Request) map[string]any {
	attributes := make(map[string]string, len(req.Attributes))
	for _, a := range req.Attributes {
		if _, there := attributes[a.Name]; !there && len(attributes) < 64 {
			attributes[a.Name] = strings.ToValidUTF8(a.Value, "\uFFFD")
		}
	}
	return map[string]any{"attributes": attributes}
}

func (s *service) post(ctx context.Context, to string, body any) (*http.Response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if s.token != "" {
		req.Header.Set("Authorization", s.token)
	}
	return s.client.Do(req)
}

// ask has the service decide.
func (s *service) ask(ctx context.Context, req limit.Request) (limit.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	body := question(req)
	if req.Peek {
		body["cost"] = 0
	} else if req.Cost != 0 {
		body["cost"] = req.Cost
	}
	res, err := s.post(ctx, s.take, body)
	if err != nil {
		return limit.Decision{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(io.LimitReader(res.Body, maxServiceAnswer))
	if err != nil {
		return limit.Decision{}, err
	}
	return decode(res.StatusCode, text)
}

// wireResult is one limit in an answer of the service; times are in seconds, null = never.
type wireResult struct {
	Name        string   `json:"name"`
	Allowed     bool     `json:"allowed"`
	Unlimited   bool     `json:"unlimited"`
	Quota       int64    `json:"quota"`
	Window      float64  `json:"window"`
	Cost        int64    `json:"cost"`
	Remaining   int64    `json:"remaining"`
	ResetAfter  *float64 `json:"reset_after"`
	Soft        bool     `json:"soft"`
	Shadow      bool     `json:"shadow"`
	StoreFailed bool     `json:"store_failed"`
}

// decode reads a decision. A refusal is a problem document: all that is not one, and no decision, is an
// error.
func decode(status int, text []byte) (limit.Decision, error) {
	if status == http.StatusOK {
		var m struct {
			Allowed *bool        `json:"allowed"`
			Permit  uint64       `json:"permit"`
			Delay   float64      `json:"delay"`
			Limits  []wireResult `json:"limits"`
		}
		if err := json.Unmarshal(text, &m); err != nil || m.Allowed == nil || !*m.Allowed || m.Permit > 1<<62 {
			return limit.Decision{}, fmt.Errorf("proxy: the service's answer is no decision: %w", err)
		}
		d := limit.Decision{Allowed: true, Delay: seconds(&m.Delay)}
		if m.Permit != 0 {
			d.Permit = m.Permit<<1 | 1
		}
		for i := range m.Limits {
			d.Results = append(d.Results, m.Limits[i].result())
		}
		return d, nil
	}
	var m struct {
		Policies   []string `json:"violated-policies"`
		Reason     string   `json:"reason"`
		RetryAfter *float64 `json:"retry_after"`
		Status     int      `json:"status"`
	}
	if err := json.Unmarshal(text, &m); err != nil || m.Policies == nil || m.Status < 400 {
		return limit.Decision{}, fmt.Errorf("proxy: the service answers %d, which is no decision", status)
	}
	d := limit.Decision{Status: m.Status}
	for _, name := range m.Policies {
		// What is not known of a limit is not invented: StoreFailed leaves the figures out of the fields.
		d.Results = append(d.Results, limit.Result{Limit: name, StoreFailed: true, Verdict: limit.Verdict{Reason: reasonOf(m.Reason), RetryAfter: seconds(m.RetryAfter)}})
	}
	return d, nil
}

func (r *wireResult) result() limit.Result {
	out := limit.Result{
		Limit: r.Name, Quota: r.Quota, Window: seconds(&r.Window), Cost: r.Cost, Soft: r.Soft, Shadow: r.Shadow, StoreFailed: r.StoreFailed,
		Verdict: limit.Verdict{Allowed: r.Allowed, Remaining: r.Remaining, ResetAfter: seconds(r.ResetAfter)},
	}
	if r.Unlimited {
		out.Quota, out.Remaining = math.MaxInt64, math.MaxInt64
	}
	return out
}

func reasonOf(name string) limit.Reason {
	for i := range limit.ReasonCount {
		if r := limit.Reason(i); r.String() == name && r != limit.ReasonNone {
			return r
		}
	}
	return limit.ReasonRate
}

func seconds(s *float64) time.Duration {
	switch {
	case s == nil || *s >= limit.Never.Seconds():
		return limit.Never
	case *s <= 0:
		return 0
	}
	return time.Duration(math.Ceil(*s * float64(time.Second)))
}
