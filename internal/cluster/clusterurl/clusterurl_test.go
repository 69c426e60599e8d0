package clusterurl_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/cluster/clusterurl"
)

func TestOpen(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for url, kind := range map[string]string{
		"":                                "*alone.Register",
		"alone":                           "*alone.Register",
		"etcd://127.0.0.1:1":              "*etcd.Register",
		"etcd://a,b:2379,[::1]/team/x":    "*etcd.Register",
		"ETCDS://127.0.0.1?server_name=x": "*etcd.Register",
		"redis://127.0.0.1:1":             "*redis.Register",
		"redis://h?replicas=2&prefix=x:":  "*redis.Register",
		"redis+sentinel://a,b,c/mymaster": "*redis.Register",
		"valkeys+cluster://:hush@a,b":     "*redis.Register",
		"kubernetes://default/limits?server=https://127.0.0.1:1&token_file=" + token: "*kubernetes.Register",
		"kubernetes://default?server=http://127.0.0.1:1":                             "*kubernetes.Register",
	} {
		r, err := clusterurl.Open(url)
		if err != nil {
			t.Errorf("%q: %v", url, err)
			continue
		}
		if got := fmt.Sprintf("%T", r); got != kind {
			t.Errorf("%q is a %s, want %s", url, got, kind)
		}
		if err := r.Close(); err != nil {
			t.Errorf("%q: %v", url, err)
		}
	}
}

// TestWrongURLs: each error says what is wanted, and none repeats a password.
func TestWrongURLs(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for url, want := range map[string]string{
		"127.0.0.1:2379":                    "no scheme",
		"consul://h":                        "want etcd://host:2379",
		"etcd+x://h":                        "want etcd://host:2379",
		"etcd://":                           "address 1",
		"etcd://h:2379,":                    "address 2",
		"etcd://h:0":                        "address 1",
		"etcd://h:hush":                     "address 1",
		"etcd://::1":                        "address 1",
		"etcd://u:hush%zz@h":                "%25",
		"etcd://u:hush/x@h":                 "%2F",
		"etcd://h?ca=x":                     "known for etcd are password_file",
		"etcd://h?password_file=/missing":   "/missing",
		"etcds://h?ca=/missing":             "/missing",
		"etcds://h?cert=x":                  "belong together",
		"etcds://h?cert=/missing&key=/x":    "/missing",
		"etcds://h?ca=clusterurl_test.go":   "no certificate",
		"etcds://h?ca=":                     "no value",
		"redis://":                          "no host",
		"redis://a,b":                       "redis+cluster://",
		"redis://h?replicas=x":              "from 0 to 255",
		"redis://h?replica=1":               "not known",
		"redis://:hush@h?hushes":            "no value",
		"kubernetes://default/limits":       "in no pod",
		"kubernetes://default/a/b":          "kubernetes://namespace/name",
		"kubernetes://u:hush@default/a":     "kubernetes://namespace/name",
		"kubernetes://default/a?token=hush": "token_file",
		"kubernetes:///a?server=https://h":  "no namespace",
		"kubernetes://default/A?server=x":   "lower-case",
	} {
		r, err := clusterurl.Open(url)
		switch {
		case err == nil:
			t.Errorf("%q: no error", url)
			_ = r.Close()
		case !strings.Contains(err.Error(), want):
			t.Errorf("%q: %v, want %q", url, err, want)
		case strings.Contains(err.Error(), "hush"):
			t.Errorf("%q: the error repeats the password: %v", url, err)
		}
	}
}

// TestRedacted: what people are shown of a URL has no password, and still tells two places apart.
func TestRedacted(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for text, want := range map[string]string{
		"alone": "alone",
		"etcd://10.0.0.1:2379,10.0.0.2:2379/shop":            "etcd://10.0.0.1:2379,10.0.0.2:2379/shop",
		"etcds://stint:SECRET@host:2379/shop?ca=ca.pem":      "etcds://stint@host:2379/shop?ca=ca.pem",
		"etcd://:SECRET@host":                                "etcd://host",
		"etcd://user:SE/CRET@host/shop":                      "etcd://user@host/shop",
		"redis://host?sentinel_password=SECRET&prefix=shop:": "redis://host?prefix=shop:",
		"etcd://host/a?password_file=/run/secret":            "etcd://host/a?password_file=/run/secret",
		"redis://host?password=SECRET":                       "redis://host",
	} {
		if got := clusterurl.Redacted(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
