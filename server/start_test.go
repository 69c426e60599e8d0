package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/stint-io/stint/server"
)

// service is a server that really runs, on free ports of loopback.
type service struct {
	*server.Server
	t     *testing.T
	conn  *grpc.ClientConn
	rls   pb.RateLimitServiceClient
	http  string
	admin string
	path  string // of the configuration
	log   *buffer
	stop  func() error // drains and waits; may be called again
}

// buffer collects a log.
type buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func start(t *testing.T, yaml string, adjust ...func(*server.Options)) *service {
	t.Helper()
	s := &service{t: t, log: new(buffer), path: filepath.Join(t.TempDir(), "stint.yaml")}
	write(t, s.path, yaml)
	opts := server.Options{
		HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		ConfigPaths: []string{s.path}, Logger: slog.New(slog.NewTextHandler(s.log, nil)),
		Grace: time.Minute, // nothing is cut, however slow the machine is
	}
	for _, f := range adjust {
		f(&opts)
	}
	var err error
	if s.Server, err = server.New(opts); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	s.stop = sync.OnceValue(func() error {
		cancel()
		return <-ended
	})
	select {
	case <-s.Ready():
	case err := <-ended:
		ended <- err
		t.Fatalf("the server did not start: %v", err)
	}
	s.http, s.admin = "http://"+s.Addrs().HTTP.String(), "http://"+s.Addrs().Admin.String()
	if s.conn, err = grpc.NewClient(s.Addrs().GRPC.String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	s.rls = pb.NewRateLimitServiceClient(s.conn)
	t.Cleanup(func() {
		plain.CloseIdleConnections() // a stop waits for those that were never used
		if err := s.conn.Close(); err != nil {
			t.Error(err)
		}
		if err := s.stop(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return s
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// answer is an HTTP answer, read to its end.
type answer struct {
	status int
	header http.Header
	body   string
}

// plain asks without compression, which costs more than the answers, and keeps the connections of all goroutines.
var plain = &http.Client{Transport: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 100}}

func (s *service) do(method, url, body string, header ...string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(context.Background(), method, url, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		if header[i] == "Host" {
			req.Host = header[i+1]
			continue
		}
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := plain.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(text)}
}

func (s *service) post(path, body string) answer {
	s.t.Helper()
	return s.do(http.MethodPost, s.http+path, body)
}

// remaining is what POST /v1/take with the cost 0 says of the first limit.
func (s *service) remaining(attributes string) int64 {
	s.t.Helper()
	a := s.post("/v1/explain", `{"cost":0,"attributes":`+attributes+`}`)
	var x struct {
		Limits []struct{ Quota, Used int64 }
	}
	if err := json.Unmarshal([]byte(a.body), &x); err != nil || len(x.Limits) == 0 {
		s.t.Fatalf("explain answered %d %s: %v", a.status, a.body, err)
	}
	return x.Limits[0].Quota - x.Limits[0].Used
}

// descriptor reads "key=value" pairs.
func descriptor(pairs ...string) *ratelimitv3.RateLimitDescriptor {
	d := &ratelimitv3.RateLimitDescriptor{}
	for _, p := range pairs {
		k, v, _ := strings.Cut(p, "=")
		d.Entries = append(d.Entries, &ratelimitv3.RateLimitDescriptor_Entry{Key: k, Value: v})
	}
	return d
}

func request(domain string, hits uint32, ds ...*ratelimitv3.RateLimitDescriptor) *pb.RateLimitRequest {
	return &pb.RateLimitRequest{Domain: domain, HitsAddend: hits, Descriptors: ds}
}

func (s *service) should(req *pb.RateLimitRequest) *pb.RateLimitResponse {
	s.t.Helper()
	resp, err := s.rls.ShouldRateLimit(context.Background(), req)
	if err != nil {
		s.t.Fatalf("%v\n%s", err, s.log)
	}
	if len(resp.Statuses) != len(req.Descriptors) {
		s.t.Fatalf("%d statuses for %d descriptors", len(resp.Statuses), len(req.Descriptors))
	}
	return resp
}
