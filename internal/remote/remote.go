// Package remote asks a stint service over HTTP. It is the client of the service for Go programs of this repository: the
// proxy decides by it, and the command line asks by it.
//
// It keeps three things apart. An answer that takes long is no failure: the service may hold it for a queue. A 4xx
// without a decision concerns one request, which is refused. Whether the service is out is found by a question that has
// nothing of a client's request in it, see [Client.Run]; while it is out nothing is asked.
package remote

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
)

const (
	// DefaultTimeout is the default of [Options.Timeout]: a service across a data center answers within milliseconds,
	// and in its pauses within tens.
	DefaultTimeout = 50 * time.Millisecond
	// longestWait is for how long the service may hold an answer: the longest max_wait of a queue.
	longestWait = time.Minute
	// probeWhileOut and probeWhileWell are the times between two probes.
	probeWhileOut  = 250 * time.Millisecond
	probeWhileWell = time.Second
	// probePatience times the Timeout is how long a probe may take. One that is too short takes a service that is busy
	// for one that is out.
	probePatience = 4
	// outAfter is how many probes in a row must fail.
	outAfter = 2
	// maxAnswer bounds an answer in bytes; explanations of many limits are long.
	maxAnswer = 16 << 20
	// maxIdle is how many idle connections are kept: one for each request in progress under load.
	maxIdle = 1024
	// oneLine is how often a refused question is logged.
	oneLine = time.Minute
)

// ErrNoDecision is wrapped by the errors of [Client.Take] that say that the service did not decide.
var ErrNoDecision = errors.New("remote: the service does not decide")

// Options configure a [Client]. URL is required.
type Options struct {
	URL     string        // of the service's HTTP port, such as http://127.0.0.1:8080
	Timeout time.Duration // after which it is asked whether the service lives; 0 = DefaultTimeout
	Connect time.Duration // for a connection to be made; 0 = 2 s
	Token   string        // "" = none
	HTTP    *http.Client  // nil = one of its own
	Logger  *slog.Logger  // nil = [slog.Default]
}

// Client asks one service. Make it with [New]. It is safe for concurrent use.
type Client struct {
	base    string
	token   string // the Authorization field; "" = none
	http    *http.Client
	timeout time.Duration
	log     *slog.Logger

	wake chan struct{} // a call has failed, or takes long
	life atomic.Pointer[life]
	mu   struct {
		sync.Mutex
		met     bool  // it has answered a probe
		failed  int   // probes in a row
		problem error // nil = it answers
		told    time.Time
	}

	answered, refused, failed, skipped atomic.Uint64
}

// life is a time in which the service is not known to be out.
type life struct {
	context.Context
	end context.CancelCauseFunc
}

var _ limit.Keeper = (*Client)(nil)

// New returns a client. It asks nothing yet.
func New(o Options) (*Client, error) {
	u, err := url.Parse(strings.TrimSuffix(o.URL, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return nil, errors.New("the URL of the service is wrong, write it as http://127.0.0.1:8080")
	}
	if o.Token != "" && u.Scheme != "https" && !onLoopback(u.Hostname()) {
		return nil, fmt.Errorf("the token is not sent in plain text to %s, where everybody on the way could read it: use https", u.Host)
	}
	c := &Client{base: u.String(), http: o.HTTP, timeout: o.Timeout, log: o.Logger, wake: make(chan struct{}, 1)}
	if o.Token != "" {
		c.token = "Bearer " + o.Token
	}
	if c.timeout <= 0 {
		c.timeout = DefaultTimeout
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.http == nil {
		c.http = newHTTP(o.Connect)
	}
	c.begin()
	return c, nil
}

func newHTTP(connect time.Duration) *http.Client {
	if connect <= 0 {
		connect = 2 * time.Second
	}
	// An answer may be held for a minute, so the kernel has to notice a machine that is gone.
	dial := &net.Dialer{
		Timeout: connect, Control: endUnacknowledged,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2},
	}
	return &http.Client{
		Transport: &http.Transport{
			DialContext:         dial.DialContext,
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12},
			MaxIdleConns:        maxIdle,
			MaxIdleConnsPerHost: maxIdle,
			IdleConnTimeout:     time.Minute, // below the two minutes of the service
			DisableCompression:  true,
			ForceAttemptHTTP2:   true,
		},
		// Another address would be sent the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func onLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// begin makes the service one that is not known to be out.
func (c *Client) begin() {
	one := &life{}
	one.Context, one.end = context.WithCancelCause(context.Background())
	c.life.Store(one)
}

// Fault is an answer that is no decision.
type Fault struct {
	Status int
	Text   string // "413 Request Entity Too Large"
	Detail string // what the service says is wrong; it may be empty
}

// Error implements error.
func (f *Fault) Error() string {
	if f.Detail == "" {
		return "the service answers " + f.Text
	}
	return "the service answers " + f.Text + ": " + f.Detail
}

// ofTheRequest reports whether the answer concerns one request, and nothing else.
func (f *Fault) ofTheRequest() bool { return f.Status >= 400 && f.Status < 500 }

// Call posts a question to a path of the service and returns the status and the body of its answer: of a call that has
// succeeded, or of a refusal. Any other answer is a [Fault]. key is the idempotency key of a take; "" = none.
func (c *Client) Call(ctx context.Context, path string, question []byte, key string) (status int, answer []byte, err error) {
	return c.call(ctx, path, question, nil, key)
}

func (c *Client) call(ctx context.Context, path string, question []byte, prefer []string, key string) (status int, answer []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base+path, bytes.NewReader(question))
	if err != nil {
		return 0, nil, err
	}
	req.Header["Content-Type"] = isJSON
	if prefer != nil {
		req.Header["Prefer"] = prefer
	}
	if key != "" {
		req.Header["Idempotency-Key"] = []string{key}
	}
	if c.token != "" {
		req.Header["Authorization"] = []string{c.token}
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	answer, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("the service's answer broke off: %w", err)
	}
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusNoContent && !isRefusal(res.Header, answer) {
		return 0, nil, &Fault{res.StatusCode, res.Status, detail(answer)}
	}
	return res.StatusCode, answer, nil
}

// Header fields that all questions share. Nobody writes to them.
var (
	isJSON  = []string{"application/json"}
	patient = []string{fmt.Sprintf("wait=%d", longestWait/time.Second)}
	hasty   = []string{"wait=0"}
)

// Take implements [limit.Taker]. A question that the service takes for wrong is a refusal of its request. An error wraps
// [ErrNoDecision] unless ctx has ended.
func (c *Client) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	life := c.life.Load()
	if life.Err() != nil {
		c.skipped.Add(1)
		return limit.Decision{}, context.Cause(life)
	}
	asking, cancel := context.WithTimeout(ctx, c.timeout+longestWait)
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	defer time.AfterFunc(c.timeout, c.suspect).Stop()
	d, err := c.take(asking, req, patient)
	var fault *Fault
	switch {
	case err == nil:
		c.answered.Add(1)
		return d, nil
	case ctx.Err() != nil:
		return limit.Decision{}, ctx.Err() // the client has gone
	case errors.As(err, &fault) && fault.ofTheRequest():
		c.refused.Add(1)
		c.suspect() // a wrong token is answered so, too
		c.tell(fault)
		return refusalOf(fault), nil
	}
	c.failed.Add(1)
	c.suspect()
	return limit.Decision{}, fmt.Errorf("%w: %w", ErrNoDecision, err)
}

