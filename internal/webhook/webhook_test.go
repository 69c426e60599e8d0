package webhook_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

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

// hang is the answer of a receiver that does not answer while its client waits.
const hang = 0

// pipes listens for connections in memory, which bubbles of synctest follow.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// receiver is a web server that answers by a function, and remembers what it took. Its methods may be called while it
// serves.
type receiver struct {
	t       *testing.T
	secrets []webhook.Secret
	conns   pipes

	mu       sync.Mutex
	down     bool
	ends     []net.Conn          // of the sender
	answer   func(id string) int // nil = it takes all
	header   http.Header         // of answers
	got      map[string][]string // what it took, by key
	attempts int                 // requests, and connections that were refused
	open     map[string]int      // requests that are being answered, by key
	most     int                 // of them at once
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, err := io.ReadAll(q.Body)
	id := q.Header.Get("webhook-id")
	sec, _ := strconv.ParseInt(q.Header.Get("webhook-timestamp"), 10, 64)
	at := time.Unix(sec, 0)
	if q.Method != http.MethodPost || q.URL.Path != "/x" || q.Header.Get("Content-Type") != "application/json" || string(body) != bodyOf(id) || err != nil {
		r.t.Errorf("%s %s %v: %s, %v", q.Method, q.URL, q.Header, body, err)
	}
	if time.Since(at) >= time.Second || q.Header.Get("webhook-signature") != webhook.Sign(r.secrets, id, at, body) {
		r.t.Errorf("%s: %v", id, q.Header)
	}
	key, _, _ := strings.Cut(id, "/")
	r.mu.Lock()
	r.attempts++
	if r.open[key]++; r.open[key] > 1 {
		r.t.Errorf("%s: two messages at once", key)
	}
	sum := 0
	for _, n := range r.open {
		sum += n
	}
	r.most = max(r.most, sum)
	answer := r.answer
	for name, value := range r.header {
		w.Header()[name] = value
	}
	r.mu.Unlock()
	status := http.StatusNoContent
	if answer != nil {
		status = answer(id)
	}
	r.mu.Lock()
	r.open[key]--
	if status/100 == 2 {
		r.got[key] = append(r.got[key], id)
	}
	r.mu.Unlock()
	if status == hang {
		<-q.Context().Done()
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(status)
}

func (r *receiver) dial(context.Context, string, string) (net.Conn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		r.attempts++
		return nil, errors.New("connection refused")
	}
	a, b := net.Pipe()
	r.ends = append(r.ends, a)
	r.conns <- b
	return a, nil
}

// set changes how the receiver answers. One that goes down ends its connections.
func (r *receiver) set(down bool, answer func(string) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down, r.answer, r.attempts, r.most = down, answer, 0, 0
	for _, c := range r.ends {
		if down {
			_ = c.Close()
		}
	}
}

// took is how many messages the receiver took.
func (r *receiver) took() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, list := range r.got {
		n += len(list)
	}
	return n
}

// all answers each message with a status.
func all(status int) func(string) int { return func(string) int { return status } }

// rig is a sender that runs, its receiver and its log. stop ends the sender, and reports how long that took.
type rig struct {
	*webhook.Sender
	*receiver
	put  map[string]int
	log  *bytes.Buffer
	stop func() time.Duration
}

func bodyOf(id string) string { return `{"id":"` + id + `"}` }

// run calls test with a rig, in a bubble of synctest.
func run(t *testing.T, test func(*testing.T, *rig)) {
	synctest.Test(t, func(t *testing.T) {
		secrets, err := webhook.ParseSecrets([]byte(golden))
		if err != nil {
			t.Fatal(err)
		}
		r := &receiver{t: t, secrets: secrets, conns: make(pipes), got: map[string][]string{}, open: map[string]int{}}
		web := &http.Server{Handler: r, ReadHeaderTimeout: time.Hour}
		go func() { _ = web.Serve(r.conns) }()
		defer web.Close()
		w := &rig{receiver: r, put: map[string]int{}, log: new(bytes.Buffer)}
		w.Sender = webhook.New(webhook.Options{Dial: r.dial, Logger: slog.New(slog.NewTextHandler(w.log, nil))})
		w.Aim(webhook.Target{URL: "http://hooks.example/x", Secrets: secrets})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			w.Run(ctx)
		}()
		w.stop = sync.OnceValue(func() time.Duration {
			began := time.Now()
			cancel()
			<-ended
			return time.Since(began)
		})
		defer time.Sleep(time.Minute) // requests that are being answered end
		defer w.stop()
		test(t, w)
	})
}

