package server_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/webhook"
	"github.com/stint-io/stint/server"
)

const eventSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver takes what a webhook sends, while it listens.
type receiver struct {
	t       *testing.T
	address string

	mu   sync.Mutex
	got  map[string][]string // by customer
	ids  map[string]bool
	seqs map[string][]uint64 // by customer
}

// newReceiver returns a receiver that does not listen yet.
func newReceiver(t *testing.T) *receiver {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return &receiver{t: t, address: l.Addr().String(), got: map[string][]string{}, ids: map[string]bool{}, seqs: map[string][]uint64{}}
}

// limits are limits whose events r gets.
func (r *receiver) limits() string {
	secret := filepath.Join(r.t.TempDir(), "secret")
	write(r.t, secret, eventSecret+"\n")
	return fmt.Sprintf(`
limits:
  - {name: month, key: [customer], rate: 100/month, algorithm: fixed_window, soft: 80%%, hard: 150%%}
events: {webhook: "http://%s/hook", secret_file: %q}
`, r.address, secret)
}

// listen has r answer until the test ends.
func (r *receiver) listen() {
	l, err := net.Listen("tcp", r.address)
	if err != nil {
		r.t.Fatal(err)
	}
	hook := &httptest.Server{Listener: l, Config: &http.Server{Handler: r, ReadHeaderTimeout: time.Minute}}
	hook.Start()
	r.t.Cleanup(hook.Close)
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, _ := io.ReadAll(req.Body)
	var m struct {
		Type string
		Data struct {
			Limit, Under         string
			Key                  map[string]string
			Seq                  uint64
			Used, Nominal, Quota int64
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := json.Unmarshal(body, &m); err != nil {
		r.t.Error(err, string(body))
	}
	secrets, _ := webhook.ParseSecrets([]byte(eventSecret))
	var at int64
	_, _ = fmt.Sscan(req.Header.Get("webhook-timestamp"), &at)
	id := req.Header.Get("webhook-id")
	if want := webhook.Sign(secrets, id, time.Unix(at, 0), body); req.Header.Get("webhook-signature") != want {
		r.t.Errorf("the signature is %q, want %q", req.Header.Get("webhook-signature"), want)
	}
	who := m.Data.Key["customer"]
	if r.ids[id] {
		r.t.Errorf("event %s was sent twice", id)
	}
	r.ids[id] = true
	r.seqs[who] = append(r.seqs[who], m.Data.Seq)
	r.got[who] = append(r.got[who], strings.TrimPrefix(m.Type, "limit.")+strings.Repeat(" ", min(1, len(m.Data.Under)))+m.Data.Under)
}

// await waits until r has so many events.
func (r *receiver) await(n int) {
	await(r.t, fmt.Sprintf("%d events to be sent", n), func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.ids) == n
	})
}

// figure is the sum of a metric of s, over all labels that have a text.
func (s *service) figure(name, labels string) (sum int) {
	line := regexp.MustCompile(`(?m)^` + name + `(\{.*\})? (\d+)$`)
	for _, m := range line.FindAllStringSubmatch(s.do(http.MethodGet, s.admin+"/metrics", "").body, -1) {
		if strings.Contains(m[1], labels) {
			n, _ := strconv.Atoi(m[2])
			sum += n
		}
	}
	return sum
}

// refund gives a customer n back.
func (s *service) refund(n int, customer string) {
	s.t.Helper()
	if a := s.do(http.MethodPost, fmt.Sprintf("%s/v1/admin/keys/refund?limit=month&key=customer=%s&amount=%d", s.admin, customer, n), ""); a.status != http.StatusOK {
		s.t.Fatalf("%+v", a)
	}
}

