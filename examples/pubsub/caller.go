package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// caller publishes over one connection of its own, one message at a time. It writes its
// requests itself: what it costs is missing to what it measures.
type caller struct {
	conn net.Conn
	r    *bufio.Reader
	host string
}

func dial(ctx context.Context, url string) (*caller, error) {
	host := strings.TrimPrefix(url, "http://")
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", host)
	if err != nil {
		return nil, err
	}
	return &caller{conn: conn, r: bufio.NewReader(conn), host: host}, nil
}

// answer is what a node said to a publish.
type answer struct {
	published
	status     int
	limits     []string // that refused
	reason     string
	retryAfter string
}

// publish waits for the answer.
func (c *caller) publish(name channelName, text string) (answer, error) {
	_, err := fmt.Fprintf(c.conn, "POST /channels/%s/messages?account=%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n%s",
		name.Channel, name.Account, c.host, len(text), text)
	if err != nil {
		return answer{}, err
	}
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: resp.StatusCode, retryAfter: resp.Header.Get("Retry-After")}
	if a.status == http.StatusOK {
		return a, json.Unmarshal(body, &a.published)
	}
	var problem struct {
		Limits []string `json:"violated-policies"`
		Reason string   `json:"reason"`
		Detail string   `json:"detail"`
	}
	if err := json.Unmarshal(body, &problem); err != nil {
		return answer{}, fmt.Errorf("%s: %w: %s", resp.Status, err, body)
	}
	if a.limits, a.reason = problem.Limits, problem.Reason; a.status != http.StatusTooManyRequests {
		return a, errors.New(problem.Detail)
	}
	return a, nil
}

// listener reads the events of one channel.
type listener struct {
	body io.ReadCloser
	r    *bufio.Reader
}

// event is what a subscriber is sent.
type event struct {
	kind, id, data string
}

func listen(ctx context.Context, url string, name channelName, lastID string) (*listener, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("%s/channels/%s/events?account=%s", url, name.Channel, name.Account), nil)
	if err != nil {
		return nil, err
	}
	if lastID != "" {
		req.Header.Set("Last-Event-ID", lastID)
	}
	// Each has a connection of its own, as subscribers have.
	resp, err := (&http.Transport{}).RoundTrip(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		return nil, fmt.Errorf("%s: %s", resp.Status, text)
	}
	return &listener{resp.Body, bufio.NewReader(resp.Body)}, nil
}

func (l *listener) next() (event, error) {
	var e event
	for {
		line, err := l.r.ReadString('\n')
		if err != nil {
			return e, err
		}
		switch field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": "); field {
		case "event":
			e.kind = value
		case "id":
			e.id = value
		case "data":
			e.data = value
		case "":
			if e.kind != "" {
				return e, nil
			}
		}
	}
}

func (l *listener) close() { _ = l.body.Close() }

// book is what became of the publishes of one account.
type book struct {
	mu        sync.Mutex
	attempted int64
	refused   map[string]int64
	nameless  int64 // refusals that named no limit, or no time to try again
	failed    int64
	times     []admission
}

// admission is one publish that was admitted.
type admission struct {
	at   int64
	cost int64
}

func newBook() *book { return &book{refused: map[string]int64{}} }

func (b *book) note(a answer, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.attempted++
	switch {
	case err != nil:
		b.failed++
	case a.status == http.StatusOK:
		b.times = append(b.times, admission{a.At, a.Cost})
	default:
		if len(a.limits) == 0 || a.reason == "" || a.retryAfter == "" {
			b.nameless++
			return
		}
		b.refused[a.limits[0]+" "+a.reason]++
	}
}

// worstSecond is the largest cost that was admitted in any second, wherever it begins.
func (b *book) worstSecond() int64 {
	b.mu.Lock()
	times := slices.Clone(b.times)
	b.mu.Unlock()
	return worst(times)
}

func worst(times []admission) int64 {
	slices.SortFunc(times, func(a, b admission) int { return int(a.at - b.at) })
	most, sum, from := int64(0), int64(0), 0
	for _, t := range times {
		sum += t.cost
		for t.at-times[from].at >= int64(time.Second) {
			sum -= times[from].cost
			from++
		}
		most = max(most, sum)
	}
	return most
}

// pace calls f at a rate that may change, evenly, until ctx ends. It is late rather than
// above the rate, and catches up by no more than one call.
func pace(ctx context.Context, perSecond func() float64, offset float64, f func() error) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	next := time.Now()
	for first := true; ; first = false {
		rate, wait := perSecond(), 20*time.Millisecond // until the rate is looked at again
		if rate > 0 {
			every := time.Duration(float64(time.Second) / rate)
			if first || next.Before(time.Now().Add(-every)) {
				next = time.Now().Add(time.Duration(offset * float64(every)))
			}
			wait = min(wait, time.Until(next))
			if wait <= 0 {
				next = next.Add(every)
				if err := f(); err != nil {
					return err
				}
				continue
			}
		} else {
			next = time.Time{}
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
	}
}
