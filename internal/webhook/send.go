package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Message is what is sent once.
type Message struct {
	// ID is the field webhook-id: the same for each attempt.
	ID   string
	Body []byte
}

// Target is where messages go. The zero value is nowhere.
type Target struct {
	URL     string
	Secrets []Secret
}

// Dial opens a connection.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// The bounds of an attempt. Standard Webhooks asks for 15 to 30 s at most; a receiver that needs longer than this
// keeps all others waiting.
const (
	attemptTimeout = 10 * time.Second
	maxAnswer      = 64 << 10
	maxRetryAfter  = 5 * time.Minute
)

// refusal is an answer that does not take a message.
type refusal struct {
	status int
	after  time.Duration // as it asked for
}

func (r *refusal) Error() string {
	if r.status/100 == 3 {
		return fmt.Sprintf("webhook: the receiver answered %d: it sends elsewhere, which is not followed: configure the URL to which it sends", r.status)
	}
	return fmt.Sprintf("webhook: the receiver answered %d %s, want 2xx", r.status, http.StatusText(r.status))
}

// newClient returns the client of attempts. It follows no redirects: a message and its signature are for the
// configured receiver.
func newClient(dial Dial) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext: dial, Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: workers, IdleConnTimeout: time.Minute,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// post makes one attempt.
func post(ctx context.Context, client *http.Client, to Target, m Message, now time.Time) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, to.URL, bytes.NewReader(m.Body))
	if err != nil {
		return fmt.Errorf("webhook: %w", err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "stint")
	r.Header["webhook-id"] = []string{m.ID}
	r.Header["webhook-timestamp"] = []string{strconv.FormatInt(now.Unix(), 10)}
	r.Header["webhook-signature"] = []string{Sign(to.Secrets, m.ID, now, m.Body)}
	answer, err := client.Do(r)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // without the URL, which may have a token
		}
		return fmt.Errorf("webhook: the receiver cannot be reached: %w", err)
	}
	// So that the connection can be used again; what it says is of no interest.
	_, _ = io.CopyN(io.Discard, answer.Body, maxAnswer)
	_ = answer.Body.Close()
	if answer.StatusCode/100 == 2 {
		return nil
	}
	after, err := strconv.ParseInt(answer.Header.Get("Retry-After"), 10, 32)
	if err != nil || after < 0 {
		after = 0
	}
	return &refusal{answer.StatusCode, min(time.Duration(after)*time.Second, maxRetryAfter)}
}
