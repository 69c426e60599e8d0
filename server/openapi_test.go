package server_test

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/stint-io/stint/server"
)

// openAPILimits make the examples of the document true.
const openAPILimits = `
plans:
  - {name: free, limits: [{name: messages, rate: 1M/month, algorithm: fixed_window, within: pool}]}
  - {name: pro, limits: [{name: messages, rate: 100M/month, algorithm: fixed_window, within: pool}]}
customers: {by: customer, default: free, list: {acme: pro}}
estimates: {by: [model, tenant], declared: max_tokens, quantile: 0.9, start: 1000}
limits:
  - {name: api-per-user, match: {path: /api/*}, key: [user], rate: 100/s, burst: 200, soft: 1%, purpose: fairness}
  - {name: login-per-ip, match: {path: /login}, key: [ip], rate: 1/hour, algorithm: fixed_window, on_exceed: {reject: 403, ban: {for: 15m, after: 1/hour, from: now}}}
  - {name: month, key: [customer], rate: 1M/month, algorithm: fixed_window, overrides: [{when: {customer: acme, path: /bulk}, rate: 2M/month}]}
  - {name: pool, rate: 1000M/month, algorithm: fixed_window}
  - {name: tokens, key: [tenant], rate: 1M/hour, algorithm: fixed_window}
  - {name: render, match: {path: /render}, algorithm: concurrency, max_in_flight: 3}
  - {name: one, match: {path: /one}, rate: 1/hour}
  - {name: away, match: {path: /away}, rate: 1/hour, on_exceed: {redirect: "https://example.com/busy"}}
  - {name: own, match: {path: /own, way: "429"}, rate: 1/hour, on_exceed: {reject: {body: later, header: {X-Own: "1"}}}}
  - {name: gone, match: {path: /own, way: "410"}, rate: 1/hour, on_exceed: {reject: {status: 410, body: gone, header: {X-Own: "1"}}}}
  - {name: less, match: {path: /less}, rate: 1/hour, on_exceed: tag}
  - {name: watched, match: {path: /watched}, rate: 1/hour, shadow: true}
  - {name: free, match: {path: /free}, unlimited: true}
  - {name: hard, match: {path: /hard}, rate: 10/hour, hard: 120%, algorithm: fixed_window}
`

const openAPIRules = `
domain: edge
descriptors:
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 100}}
`

type object = map[string]any

// openAPI is the document, and a service that it describes.
type openAPI struct {
	*service
	doc object
	// ids are those that the answers had in the place of those of the document's examples.
	ids map[string]string
	// seen are the properties that answers had, as SCHEMA.NAME.
	seen map[string]bool
}

func startOpenAPI(t *testing.T) *openAPI {
	t.Helper()
	o := &openAPI{doc: readOpenAPI(t), ids: map[string]string{}, seen: map[string]bool{}}
	rules := filepath.Join(t.TempDir(), "edge.yaml")
	write(t, rules, openAPIRules)
	o.service = start(t, openAPILimits, func(s *server.Options) { s.ConfigPaths = append(s.ConfigPaths, rules) })
	for i := range 9 { // so that there are bans, and usage
		o.post("/v1/take", fmt.Sprintf(`{"attributes":{"path":"/login","ip":"192.0.2.%d","customer":"acme"}}`, 7+i%3))
	}
	o.post("/v1/take", `{"attributes":{"customer":"acme"},"cost":5}`)
	return o
}

