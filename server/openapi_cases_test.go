package server_test

import (
	"cmp"
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/server"
)

// openAPITools returns the folder of schemathesis and openapi-generator.
func openAPITools(t *testing.T) string {
	t.Helper()
	cmd := exec.Command("../scripts/openapi")
	cmd.Stderr = os.Stderr
	folder, err := cmd.Output()
	if err != nil {
		t.Fatalf("scripts/openapi: %v", err)
	}
	return strings.TrimSpace(string(folder))
}

// onPort returns the document without the calls of the other port.
func (o *openAPI) onPort(admin bool) object {
	doc, paths := object{}, object{}
	for name, value := range o.doc {
		doc[name] = value
	}
	for path, item := range o.doc["paths"].(object) {
		if (item.(object)["x-port"] == "admin") == admin {
			paths[path] = item
		}
	}
	doc["paths"] = paths
	return doc
}

// TestOpenAPICases: whatever schemathesis makes of the document, a real server answers as the document says. What the
// document takes is accepted, and what it does not take is refused. STINT_OPENAPI_CASES asks for more cases, and
// STINT_OPENAPI_SEED repeats those of a seed.
func TestOpenAPICases(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	o, tools := startOpenAPI(t), openAPITools(t)
	want, err := strconv.Atoi(cmp.Or(os.Getenv("STINT_OPENAPI_CASES"), "500"))
	if err != nil {
		t.Fatal(err)
	}
	config, err := filepath.Abs("testdata/schemathesis.toml")
	if err != nil {
		t.Fatal(err)
	}
	seed := cmp.Or(os.Getenv("STINT_OPENAPI_SEED"), strconv.FormatUint(rand.Uint64(), 10))
	// Some 1,500 cases come of examples and bounds. Those by chance come on top, for the calls that have parameters.
	each := max(1, (want-1500)/20+1)
	sum := 0
	for _, port := range []struct {
		name, address string
		admin         bool
	}{{"HTTP", o.http, false}, {"admin", o.admin, true}} {
		folder := t.TempDir()
		write(t, filepath.Join(folder, "openapi.json"), encoded(t, o.onPort(port.admin)))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		cmd := exec.CommandContext(ctx, "python3", "-m", "schemathesis.cli", "--config-file", config,
			"run", "openapi.json", "--url", port.address, "--seed", seed, "--max-examples", strconv.Itoa(each),
			"--generation-database", "none", "--continue-on-failure", "--no-color")
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "PYTHONPATH="+tools, "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("the %s port, seed %s: %v\n%s", port.name, seed, err, out)
		}
		made := regexp.MustCompile(`(\d+) generated`).FindSubmatch(out)
		if made == nil {
			t.Fatalf("the %s port: no cases\n%s", port.name, out)
		}
		n, _ := strconv.Atoi(string(made[1]))
		sum += n
	}
	t.Logf("%d cases, seed %s", sum, seed)
	if sum < want {
		t.Errorf("%d cases, want %d", sum, want)
	}
}

// TestOpenAPIWithoutToken: a call without a token of a service with --auth is answered as the document says.
func TestOpenAPIWithoutToken(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	dir := t.TempDir()
	testca.File(dir, "take.token", []byte(takeToken+"\n"))
	file := testca.File(dir, "auth.yaml", []byte("identities: [{name: edge, token_file: take.token, roles: [take]}]\n"))
	o := &openAPI{doc: readOpenAPI(t), seen: map[string]bool{}, service: start(t, authLimits, func(s *server.Options) {
		s.AuthFile, s.FirstStart, s.StateDir = file, true, dir+"/state"
	})}
	for _, op := range o.operations() {
		address, header := o.address(op, true)
		a := o.do(op.method, address, "{}", header...)
		if open := op.object["security"] != nil && len(op.object["security"].([]any)) == 1; open != (a.status == http.StatusOK) || !open && a.status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", op.id, a.status, a.body)
		}
		if o.at(op.object, "responses", strconv.Itoa(a.status)) == nil && o.at(op.object, "responses", "default") == nil {
			t.Errorf("%s: the document has no answer %d", op.id, a.status)
		}
		o.response(op, "", a)
	}
}

// TestOpenAPIClient: the client that openapi-generator makes of the document compiles, and gets what the document says from
// both ports of a real server, which are not those of the document.
func TestOpenAPIClient(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	o, tools := startOpenAPI(t), openAPITools(t)
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("testdata/generated")); err != nil {
		t.Fatal(err)
	}
	generate := exec.Command("java", "-jar", filepath.Join(tools, "openapi_generator_cli", "openapi-generator.jar"), "generate",
		"--generator-name", "go", "--input-spec", "openapi.yaml", "--output", filepath.Join(folder, "stint"), "--global-property",
		"apiTests=false,modelTests=false", "--additional-properties", "packageName=stint,withGoMod=false,disallowAdditionalPropertiesIfNotPresent=false")
	if out, err := generate.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run := exec.Command("go", "run", ".", o.Addrs().HTTP.String(), o.Addrs().Admin.String())
	run.Dir = folder
	var errors strings.Builder // also of what is downloaded
	run.Stderr = &errors
	out, err := run.Output()
	if err != nil {
		t.Fatalf("%v\n%s%s", err, out, errors.String())
	}
	const want = `take true 0
refused [one] rate_exceeded
commit committed 312
used 312
customer pro before free
key 1000000
top render
`
	if got := string(out); got != want {
		t.Errorf("the client says\n%s\nwant\n%s", got, want)
	}
}
