package kubernetes_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/clustertest"
	"github.com/stint-io/stint/internal/cluster/kubernetes"
)

// realServer names the API server that scripts/kubernetes has started, and its files.
const realServer = "STINT_KUBERNETES_SERVER"

func TestRegister(t *testing.T) {
	options := kubernetes.Options{Namespace: "default"}
	var freeze, thaw func()
	if url := os.Getenv(realServer); url != "" {
		options.Server = url
		options.CAFile, options.TokenFile = os.Getenv("STINT_KUBERNETES_CA"), os.Getenv("STINT_KUBERNETES_TOKEN")
		t.Logf("against the API server at %s", url)
		process, err := strconv.Atoi(os.Getenv("STINT_KUBERNETES_PROCESS"))
		if err != nil {
			t.Fatal(err)
		}
		signal := func(s syscall.Signal) func() {
			return func() {
				if err := syscall.Kill(process, s); err != nil {
					t.Fatal(err)
				}
			}
		}
		freeze, thaw = signal(syscall.SIGSTOP), signal(syscall.SIGCONT)
	} else {
		s := startAPIServer(t)
		options.Server = s.URL
		freeze, thaw = s.freeze, s.thaw
	}
	tables := 0
	clustertest.Run(t, clustertest.Backend{
		Table: func(t *testing.T) func() cluster.Register {
			tables++
			o := options
			o.Name = fmt.Sprintf("table%d", tables)
			return func() cluster.Register {
				r, err := kubernetes.New(o)
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
		},
		Freeze: freeze, Thaw: thaw,
	})
}

// TestToken: the token is read anew, since the kubelet replaces it.
func TestToken(t *testing.T) {
	s := startAPIServer(t)
	file := filepath.Join(t.TempDir(), "token")
	r, err := kubernetes.New(kubernetes.Options{Server: s.URL, Namespace: "default", TokenFile: file})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	for _, token := range []string{"first", "second"} {
		s.mu.Lock()
		s.token = token
		s.mu.Unlock()
		if _, err := r.Read(t.Context(), "leader/default"); err == nil {
			t.Errorf("a call without the token %s succeeds", token)
		}
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Read(t.Context(), "leader/default"); err != nil {
			t.Errorf("with the token %s: %v", token, err)
		}
	}
}

// TestForeignObjects: an object that is not of the key, or whose version is no number, is an error
// and no record.
func TestForeignObjects(t *testing.T) {
	s := startAPIServer(t)
	r, err := kubernetes.New(kubernetes.Options{Server: s.URL, Namespace: "default"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	if _, err := r.Swap(t.Context(), "leader/default", 0, []byte("x")); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	for _, object := range s.objects {
		meta(object)["resourceVersion"] = "abc"
	}
	s.mu.Unlock()
	if _, err := r.Read(t.Context(), "leader/default"); err == nil || !strings.Contains(err.Error(), `"abc"`) {
		t.Errorf("a version that is no number: %v", err)
	}
	s.mu.Lock()
	for _, object := range s.objects {
		meta(object)["annotations"] = map[string]any{}
	}
	s.mu.Unlock()
	if _, err := r.Read(t.Context(), "leader/default"); err == nil || errors.Is(err, cluster.ErrChanged) {
		t.Errorf("an object without a key: %v", err)
	}
}

func TestOptionsThatCannotWork(t *testing.T) {
	for _, o := range []kubernetes.Options{
		{}, // this test runs in no pod
		{Server: "https://127.0.0.1:1"},
		{Server: "127.0.0.1:1", Namespace: "default"},
		{Server: "https://127.0.0.1:1", Namespace: "Default"},
		{Server: "https://127.0.0.1:1", Namespace: "default", Name: "a/b"},
		{Server: "https://127.0.0.1:1", Namespace: "default", Name: "-a"},
		{Server: "https://127.0.0.1:1", Namespace: "default", Name: strings.Repeat("a", 64)},
		{Server: "https://127.0.0.1:1", Namespace: "default", CAFile: "kubernetes_test.go"},
		{Server: "https://127.0.0.1:1", Namespace: "default", CAFile: "missing"},
	} {
		if r, err := kubernetes.New(o); err == nil {
			t.Errorf("%+v: no error", o)
			_ = r.Close()
		}
	}
}
