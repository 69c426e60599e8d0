package agree

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/bench/internal/process"
)

// Programs are the binaries that are compared.
type Programs struct{ Envoy, Stint string }

// Walk is one comparison.
type Walk struct {
	Set      Set
	XDS      bool   // the configuration comes from a control plane instead of files
	Redis    string // host:port of a server for both
	Requests int
	Seed     uint64
}

// Outcome is what a walk saw.
type Outcome struct {
	Requests, Statuses, Refused int // asked; descriptors in them; requests that envoyproxy/ratelimit refused
	Same                        int // answers without any difference but what is added to each of a kind
	Known                       map[Deviation]int
	Unexplained                 int
	Examples                    []string // the first of the unexplained
}

// Added says whether a kind is of what is added beside an answer that is the same.
func (d Deviation) Added() bool { return d == RetryAfter || d == NamesLimits || d == QuotaField }

// Run starts both services with the same variables and asks them the same requests,
// both at once, one request after the other.
func (w Walk) Run(ctx context.Context, p Programs) (o Outcome, err error) {
	dir, err := os.MkdirTemp("", "stint-agree-")
	if err != nil {
		return o, fmt.Errorf("agree: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	where, err := w.place(ctx, dir)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, where.stop()) }()
	there, here, err := where.start(ctx, p)
	defer there.stop()
	defer here.stop()
	if err != nil {
		return o, err
	}
	return w.ask(ctx, there, here)
}

// place is where two services find their configuration.
type place struct {
	dir  string
	env  []string      // of both services, but for their addresses
	xds  *controlPlane // nil = files
	sets int           // configurations until now
}

func (w Walk) place(ctx context.Context, dir string) (*place, error) {
	// The timeout is the default of envoyproxy/ratelimit: a machine with other work on
	// it must not show as errors.
	p := &place{dir: dir, env: []string{
		"HOME=" + dir, "REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + w.Redis, "CACHE_KEY_PREFIX=" + filepath.Base(dir) + "_", "REDIS_TIMEOUT=10s",
		"USE_STATSD=false", "LOG_LEVEL=error", "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED=true",
		"LIMIT_RESPONSE_HEADERS_ENABLED=true", "RESPONSE_DYNAMIC_METADATA=true", fmt.Sprintf("MERGE_DOMAIN_CONFIG=%v", w.Set.Merge),
	}}
	if err := os.Mkdir(filepath.Join(dir, "config"), 0o700); err != nil {
		return nil, fmt.Errorf("agree: %w", err)
	}
	if w.XDS {
		var err error
		if p.xds, err = serveXDS(ctx); err != nil {
			return nil, err
		}
		p.env = append(p.env, "CONFIG_TYPE=GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_SERVER_URL="+p.xds.addr, "CONFIG_GRPC_XDS_NODE_ID="+node)
	} else {
		p.env = append(p.env, "RUNTIME_ROOT="+dir, "RUNTIME_WATCH_ROOT=false")
	}
	if err := p.put(ctx, w.Set.Files); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

func (p *place) stop() error {
	if p.xds == nil {
		return nil
	}
	return p.xds.stop()
}

// put makes files the configuration.
func (p *place) put(ctx context.Context, files []File) error {
	if p.sets++; p.xds != nil {
		return p.xds.put(ctx, p.sets, files)
	}
	wanted := map[string]bool{}
	for _, f := range files {
		wanted[f.Name] = true
		if err := os.WriteFile(filepath.Join(p.dir, "config", f.Name), f.Text, 0o600); err != nil {
			return fmt.Errorf("agree: %w", err)
		}
	}
	there, err := os.ReadDir(filepath.Join(p.dir, "config"))
	for _, f := range there {
		if !wanted[f.Name()] {
			err = errors.Join(err, os.Remove(filepath.Join(p.dir, "config", f.Name())))
		}
	}
	return err
}

// start starts both services. They are to be stopped even when there is an error.
func (p *place) start(ctx context.Context, programs Programs) (there, here *service, err error) {
	// stint is the other program by its name.
	link := filepath.Join(p.dir, "ratelimit")
	if err := os.Symlink(programs.Stint, link); err != nil {
		return &service{}, &service{}, fmt.Errorf("agree: %w", err)
	}
	there, err = startService(ctx, p.env, programs.Envoy)
	if err != nil {
		return there, &service{}, err
	}
	here, err = startService(ctx, p.env, link)
	return there, here, err
}

// service is one that answers.
type service struct {
	process *process.Process
	conn    *grpc.ClientConn
	client  rls.RateLimitServiceClient
}

func (s *service) stop() {
	if s.conn != nil {
		_ = s.conn.Close() // it fails when it is closed already
	}
	if s.process != nil {
		s.process.Stop()
	}
}

// startService starts a service and waits until it is healthy. It is to be stopped
// even when there is an error.
func startService(ctx context.Context, env []string, bin string) (*service, error) {
	s := &service{}
	var last, health string
	for _, prefix := range []string{"", "DEBUG_", "GRPC_"} {
		addr, err := process.FreeAddr()
		if err != nil {
			return s, err
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return s, fmt.Errorf("agree: %w", err)
		}
		env = append(slices.Clone(env), prefix+"HOST="+host, prefix+"PORT="+port)
		if last = addr; prefix == "" {
			health = "http://" + addr + "/healthcheck"
		}
	}
	admin, err := process.FreeAddr() // stint's alone
	if err != nil {
		return s, err
	}
	if s.process, err = process.Start(append(slices.Clone(env), "STINT_ADMIN="+admin), bin); err != nil {
		return s, err
	}
	if err := process.AwaitOK(ctx, health); err != nil {
		return s, fmt.Errorf("%w; %s", err, s.process)
	}
	s.conn, err = grpc.NewClient(last, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return s, fmt.Errorf("agree: %w", err)
	}
	s.client = rls.NewRateLimitServiceClient(s.conn)
	return s, nil
}

// beforeTurn is how long before the turn of a second no request is made.
const beforeTurn = 40 * time.Millisecond

func (w Walk) ask(ctx context.Context, there, here *service) (o Outcome, err error) {
	o.Known = map[Deviation]int{}
	set := w.Set
	if w.XDS {
		set = set.unshared()
	}
	ledger := NewLedger(set)
	rng := rand.New(rand.NewPCG(w.Seed, 0))
	for range w.Requests {
		q := set.Draw(rng)
		if left := time.Until(time.Now().Truncate(time.Second).Add(time.Second)); left < beforeTurn {
			time.Sleep(left + time.Millisecond)
		}
		from := time.Now()
		ours := make(chan Answer, 1)
		go func() { ours <- here.ask(ctx, q) }() // ends with its answer, which is awaited
		a := there.ask(ctx, q)
		b := <-ours
		to := time.Now()
		if code := status.Code(a.Err); code != codes.OK && code != codes.Unknown { // its own errors are Unknown
			return o, fmt.Errorf("agree: envoyproxy/ratelimit did not answer request %d: %w; %s", o.Requests+1, a.Err, there.process)
		}
		known, unknown := ledger.Compare(q, a, b, from, to)
		o.Requests++
		o.Statuses += len(q.Descriptors)
		if a.Response.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT {
			o.Refused++
		}
		same := len(unknown) == 0
		for _, d := range known {
			o.Known[d]++
			same = same && d.Added()
		}
		if same {
			o.Same++
		}
		if len(unknown) > 0 {
			o.Unexplained++
			if len(o.Examples) < 5 {
				o.Examples = append(o.Examples, fmt.Sprintf("request %d, {%v}: %q", o.Requests, q, unknown))
			}
		}
	}
	return o, ctx.Err()
}

func (s *service) ask(ctx context.Context, q *rls.RateLimitRequest) Answer {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	r, err := s.client.ShouldRateLimit(ctx, q)
	return Answer{r, err}
}

// Add adds another walk.
func (o *Outcome) Add(other Outcome) {
	o.Requests += other.Requests
	o.Statuses += other.Statuses
	o.Refused += other.Refused
	o.Same += other.Same
	o.Unexplained += other.Unexplained
	o.Examples = append(o.Examples, other.Examples...)
	for d, n := range other.Known {
		o.Known[d] += n
	}
}