func (c *Client) take(ctx context.Context, req limit.Request, prefer []string) (limit.Decision, error) {
	status, answer, err := c.call(ctx, "/v1/take", appendQuestion(nil, req, 0), prefer, req.IdempotencyKey)
	if err != nil {
		return limit.Decision{}, err
	}
	return decision(status, answer)
}

// Finish implements [limit.Finisher].
func (c *Client) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	_, _, err := c.Call(ctx, "/v1/finish", appendQuestion(nil, limit.Request{Attributes: req.Attributes}, permit), "")
	return err
}

// Keep implements [limit.Keeper].
func (c *Client) Keep(ctx context.Context, req limit.Request, permit uint64) error {
	question := appendQuestion(nil, limit.Request{Attributes: req.Attributes}, permit)
	_, _, err := c.Call(ctx, "/v1/finish", append(question[:len(question)-1], `,"keep":true}`...), "")
	return err
}

// suspect has the service probed soon.
func (c *Client) suspect() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// tell logs a question that the service has refused.
func (c *Client) tell(fault *Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := time.Now(); now.Sub(c.mu.told) >= oneLine {
		c.mu.told = now
		c.log.Warn("the service refuses a question, so its request is refused; more within a minute are not logged", "service", c.base, "error", fault)
	}
}

// Run probes the service until ctx ends: at once, each second, and soon after a call that has failed or takes long. A
// probe asks how a request without attributes would be decided and takes nothing. When two in a row fail the service is
// out: calls in progress end, and [Client.Take] asks nothing until a probe succeeds.
func (c *Client) Run(ctx context.Context) {
	defer c.http.CloseIdleConnections()
	for {
		err := c.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		again := c.judge(err)
		if again == 0 {
			continue
		}
		next := time.NewTimer(again)
		wake := c.wake
		if err != nil {
			wake = nil // the next one comes soon
		}
		select {
		case <-ctx.Done():
		case <-next.C:
		case <-wake:
		}
		next.Stop()
	}
}

func (c *Client) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probePatience*c.timeout)
	defer cancel()
	_, err := c.take(ctx, limit.Request{Peek: true}, hasty)
	return err
}

// judge notes the outcome of a probe and returns when the next one is due.
func (c *Client) judge(err error) (again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		if c.mu.problem != nil {
			c.log.Info("the service answers again", "service", c.base)
			c.begin()
		}
		c.mu.met, c.mu.failed, c.mu.problem = true, 0, nil
		return probeWhileWell
	}
	if c.mu.failed++; c.mu.failed < outAfter {
		return 0
	}
	if c.mu.problem == nil {
		c.log.Warn("the service does not answer", "service", c.base, "error", err)
		c.life.Load().end(fmt.Errorf("%w: %w", ErrNoDecision, err))
	}
	c.mu.problem = err
	return probeWhileOut
}

// Standing says whether the service has ever answered, and why it is out; nil = it is not known to be.
func (c *Client) Standing() (met bool, problem error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.met, c.mu.problem
}

// Figures count the requests that the service was to decide.
type Figures struct {
	Answered uint64 // it decided
	Refused  uint64 // it refused the question
	Failed   uint64 // it did not decide
	Skipped  uint64 // it was not asked, because it was out
}

// Figures returns the counts since the client was made.
func (c *Client) Figures() Figures {
	return Figures{c.answered.Load(), c.refused.Load(), c.failed.Load(), c.skipped.Load()}
}
