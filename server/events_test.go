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
)

const eventSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// receiver takes what a webhook sends, once it listens.
type receiver struct {
	t    *testing.T
	mu   sync.Mutex
	got  map[string][]string // by customer
	ids  map[string]bool
	seqs map[string]uint64
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
	if r.ids[id] = true; m.Data.Seq != r.seqs[who]+1 {
		r.t.Errorf("%s: event %d follows event %d", who, m.Data.Seq, r.seqs[who])
	}
	r.seqs[who] = m.Data.Seq
	r.got[who] = append(r.got[who], strings.TrimPrefix(m.Type, "limit.")+strings.Repeat(" ", min(1, len(m.Data.Under)))+m.Data.Under)
}

// events is how many crossing events s noted, of every kind.
func (s *service) events() (sum int) {
	for _, m := range noted.FindAllStringSubmatch(s.do(http.MethodGet, s.admin+"/metrics", "").body, -1) {
		n, _ := strconv.Atoi(m[1])
		sum += n
	}
	return sum
}

var noted = regexp.MustCompile(`(?m)^stint_events_total\{.*\} (\d+)$`)

// TestEvents: two servers share Redis. Each crossing of each key is sent once, in order, though requests of a key go
// to both servers, and the receiver is not there when they happen.
func TestEvents(t *testing.T) {
	r := redistest.Start(t, "--requirepass", password)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	secret := filepath.Join(t.TempDir(), "secret")
	write(t, secret, eventSecret+"\n")
	yaml := fmt.Sprintf(`
limits:
  - {name: month, key: [customer], rate: 100/month, algorithm: fixed_window, soft: 80%%, hard: 150%%}
events: {webhook: "http://%s/hook", secret_file: %q}
`, address, secret)
	servers := []*service{startRedis(t, r, yaml), startRedis(t, r, yaml)}
	var all sync.WaitGroup
	const customers = 20
	for i := range customers {
		all.Go(func() {
			for n := range 200 {
				servers[n%2].post("/v1/take", fmt.Sprintf(`{"attributes":{"customer":"c%d"}}`, i))
			}
		})
	}
	all.Wait()
	// Back under both thresholds.
	if a := servers[0].do(http.MethodPost, servers[0].admin+"/v1/admin/keys/refund?limit=month&key=customer=c0&amount=100", ""); a.status != http.StatusOK {
		t.Fatalf("%+v", a)
	}
	await(t, "every event to be noted", func() bool {
		sum := 0
		for _, s := range servers {
			sum += s.events()
		}
		return sum == 3*customers+2
	})
	got := &receiver{t: t, got: map[string][]string{}, ids: map[string]bool{}, seqs: map[string]uint64{}}
	if l, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	hook := &httptest.Server{Listener: l, Config: &http.Server{Handler: got, ReadHeaderTimeout: time.Minute}}
	hook.Start()
	defer hook.Close()
	await(t, "every event to be sent", func() bool {
		got.mu.Lock()
		defer got.mu.Unlock()
		return len(got.ids) == 3*customers+2
	})
	got.mu.Lock()
	defer got.mu.Unlock()
	for i := range customers {
		want := []string{"soft", "hard", "saturated"}
		if i == 0 {
			want = append(want, "under hard", "under soft")
		}
		have := got.got[fmt.Sprint("c", i)]
		// The two servers saw the requests of a key at the same time.
		slices.Sort(have[:3])
		slices.Sort(want[:3])
		if !slices.Equal(have, want) {
			t.Errorf("c%d: %q, want %q", i, have, want)
		}
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