// readOpenAPI reads the document as JSON.
func readOpenAPI(t *testing.T) object {
	t.Helper()
	text, err := os.ReadFile("openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var doc object
	if err := yaml.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	return decoded(t, encoded(t, doc)).(object)
}

func encoded(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func decoded(t *testing.T, text string) any {
	t.Helper()
	v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return v
}

// at follows names from a value of the document, and references on the way; nil = there is none.
func (o *openAPI) at(v any, names ...string) any {
	for _, name := range append([]string{""}, names...) {
		if name != "" {
			v = v.(object)[name]
		}
		if m, ok := v.(object); ok && m["$ref"] != nil {
			v = o.at(o.doc, strings.Split(strings.TrimPrefix(m["$ref"].(string), "#/"), "/")...)
		}
		if v == nil {
			return nil
		}
	}
	return v
}

// closed returns a schema without references, in which no object may have a field that it does not name.
func (o *openAPI) closed(v any) any {
	switch v := o.at(v).(type) {
	case object:
		out := object{}
		for name, value := range v {
			out[name] = o.closed(value)
		}
		if v["properties"] != nil && v["type"] != nil && v["additionalProperties"] == nil {
			out["additionalProperties"] = false
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = o.closed(v[i])
		}
		return out
	default:
		return v
	}
}

// fault says what a schema of the document finds wrong with a value; nil = nothing.
func (o *openAPI) fault(schema, value any) error {
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	if err := c.AddResource("mem:schema", o.closed(schema)); err != nil {
		return err
	}
	compiled, err := c.Compile("mem:schema")
	if err != nil {
		return err
	}
	return compiled.Validate(value)
}

// operation is one of the document.
type operation struct {
	id, method, path string
	admin            bool
	object
}

var openAPIMethods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch}

func (o *openAPI) operations() (all []operation) {
	for path, item := range o.doc["paths"].(object) {
		for _, method := range openAPIMethods {
			op, ok := item.(object)[strings.ToLower(method)].(object)
			if !ok {
				continue
			}
			id := op["operationId"].(string)
			all = append(all, operation{id, method, path, item.(object)["x-port"] == "admin", op})
		}
	}
	return all
}

// TestOpenAPIIsValid: the document is one of OpenAPI 3.1, each operation says what it is, and each example is of its schema.
func TestOpenAPIIsValid(t *testing.T) {
	o := &openAPI{doc: readOpenAPI(t)}
	text, err := os.ReadFile("testdata/openapi-3.1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("mem:openapi", decoded(t, string(text))); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("mem:openapi")
	if err != nil {
		t.Fatal(err)
	}
	if err := schema.Validate(o.doc); err != nil {
		t.Error(err)
	}
	withoutText(t, "", o.doc)
	ids := map[string]bool{}
	for _, op := range o.operations() {
		if ids[op.id] || op.object["summary"] == nil || len(op.object["tags"].([]any)) != 1 {
			t.Errorf("%s %s: want an operationId of its own, a summary and one tag", op.method, op.path)
		}
		ids[op.id] = true
		if body, ok := o.at(op.object, "requestBody", "content", "application/json").(object); ok {
			o.examples(t, op.id, body)
		}
		for status, response := range op.object["responses"].(object) {
			content, _ := o.at(response, "content").(object)
			for _, media := range content {
				o.examples(t, op.id+" "+status, media.(object))
			}
		}
	}
	if len(ids) < 25 {
		t.Errorf("%d operations only: the search is wrong", len(ids))
	}
}

// withoutText finds what is no text because a comma ends it: the rest of the sentence is a name without a value then.
func withoutText(t *testing.T, path string, v any) {
	t.Helper()
	for name, value := range mapOf(v) {
		if value == nil && strings.Contains(name, " ") {
			t.Errorf("%s: quote the text that has %q", path, name)
		}
		withoutText(t, path+"/"+name, value)
	}
	for _, value := range sliceOf(v) {
		withoutText(t, path, value)
	}
}

// examples holds examples against their schema.
func (o *openAPI) examples(t *testing.T, what string, media object) {
	t.Helper()
	examples, _ := media["examples"].(object)
	for name, example := range examples {
		if err := o.fault(media["schema"], example.(object)["value"]); err != nil {
			t.Errorf("%s, example %s: %v", what, name, err)
		}
	}
}

// profiles are for who develops stint, and no part of the API.
const profiles = "/debug/pprof/"

// dashboard is for browsers. What follows it are the ends of its paths.
var dashboard = []string{"/ui", "/ui/", "/login", "/logout", "/static/", "/events"}

// envoyDebug is on the debug port that Envoy's own service has, and no part of the API.
const envoyDebug = "/stats"

// TestOpenAPIIsWhole: each path that stands in the code of the HTTP and of the admin port is in the document, with its method,
// and each of the document is in the code.
func TestOpenAPIIsWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	o := &openAPI{doc: readOpenAPI(t)}
	written := pathsInCode(t)
	paths := o.doc["paths"].(object)
	for pattern, file := range written {
		method, path, found := strings.Cut(pattern, " ")
		if !found {
			method, path = "", pattern
		}
		item, documented := paths[path].(object)
		for name := range paths {
			documented = documented || path != "/" && strings.HasSuffix(path, "/") && strings.HasPrefix(name, path)
		}
		if path == "/" || strings.HasPrefix(path, profiles) || slices.Contains(dashboard, path) || path == envoyDebug || strings.HasPrefix(path, "/grpc.") {
			continue
		}
		if !documented || method != "" && item[strings.ToLower(method)] == nil {
			t.Errorf("%s has %s, which is not in openapi.yaml", file, pattern)
		}
	}
	for path := range paths {
		there := false
		for pattern := range written {
			_, place, found := strings.Cut(pattern, " ")
			if !found {
				place = pattern
			}
			there = there || place == path || len(place) > 1 && strings.HasSuffix(place, "/") && strings.HasPrefix(path, place)
		}
		if !there {
			t.Errorf("openapi.yaml has %s, which is not in the code", path)
		}
	}
	if len(written) < 30 {
		t.Errorf("found %d paths only: the search is wrong", len(written))
	}
}

// pathsInCode returns the strings that are a path, or a method and a path, each with a file that has it.
func pathsInCode(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	pattern := regexp.MustCompile(`^((GET|POST|PUT|DELETE|PATCH) )?/[a-z0-9/._-]*$`)
	for _, folder := range []string{".", "internal/rest", "internal/gate", "internal/rls", "internal/admin"} {
		files, err := filepath.Glob(filepath.Join(folder, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has no files: %v", folder, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					if text, err := strconv.Unquote(lit.Value); err == nil && pattern.MatchString(text) {
						found[text] = name
					}
				}
				return true
			})
		}
	}
	return found
}