// add sends the next message of a key.
func (w *rig) add(key string) {
	id := fmt.Sprintf("%s/%05d", key, w.put[key])
	w.put[key]++
	w.Send(key, webhook.Message{ID: id, Body: []byte(bodyOf(id))})
}

// arrived checks that the receiver took each message once, those of each key in their order.
func (w *rig) arrived(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for key, n := range w.put {
		if got := w.got[key]; len(got) != n || !slices.IsSorted(got) {
			t.Errorf("%s: %d of %d: %v", key, len(got), n, got)
		}
	}
}

// after lets time pass, and waits for what begins then.
func after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestDown: the receiver is away for ten minutes, in one way or another. Messages of that time arrive within a minute
// and a half, each once, those of each key in order; and the receiver was asked about once a minute.
func TestDown(t *testing.T) {
	for name, how := range map[string]struct {
		down   bool
		answer func(string) int
	}{
		"refuses connections": {true, nil}, "500": {false, all(500)}, "503": {false, all(503)}, "429": {false, all(429)},
		"hangs": {false, all(hang)}, "redirects": {false, all(http.StatusFound)},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, w *rig) {
				w.header = http.Header{"Location": {"/elsewhere"}} // which is not followed
				rnd := seeding.Rand(t)
				add := func() { w.add(fmt.Sprint("key", rnd.IntN(50))) }
				for range 50 {
					add()
					after(100 * time.Millisecond)
				}
				w.arrived(t)
				w.set(how.down, how.answer)
				for range 600 {
					add()
					after(time.Second)
				}
				if w.attempts < 10 || w.attempts > 30 {
					t.Errorf("%d attempts in ten minutes", w.attempts)
				}
				if s := w.Stats(); !s.Failing || s.Waiting != 600 {
					t.Errorf("%+v", s)
				}
				w.set(false, nil)
				after(90 * time.Second)
				w.arrived(t)
				if s := w.Stats(); s.Failing || s.Waiting != 0 || s.Taken != 650 || s.Full+s.Old+s.Left != 0 {
					t.Errorf("%+v", s)
				}
				for _, line := range []string{"does not take an event", "takes events again"} {
					if strings.Count(w.log.String(), line) != 1 {
						t.Errorf("%q is not logged once:\n%s", line, w.log)
					}
				}
			})
		})
	}
}

// TestPoison: a message that is not taken, in one way or another, keeps its own key waiting, and no other.
func TestPoison(t *testing.T) {
	for _, status := range []int{http.StatusBadRequest, http.StatusInternalServerError, http.StatusTooManyRequests, http.StatusFound, hang} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			run(t, func(t *testing.T, w *rig) {
				w.set(false, func(id string) int {
					if id == "key0/00000" {
						return status
					}
					return http.StatusOK
				})
				for i := range 20 {
					w.add(fmt.Sprint("key", i))
					w.add(fmt.Sprint("key", i))
				}
				after(time.Minute)
				if w.took() != 38 || len(w.got["key0"]) != 0 {
					t.Fatal(w.got)
				}
				after(9 * time.Minute)
				if s := w.Stats(); s.Refused+s.Unreached < 8 || s.Refused+s.Unreached > 30 {
					t.Errorf("%+v", s)
				}
				w.set(false, nil)
				after(70 * time.Second) // an attempt that has begun may hang for 10 s, and the next follows within a minute
				w.arrived(t)
			})
		})
	}
}

// TestRetryAfter: a receiver that says when to come again is not asked before.
func TestRetryAfter(t *testing.T) {
	run(t, func(t *testing.T, w *rig) {
		w.header = http.Header{"Retry-After": {"200"}}
		w.set(false, all(http.StatusServiceUnavailable))
		w.add("key")
		after(199 * time.Second)
		if w.attempts != 1 {
			t.Errorf("%d attempts", w.attempts)
		}
		w.set(false, nil)
		after(time.Second)
		w.arrived(t)
	})
}

// TestSlow: a receiver that answers slowly has eight messages at once, of eight keys.
func TestSlow(t *testing.T) {
	run(t, func(t *testing.T, w *rig) {
		w.set(false, func(string) int {
			time.Sleep(8 * time.Second)
			return http.StatusOK
		})
		for i := range 80 {
			w.add(fmt.Sprint("key", i%20))
		}
		after(80 * time.Second)
		w.arrived(t)
		if w.most != 8 {
			t.Errorf("%d at once", w.most)
		}
	})
}

