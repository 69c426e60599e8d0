package split_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// An instance learns at its start what the limit is and among how many it is split, and follows when an
// operator changes either.
func ExampleSource() {
	// In place of a stint service with a limit "provider".
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, `{"name":"provider","sharing":"split","rate":{"count":1000,"period_ns":1000000000},"split":{"instances":4}}`)
	}))
	defer service.Close()

	source := split.Source{Addresses: []string{service.URL}, Limit: "provider"}
	own := split.Part{First: 0, Weight: 1} // the first, of however many there are
	terms, err := source.Terms(context.Background(), own)
	if err != nil {
		fmt.Println(err)
		return
	}
	l, err := split.New(terms, split.Options{Name: "provider"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go source.Follow(ctx, l, own, nil)
	fmt.Println(l.Terms().Total, l.Terms().Part)
	// Output: 1000/s {0 1 4}
}

// says is a service that answers with the latest text that was sent, and holds a question with the tag of
// that one until there is another.
type says struct {
	answers chan string // to each question in turn
	asked   chan *http.Request
}

func (s *says) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.asked <- r
	select {
	case text := <-s.answers:
		if text == "304" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("ETag", fmt.Sprintf("%q", text))
		fmt.Fprint(w, text)
	case <-r.Context().Done():
	}
}

func answerOf(count, instances int) string {
	return fmt.Sprintf(`{"rate":{"count":%d,"period_ns":1000000000},"split":{"instances":%d}}`, count, instances)
}

// TestSourceIsFollowed: each change is in force, one answer without a change changes nothing, and what
// cannot be used is said and leaves the terms as they are. A service that is gone is left for the next.
func TestSourceIsFollowed(t *testing.T) {
	s := &says{make(chan string), make(chan *http.Request, 100)}
	service := httptest.NewServer(s)
	defer service.Close()
	ctx, stop := context.WithCancel(t.Context())
	gone := httptest.NewServer(nil)
	gone.Close()
	source := split.Source{Addresses: []string{gone.URL, service.URL}, Limit: "a b/c", Token: "secret"}
	own := split.Part{First: 3, Weight: 2}
	l, err := split.New(split.Terms{Total: limit.PerSecond(1), Part: split.Instance(0, 1), Burst: 7}, split.Options{})
	if err != nil {
		t.Fatal(err)
	}
	type change struct {
		terms split.Terms
		err   error
	}
	changes, ended := make(chan change, 100), make(chan error, 1)
	go func() {
		ended <- source.Follow(ctx, l, own, func(t split.Terms, err error) { changes <- change{t, err} })
	}()
	if c := <-changes; c.err == nil {
		t.Errorf("one that is gone: %+v", c)
	}
	for _, c := range []struct {
		text string
		want split.Part
		rate int64
	}{
		{answerOf(1000, 8), split.Part{First: 3, Weight: 2, Of: 8}, 1000},
		{"304", split.Part{}, 0},
		{answerOf(500, 4), split.Part{First: 3, Weight: 1, Of: 4}, 500},
		{answerOf(500, 3), split.Part{Of: 3}, 500}, // nothing is left for this one
		{answerOf(500, 4), split.Part{First: 3, Weight: 1, Of: 4}, 500},
	} {
		s.answers <- c.text
		if c.text == "304" {
			continue
		}
		got := <-changes
		if got.err != nil || got.terms.Part != c.want || got.terms.Total != limit.PerSecond(c.rate) || l.Terms().Part != c.want || l.Terms().Burst != 7 {
			t.Errorf("%s: %+v, the limiter has %+v", c.text, got, l.Terms())
		}
	}
	before := l.Terms()
	for _, text := range []string{`{`, `{"unlimited":true}`, answerOf(1, 1<<30)} {
		s.answers <- text
		for c := range changes {
			if c.err == nil {
				t.Errorf("%s was taken: %+v", text, c.terms)
			}
			if !strings.Contains(c.err.Error(), "refused") { // the other service, which is gone
				break
			}
		}
	}
	if l.Terms() != before {
		t.Errorf("the terms are %+v", l.Terms())
	}
	first := <-s.asked
	if first.URL.Path != "/v1/limits/a b/c" || first.Header.Get("Authorization") != "Bearer secret" || first.URL.RawQuery != "" {
		t.Errorf("asked %v %v", first.URL, first.Header)
	}
	if second := <-s.asked; second.URL.RawQuery != "wait=5s" || second.Header.Get("If-None-Match") == "" {
		t.Errorf("asked %v %v", second.URL, second.Header)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// drawn are services of which one answers. The others refuse connections, say nothing that can be read, or take the
// question and never answer.
type drawn struct {
	kinds map[string]int // by host
	text  string
}

func (d *drawn) RoundTrip(r *http.Request) (*http.Response, error) {
	reply := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r}
	switch d.kinds[r.URL.Host] {
	case 0:
		if r.Header.Get("If-None-Match") != "" {
			select {
			case <-time.After(5 * time.Second):
			case <-r.Context().Done():
				return nil, r.Context().Err()
			}
			reply.StatusCode = http.StatusNotModified
		}
		reply.Header.Set("ETag", `"1"`)
		reply.Body = io.NopCloser(strings.NewReader(d.text))
		return reply, nil
	case 1:
		return nil, errors.New("connection refused")
	case 2:
		reply.Body = io.NopCloser(strings.NewReader("{"))
		return reply, nil
	default:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
}

// TestSourceFindsWhoAnswers: of several services one that answers is found in ten seconds for each of those before it,
// even if they take the question and never answer.
func TestSourceFindsWhoAnswers(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		synctest.Test(t, func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			d := &drawn{kinds: map[string]int{}, text: answerOf(1000, 8)}
			source := split.Source{Limit: "a", Client: &http.Client{Transport: d}}
			n := 2 + rnd.IntN(4)
			good := rnd.IntN(n)
			for i := range n {
				host := fmt.Sprintf("h%d:80", i)
				source.Addresses = append(source.Addresses, "http://"+host)
				if d.kinds[host] = 1 + rnd.IntN(3); i == good {
					d.kinds[host] = 0
				}
			}
			most := time.Duration(good)*11*time.Second + time.Second
			within, cancel := context.WithTimeout(t.Context(), most)
			defer cancel()
			own := split.Part{First: 3, Weight: 2}
			if terms, err := source.Terms(within, own); err != nil || terms.Total != limit.PerSecond(1000) {
				t.Errorf("seed %d: Terms: %+v, %v", seed, terms, err)
			}
			l, err := split.New(split.Terms{Total: limit.PerSecond(1), Part: split.Instance(0, 1)}, split.Options{})
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- source.Follow(ctx, l, own, nil) }()
			time.Sleep(most)
			if synctest.Wait(); l.Terms().Total != limit.PerSecond(1000) {
				t.Errorf("seed %d: the %d-th of %d answers, and after %v the terms are %+v", seed, good+1, n, most, l.Terms())
			}
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
}

// TestSourceSaysWhy: what cannot be learnt is an error.
func TestSourceSaysWhy(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	service := httptest.NewServer(http.NotFoundHandler())
	defer service.Close()
	for want, s := range map[string]split.Source{
		"no address":             {Limit: "a"},
		`says of limit "a": 404`: {Limit: "a", Addresses: []string{service.URL + "/"}},
		"no URL, want one":       {Limit: "a", Addresses: []string{"127.0.0.1:8080"}},
	} {
		if _, err := s.Terms(t.Context(), split.Part{Weight: 1}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