// TestEvents: two servers share Redis. Each crossing of each key is sent once, by the server that noted it, though
// requests of a key go to both servers, and the receiver is not there when they happen.
func TestEvents(t *testing.T) {
	r, got := redistest.Start(t, "--requirepass", password), newReceiver(t)
	yaml := got.limits()
	servers := []*service{startRedis(t, r, yaml), startRedis(t, r, yaml)}
	var all sync.WaitGroup
	const customers = 20
	for i := range customers {
		all.Go(func() {
			for n := range 40 {
				servers[n%2].post("/v1/take", fmt.Sprintf(`{"attributes":{"customer":"c%d"},"cost":5}`, i))
			}
		})
	}
	all.Wait()
	servers[0].refund(100, "c0") // back under both thresholds
	sum := func() (n int) {
		for _, s := range servers {
			n += s.figure("stint_events_total", "")
		}
		return n
	}
	await(t, "every event to be noted", func() bool { return sum() == 3*customers+2 })
	for _, s := range servers {
		await(t, "its events to wait", func() bool { return s.figure("stint_events_waiting", "") == s.figure("stint_events_total", "") })
	}
	got.listen()
	got.await(3*customers + 2)
	for _, s := range servers {
		noted := s.figure("stint_events_total", "")
		await(t, "its events to be taken", func() bool { return s.figure("stint_webhook_attempts_total", "taken") == noted })
		if noted == 0 || s.figure("stint_events_waiting", "") != 0 || s.figure("stint_events_dropped_total", "") != 0 {
			t.Errorf("noted %d:\n%s", noted, s.do(http.MethodGet, s.admin+"/metrics", "").body)
		}
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	for i := range customers {
		want, seqs := []string{"hard", "saturated", "soft"}, []uint64{1, 2, 3}
		if i == 0 {
			want, seqs = append(want, "under hard", "under soft"), append(seqs, 4, 5)
		}
		who := fmt.Sprint("c", i)
		// The two servers saw the requests of a key at the same time, and send at the same time.
		slices.Sort(got.got[who])
		slices.Sort(got.seqs[who])
		if !slices.Equal(got.got[who], want) || !slices.Equal(got.seqs[who], seqs) {
			t.Errorf("%s: %q %v, want %q", who, got.got[who], got.seqs[who], want)
		}
	}
}

// TestEventsOfProcessThatEnds: events that the receiver does not take before the process ends are lost for it, which is
// logged once. The next process with the state directory notes and sends no event of the window again.
func TestEventsOfProcessThatEnds(t *testing.T) {
	got, dir := newReceiver(t), t.TempDir()
	yaml := got.limits()
	kept := func(o *server.Options) { o.StateDir = dir }
	s := start(t, yaml, kept)
	for i := range 5 {
		s.takes(fmt.Sprint("c", i), "81")
	}
	await(t, "every event to wait", func() bool { return s.figure("stint_events_waiting", "") == 5 })
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	const line = "events were not delivered"
	if log := s.log.String(); strings.Count(log, line) != 1 || !strings.Contains(log, "events=5\n") || strings.Count(log, "crossed a threshold") != 5 {
		t.Errorf("the log:\n%s", log)
	}
	got.listen()
	s = start(t, yaml, kept)
	s.takes("c0", "1")
	s.refund(10, "c0")
	s.takes("c1", "69")
	got.await(2)
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	got.mu.Lock()
	defer got.mu.Unlock()
	if log := s.log.String(); strings.Contains(log, line) || len(got.ids) != 2 ||
		!slices.Equal(got.got["c0"], []string{"under soft"}) || !slices.Equal(got.got["c1"], []string{"hard"}) ||
		!slices.Equal(got.seqs["c0"], []uint64{2}) || !slices.Equal(got.seqs["c1"], []uint64{2}) {
		t.Errorf("%v %v, the log:\n%s", got.got, got.seqs, log)
	}
}

// TestEventsAreChecked: what is wrong with the section keeps the configuration out.
func TestEventsAreChecked(t *testing.T) {
	s := start(t, "limits: [{name: l, rate: 5/s}]\n")
	short := filepath.Join(t.TempDir(), "short")
	write(t, short, "whsec_c2hvcnQ=\n")
	for file, want := range map[string]string{"/none/secret": "secret_file", short: "line 1: the secret has 5 bytes"} {
		write(t, s.path, fmt.Sprintf("limits: [{name: l, rate: 5/s}]\nevents: {webhook: 'https://x.example/', secret_file: %q}\n", file))
		if err := s.Reload(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", file, err)
		}
	}
}
