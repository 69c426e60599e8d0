package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/webhook"
)

const golden = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// TestSign: the vector with which the implementations of Standard Webhooks are tested.
func TestSign(t *testing.T) {
	secrets, err := webhook.ParseSecrets([]byte("# ours\n\n" + golden + "\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	got := webhook.Sign(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", time.Unix(1614265330, 5), []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Error(got)
	}
	both := append(secrets, secrets[0])
	if got := webhook.Sign(both, "a", time.Unix(1, 0), nil); strings.Count(got, "v1,") != 2 || strings.Count(got, " ") != 1 {
		t.Error(got)
	}
}

func TestBadSecrets(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "no secret",
		"# nothing\n":                   "no secret",
		"password":                      "line 1 does not begin with whsec_",
		"\nwhsec_!":                     "line 2: what follows whsec_ is not base64",
		"whsec_YWJj":                    "line 1: the secret has 3 bytes, want 24 to 64",
		strings.Repeat(golden+"\n", 5):  "5 secrets, want at most 4",
		golden + "\nwhsec_" + "aaaa===": "line 2",
	} {
		_, err := webhook.ParseSecrets([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if err != nil && text != "" && strings.Contains(err.Error(), "password") {
			t.Error("the error shows the secret:", err)
		}
	}
}

// outbox is one in memory, of several senders.
type outbox struct {
	mu     sync.Mutex
	keys   map[string][]webhook.Message
	put    map[string]int
	claims map[string]struct {
		by    string
		until time.Time
	}
	nudge chan struct{}
	lose  int // so many Delivered fail
}

func newOutbox() *outbox {
	o := &outbox{keys: map[string][]webhook.Message{}, put: map[string]int{}, nudge: make(chan struct{}, 1)}
	o.claims = map[string]struct {
		by    string
		until time.Time
	}{}
	return o
}

func (o *outbox) add(key string, n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.put[key]++
	id := fmt.Sprintf("%s/%03d", key, n)
	o.keys[key] = append(o.keys[key], webhook.Message{ID: id, Body: []byte(`{"id":"` + id + `"}`)})
	select {
	case o.nudge <- struct{}{}:
	default:
	}
}

// view is the outbox of one process.
type view struct {
	*outbox
	name string
}

func (v view) Waiting(_ context.Context, after string, most int) (list []webhook.Waiting, _ error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, k := range slices.Sorted(maps.Keys(v.keys)) {
		if k > after && len(list) < most {
			list = append(list, webhook.Waiting{Key: k, Version: strconv.Itoa(v.put[k])})
		}
	}
	return list, nil
}

func (v view) Counted(int) {}

func (v view) Claim(_ context.Context, key string, long time.Duration) (bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.claims[key]
	if c.by != v.name && time.Now().Before(c.until) {
		return false, nil
	}
	c.by, c.until = v.name, time.Now().Add(long)
	v.claims[key] = c
	return true, nil
}

func (v view) Release(_ context.Context, key string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.claims[key].by == v.name {
		delete(v.claims, key)
	}
	return nil
}

func (v view) Next(_ context.Context, key string) (webhook.Message, bool, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.keys[key]) == 0 {
		return webhook.Message{}, false, nil
	}
	return v.keys[key][0], true, nil
}

func (v view) Delivered(_ context.Context, key, id string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.lose--; v.lose >= 0 {
		return errors.New("the store did not answer")
	}
	v.keys[key] = slices.DeleteFunc(v.keys[key], func(m webhook.Message) bool { return m.ID == id })
	return nil
}

func (v view) Nudged() <-chan struct{} { return v.nudge }

// receiver answers by a function, and remembers what it took.
type receiver struct {
	mu       sync.Mutex
	answer   func(id string) (int, error)
	got      map[string][]string // by key
	attempts int
	fields   http.Header
}

func (r *receiver) RoundTrip(q *http.Request) (*http.Response, error) {
	body, _ := io.ReadAll(q.Body)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts++
	r.fields = q.Header
	id := field(q.Header, "webhook-id")
	if !strings.Contains(string(body), id) {
		panic("another body")
	}
	status, err := http.StatusNoContent, error(nil)
	if r.answer != nil {
		status, err = r.answer(id)
	}
	if err != nil {
		return nil, err
	}
	if status/100 == 2 {
		key, _, _ := strings.Cut(id, "/")
		r.got[key] = append(r.got[key], id)
	}
	return &http.Response{StatusCode: status, Body: http.NoBody, Header: http.Header{}, Request: q}, nil
}

func (r *receiver) set(answer func(string) (int, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answer = answer
}

// start runs senders over o that aim at r; stop ends them.
func start(t *testing.T, o *outbox, r *receiver, n int) (list []*webhook.Sender, stop func()) {
	secrets, err := webhook.ParseSecrets([]byte(golden))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range n {
		s := webhook.New(webhook.Options{
			Outbox: view{o, fmt.Sprint("server", i)}, Client: &http.Client{Transport: r}, Logger: slog.New(slog.DiscardHandler),
		})
		s.Aim(webhook.Target{URL: "https://hooks.example/x", Secrets: secrets})
		list = append(list, s)
		all.Go(func() { s.Run(ctx) })
	}
	return list, func() { cancel(); all.Wait() }
}

// after lets time pass, and waits for what begins then.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestDown: the receiver is away for ten minutes. What came meanwhile is there within a minute and a half, each once,
// those of each key in order; and the receiver was asked about once a minute by each process.
func TestDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, r := newOutbox(), &receiver{got: map[string][]string{}}
		senders, stop := start(t, o, r, 3)
		defer stop()
		put := map[string]int{}
		rnd := rand.New(rand.NewPCG(1, 1))
		add := func() {
			key := fmt.Sprint("key", rnd.IntN(50))
			o.add(key, put[key])
			put[key]++
		}
		for range 50 {
			add()
			after(100 * time.Millisecond)
		}
		r.set(func(string) (int, error) { return 0, errors.New("connection refused") })
		r.attempts = 0
		for range 600 {
			add()
			after(time.Second)
		}
		if r.attempts > 100 {
			t.Errorf("%d attempts in ten minutes", r.attempts)
		}
		if !senders[0].Stats().Failing {
			t.Error("it is not known that the receiver is away")
		}
		r.set(nil)
		after(90 * time.Second)
		for key, n := range put {
			if got := r.got[key]; len(got) != n || !slices.IsSorted(got) {
				t.Errorf("%s: %d of %d: %v", key, len(got), n, got)
			}
		}
		taken := uint64(0)
		for _, s := range senders {
			taken += s.Stats().Taken
		}
		if taken != 650 {
			t.Error(taken)
		}
	})
}

