package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestExposedFilesAreSaid: whatever names a file with a secret, serve and doctor say which of them every user can read, and
// no other.
func TestExposedFilesAreSaid(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 6))
	const limits = "limits: [{name: a, rate: 5/m}]\n"
	for range 8 {
		dir := t.TempDir()
		open := map[string]bool{}
		place := func(name, text string) string {
			path := filepath.Join(dir, name)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			mode := []os.FileMode{0o600, 0o640, 0o644, 0o604}[r.IntN(4)]
			if err := os.Chmod(path, mode); err != nil {
				t.Fatal(err)
			}
			open[path] = mode&0o004 != 0
			return path
		}
		state := filepath.Join(dir, "state")
		mode := []os.FileMode{0o700, 0o755}[r.IntN(2)]
		if err := os.Mkdir(state, mode); err != nil {
			t.Fatal(err)
		}
		open[state] = mode&0o004 != 0
		password := place("password", "hush\n")
		config := place("limits.yaml", "store: redis://u:hush@127.0.0.1:1\n"+limits)
		token := place("admin.token", "0123456789abcdef0123\n")
		store := "redis://127.0.0.1:1?timeout=1ms&password_file=" + password
		check := func(command, text string, paths ...string) {
			t.Helper()
			for path, is := range open {
				mentioned := strings.Contains(text, "can read "+path+",")
				named := false
				for _, p := range paths {
					named = named || p == path
				}
				if mentioned != (is && named) {
					t.Errorf("seed %d: %s: %s is open %v, named %v, said %v:\n%s", seed, command, filepath.Base(path), is, named, mentioned, text)
				}
			}
		}
		_, _, errOut := call(t, nil, "serve", "--config", config, "--store", store, "--state-dir", state, "--admin-token-file", token,
			"--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "nowhere:x")
		check("serve", errOut, config, password, token, state)
		_, out, _ := call(t, nil, "doctor", "--config", config, "--store", store)
		check("doctor", out, config, password)
	}
}

// TestVariablesAndFilesAsPeopleWriteThem: empty variables, spaces around commas, a byte order mark, and a variable in
// a limits file, which is not expanded.
func TestVariablesAndFilesAsPeopleWriteThem(t *testing.T) {
	a, b := file(t, "a.yaml", "limits: [{name: a, rate: 5/m}]\n"), file(t, "b.yaml", "limits: [{name: b, rate: 5/m}]\n")
	ends := []string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "nowhere:x", "--state-dir", "none"}
	for env, want := range map[string]string{"STINT_CONFIG=": "nowhere", "STINT_CONFIG=" + a + " , " + b: "nowhere", "STINT_GRACE=": "nowhere"} {
		if code, _, errOut := call(t, []string{env}, ends...); code == exitOK || !strings.Contains(errOut, want) {
			t.Errorf("%s: %d %s", env, code, errOut)
		}
	}
	var paths configPaths
	if err := paths.Set("a.yaml, b.yaml"); err != nil || len(paths) != 2 || paths[1] != "b.yaml" {
		t.Errorf("%q, %v", paths, err)
	}
	if token, err := readToken(file(t, "token", "\ufefftoken-of-sixteen-bytes\r\n"), "--token-file"); token != "token-of-sixteen-bytes" || err != nil {
		t.Errorf("%q, %v", token, err)
	}
	code, out, errOut := call(t, nil, "check", file(t, "e.yaml", "store: redis://:${REDIS_PASSWORD}@127.0.0.1:6379\nlimits: [{name: a, rate: 5/m}]\n"))
	if code != exitOK || !strings.Contains(out+errOut, "variables are not expanded") || !strings.Contains(out+errOut, "STINT_STORE") {
		t.Errorf("%d %s%s", code, out, errOut)
	}
}
