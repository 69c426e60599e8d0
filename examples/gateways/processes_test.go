//go:build linux

package gateways_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/builttest"

	"github.com/stint-io/stint/internal/gatewaytest"
)

type (
	service     = gatewaytest.Service
	application = gatewaytest.Application
)

// stintBinary and grpcurlBinary are built once, by TestMain. traefikBinary and envoyBinary come from a cache.
var stintBinary, grpcurlBinary, traefikBinary, envoyBinary string

func TestMain(m *testing.M) {
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "stint-gateways-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if stintBinary, err = builttest.Stint(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	grpcurlBinary = filepath.Join(dir, "grpcurl")
	build := exec.Command("go", "build", "-o", grpcurlBinary, "github.com/fullstorydev/grpcurl/cmd/grpcurl")
	build.Dir = "../../tools"
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "building grpcurl: %v\n%s", err, out)
		return 1
	}
	for name, to := range map[string]*string{"traefik": &traefikBinary, "envoy": &envoyBinary} {
		path, err := exec.Command("../../scripts/" + name).Output()
		if err != nil {
			fmt.Fprintf(os.Stderr, "scripts/%s: %v\n", name, err)
			return 1
		}
		*to = strings.TrimSpace(string(path))
	}
	return m.Run()
}

// startStint starts a service that is ready.
func startStint(t *testing.T, config string) *service {
	t.Helper()
	s := gatewaytest.StartService(t, stintBinary, config)
	gatewaytest.AwaitReady(t, s.Admin)
	return s
}