// TestPoison: a message that is refused keeps its own key waiting, and no other.
func TestPoison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, r := newOutbox(), &receiver{got: map[string][]string{}}
		r.set(func(id string) (int, error) {
			if id == "key0/000" {
				return http.StatusBadRequest, nil
			}
			return http.StatusOK, nil
		})
		senders, stop := start(t, o, r, 1)
		defer stop()
		for i := range 20 {
			o.add(fmt.Sprint("key", i), 0)
			o.add(fmt.Sprint("key", i), 1)
		}
		after(time.Minute)
		if len(r.got) != 19 || len(r.got["key0"]) != 0 {
			t.Fatal(r.got)
		}
		after(9 * time.Minute)
		if n := senders[0].Stats().Refused; n < 8 || n > 30 {
			t.Error("attempts:", n)
		}
		r.set(nil)
		after(time.Minute)
		if !slices.Equal(r.got["key0"], []string{"key0/000", "key0/001"}) {
			t.Error(r.got["key0"])
		}
	})
}

// TestStoreLost: what was taken and cannot be taken off the outbox is not sent again.
func TestStoreLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, r := newOutbox(), &receiver{got: map[string][]string{}}
		o.lose = 3
		_, stop := start(t, o, r, 1)
		defer stop()
		o.add("key", 0)
		o.add("key", 1)
		after(time.Minute)
		if !slices.Equal(r.got["key"], []string{"key/000", "key/001"}) {
			t.Error(r.got)
		}
	})
}

// TestAim: without a target messages wait; a target that changes is used at once; what is there at the end is sent.
func TestAim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o, r := newOutbox(), &receiver{got: map[string][]string{}}
		senders, stop := start(t, o, r, 1)
		senders[0].Aim(webhook.Target{})
		synctest.Wait()
		o.add("key", 0)
		after(time.Hour)
		if r.attempts != 0 {
			t.Error("sent nowhere")
		}
		senders[0].Aim(webhook.Target{URL: "https://other.example/"})
		synctest.Wait()
		if len(r.got["key"]) != 1 || field(r.fields, "webhook-id") != "key/000" || field(r.fields, "webhook-timestamp") == "" {
			t.Error(r.got, r.fields)
		}
		r.set(func(string) (int, error) { return http.StatusFound, nil }) // a redirect is not followed
		o.add("key", 1)
		synctest.Wait()
		if s := senders[0].Stats(); s.Refused != 1 || !s.Failing {
			t.Errorf("%+v", s)
		}
		r.set(nil)
		stop()
	})
}

// field returns a header field by its name as it is written.
func field(h http.Header, name string) string { return h[name][0] }