// TestBlip: a receiver that is away for a moment, while it has eight messages at once, is asked again a second later.
func TestBlip(t *testing.T) {
	run(t, func(t *testing.T, w *rig) {
		w.set(true, nil)
		for i := range 8 {
			w.add(fmt.Sprint("key", i))
		}
		synctest.Wait()
		w.set(false, nil)
		after(time.Second)
		w.arrived(t)
	})
}

// TestBounds: so many messages wait, and so long.
func TestBounds(t *testing.T) {
	if testing.Short() {
		t.Skip("TestDown has the same goroutines: nothing for the race detector")
	}
	run(t, func(t *testing.T, w *rig) {
		w.set(true, nil)
		for i := range webhook.MaxWaiting / 2 {
			w.add(fmt.Sprint("old", i%3000))
		}
		after(webhook.MaxAge - time.Hour)
		for i := range webhook.MaxWaiting / 2 {
			w.add(fmt.Sprint("new", i%3000))
		}
		for range 37 {
			w.Send("more", webhook.Message{ID: "more/00000", Body: []byte(bodyOf("more/00000"))})
		}
		if s := w.Stats(); s.Waiting != webhook.MaxWaiting || s.Full != 37 || s.Old != 0 {
			t.Errorf("%+v", s)
		}
		after(time.Hour + time.Minute)
		if s := w.Stats(); s.Waiting != webhook.MaxWaiting/2 || s.Old != webhook.MaxWaiting/2 {
			t.Errorf("%+v", s)
		}
		w.set(false, nil)
		after(2 * time.Minute)
		if s := w.Stats(); s.Waiting != 0 || s.Taken != webhook.MaxWaiting/2 || w.took() != webhook.MaxWaiting/2 {
			t.Errorf("%+v", s)
		}
	})
}

// TestAim: without a target nothing is sent, and what waits goes on waiting; a target that changes is used at once.
func TestAim(t *testing.T) {
	run(t, func(t *testing.T, w *rig) {
		w.set(true, nil)
		w.add("key")
		after(10 * time.Minute)
		w.Aim(webhook.Target{})
		w.set(false, nil)
		tried := w.Stats().Unreached
		w.Send("key", webhook.Message{ID: "key/nowhere", Body: []byte(bodyOf("key/nowhere"))})
		after(time.Hour)
		if s := w.Stats(); s.Unreached != tried || s.Waiting != 1 || s.Full != 0 {
			t.Errorf("%d attempts before, %+v", tried, s)
		}
		there := webhook.Target{URL: "http://other.example/x", Secrets: w.secrets}
		w.Aim(there)
		synctest.Wait()
		w.arrived(t)

		w.set(false, all(500))
		w.Send("old", webhook.Message{ID: "old/00000", Body: []byte(bodyOf("old/00000"))})
		synctest.Wait()
		w.Aim(webhook.Target{})
		w.set(false, nil)
		after(webhook.MaxAge)
		w.Aim(there)
		synctest.Wait()
		if s := w.Stats(); w.attempts != 0 || s.Old != 1 || s.Waiting != 0 {
			t.Errorf("%d attempts, %+v", w.attempts, s)
		}
	})
}

// TestEnd: at the end what waits is tried for three seconds, also where the receiver was away for long. What is left is
// logged once, and counted.
func TestEnd(t *testing.T) {
	for name, step := range map[string]struct {
		before, at func(string) int // how the receiver answers before the end, and at the end
		took       int
		longest    time.Duration
	}{
		"nothing waits":    {nil, nil, 40, 0},
		"back":             {all(500), nil, 40, 0},
		"slow":             {all(500), func(string) int { time.Sleep(1300 * time.Millisecond); return http.StatusOK }, 16, 3 * time.Second},
		"away":             {all(500), all(500), 0, 3 * time.Second},
		"hangs":            {all(500), all(hang), 0, 3 * time.Second},
		"hung for a while": {all(hang), all(hang), 0, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(t *testing.T, w *rig) {
				w.set(false, step.before)
				for i := range 40 {
					w.add(fmt.Sprint("key", i%20))
				}
				after(10 * time.Minute)
				w.set(false, step.at)
				if took := w.stop(); took > step.longest {
					t.Errorf("it took %v", took)
				}
				left := 40 - w.took()
				if w.took() < step.took || w.Stats().Left != uint64(left) || step.took == 0 && left != 40 {
					t.Errorf("%d were taken, %+v", w.took(), w.Stats())
				}
				want := 0
				if left > 0 {
					want = 1
				}
				if strings.Count(w.log.String(), "the process ends") != want || left > 0 && !strings.Contains(w.log.String(), fmt.Sprintf("events=%d\n", left)) {
					t.Errorf("%d are left:\n%s", left, w.log)
				}
			})
		})
	}
}