// TestOpenAPIMethods: a real server takes the methods of the document at each path, and no others.
func TestOpenAPIMethods(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	o := startOpenAPI(t)
	documented := map[string]bool{}
	anyMethod := map[string]bool{}
	for _, op := range o.operations() {
		documented[op.method+" "+op.path] = true
		anyMethod[op.path] = anyMethod[op.path] || op.object["x-any-method"] == true
	}
	for _, op := range o.operations() {
		for _, method := range openAPIMethods {
			address, _ := o.address(op, false)
			a := o.do(method, address, "")
			there := a.status != http.StatusNotFound && a.status != http.StatusMethodNotAllowed
			if want := documented[method+" "+op.path] || anyMethod[op.path]; there != want {
				t.Errorf("%s %s: %d %s; in the document: %v", method, op.path, a.status, a.body, want)
			}
		}
	}
	if a := o.do(http.MethodGet, o.http+"/openapi.yaml", ""); !strings.HasPrefix(a.body, "openapi: 3.1.0\n") || a.header.Get("Content-Type") != "application/yaml" {
		t.Errorf("the document is %.60s", a.body)
	}
}

// address is where an operation is asked, with the examples of its parameters, and the header fields.
func (o *openAPI) address(op operation, query bool) (address string, header []string) {
	path, values := op.path, url.Values{}
	parameters, _ := op.object["parameters"].([]any)
	for _, p := range parameters {
		p := o.at(p).(object)
		name, example := p["name"].(string), p["example"]
		if example == nil {
			continue
		}
		list, several := example.([]any)
		if !several {
			list = []any{example}
		}
		for _, value := range list {
			switch text := fmt.Sprint(value); p["in"] {
			case "path":
				path = strings.ReplaceAll(path, "{"+name+"}", text)
			case "query":
				values.Add(name, text)
			case "header":
				header = append(header, name, text)
			}
		}
	}
	base := o.http
	if op.admin {
		base = o.admin
	}
	if query && len(values) > 0 {
		path += "?" + values.Encode()
	}
	return base + path, header
}
