package tables

import (
	"context"
	"flag"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/bench/internal/agree"
	"github.com/stint-io/stint/bench/internal/redisserver"
)

var (
	envoyConfigurations = flag.Int("envoy-configurations", 40, "drawn configurations of Envoy in TestBehindEnvoy")
	envoySeed           = flag.Uint64("envoy-seed", 0, "the seed of TestBehindEnvoy; 0 = the time")
)

// Behind Envoy, whatever its actions, stages, descriptors, overrides, costs and options are, stint and
// envoyproxy/ratelimit give the same status, fields and line of the access log, but for differences that have a name.
func TestBehindEnvoy(t *testing.T) {
	t.Parallel()
	cfg := tinyWithStint(t)
	find := exec.Command("./scripts/envoy")
	find.Dir = cfg.Root
	envoy, err := find.Output()
	if err != nil {
		t.Fatal(err)
	}
	programs := agree.Programs{Stint: cfg.Binary, Envoy: filepath.Join(t.TempDir(), "service_cmd")}
	if _, err := buildServices(cfg, programs.Stint, programs.Envoy); err != nil {
		t.Fatal(err)
	}
	redis, err := redisserver.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := redis.Stop(); err != nil {
			t.Error(err)
		}
	}()
	seed := *envoySeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	g := agree.Gateway{Envoy: strings.TrimSpace(string(envoy)), Redis: redis.Addr, Configurations: *envoyConfigurations, Requests: 12, Seed: seed}
	t.Logf("%d configurations, seed %d", g.Configurations, seed)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	o, err := g.Run(ctx, programs)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d requests, %d of them without a call and %d to be the same; %d calls, %d refused, %d the same; %v", o.Exchanges, o.Uncalled, o.Compared, o.Requests, o.Refused, o.Same, o.Known)
	if o.Unlike > 0 {
		t.Errorf("%d requests differ without a reason:\n%s", o.Unlike, strings.Join(o.Examples, "\n"))
	}
	if o.Compared < o.Exchanges/2 || o.Refused < o.Requests/10 || o.Uncalled > o.Exchanges/2 {
		t.Error("the draws compare too little")
	}
}
