package server_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// order is in which the examples are sent: what is made comes before what ends it.
var order = []string{
	"take", "explain", "finish", "reserve", "renew", "commit", "release", "getLimit", "getUsage",
	"gateForwardAuth", "gateNginx", "envoyJSON", "healthz", "healthcheck", "getDocument", "readyz",
	"listBans", "liftBans", "getTop", "getKey", "grantKey", "refundKey", "resetKey", "listChanges",
	"listPlans", "setCustomer", "getCustomers", "removeCustomer", "getLeases", "reload", "getMetrics", "getInstanceMetrics", "getRLConfig",
}

// rare are properties of answers that this test does not bring about, by the files that write them.
var rare = map[string]string{
	"Decision.delay": "wire.go", "Result.detail": "wire.go", "Result.store_failed": "wire.go",
	"Explained.detail": "wire.go", "Explained.store_failed": "wire.go", "Explained.uncarried": "wire.go", "Explained.soft": "wire.go",
	"Bans.bans.override": "bans.go", "Usage.incomplete": "usage.go",
	"Reservation.late": "reserve.go", "Estimate.whole": "reserve.go", "ConfiguredLimit.split": "limits.go",
	"ConfiguredLimit.split.instances": "limits.go", "ConfiguredLimit.split.weight": "limits.go",
	"Counter.members": "keyadmin.go", "Counter.unreached": "keyadmin.go", "Counter.members.member": "others.go",
	"Counter.members.used": "others.go", "Counter.members.remaining": "others.go", "Counter.members.changed": "others.go",
}

// written reports whether a file of the API has a field in what it writes.
func written(t *testing.T, path, file string) bool {
	t.Helper()
	for _, folder := range []string{"internal/rest", "internal/admin", "internal/ui", "../internal/keyadmin"} {
		text, err := os.ReadFile(filepath.Join(folder, file))
		if err == nil && strings.Contains(string(text), `json:"`+path[strings.LastIndexByte(path, '.')+1:]) {
			return true
		}
	}
	return false
}

// TestOpenAPIExamples: a real server answers each example of the document as the document says, and no answer has a field
// that the document does not have. What the document refuses, the server refuses.
func TestOpenAPIExamples(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	o := startOpenAPI(t)
	all := map[string]operation{}
	for _, op := range o.operations() {
		all[op.id] = op
		if !slices.Contains(order, op.id) {
			t.Errorf("%s is in no order", op.id)
		}
	}
	for _, id := range order {
		op := all[id]
		address, header := o.address(op, true)
		body := o.at(op.object, "requestBody", "content", "application/json")
		if body == nil {
			o.answers(op, "", o.do(op.method, address, "", header...))
			continue
		}
		examples := body.(object)["examples"].(object)
		for _, name := range slices.Sorted(maps.Keys(examples)) {
			value := o.with(examples[name].(object)["value"].(object))
			o.refusesWhatIsRefused(op, body.(object)["schema"], value)
			o.answers(op, name, o.do(op.method, address, encoded(t, value), header...))
		}
	}
	o.others(all)
	o.letThrough(all["getTop"])
	o.everythingSeen()
}

// answers holds an answer to an example of the document against it.
func (o *openAPI) answers(op operation, example string, a answer) {
	o.t.Helper()
	if a.status >= 300 {
		o.t.Errorf("%s, example %q: %d %s", op.id, example, a.status, a.body)
	}
	o.response(op, example, a)
}

// with puts the ids of earlier answers in the place of those of the document.
func (o *openAPI) with(body object) object {
	body = maps.Clone(body)
	for name, value := range body {
		if id, ok := o.ids[name+" "+fmt.Sprint(value)]; ok {
			body[name] = id
			if name == "permit" {
				body[name] = json.Number(id)
			}
		}
	}
	return body
}

// learn notes the ids of an answer.
func (o *openAPI) learn(example, got any) {
	for _, name := range []string{"id", "permit"} {
		if id := mapOf(example)[name]; id != nil {
			o.ids[name+" "+fmt.Sprint(id)] = fmt.Sprint(got.(object)[name])
		}
	}
}

// refusesWhatIsRefused changes one field of a body after the other. What the schema refuses is answered with 400, and changes nothing.
func (o *openAPI) refusesWhatIsRefused(op operation, schema any, body object) {
	o.t.Helper()
	if op.id == "envoyJSON" {
		return // its messages are Envoy's, and a null is no field there
	}
	refused := 0
	for _, name := range append(slices.Sorted(maps.Keys(mapOf(o.at(schema, "properties")))), "unknown") {
		for _, value := range []any{nil, "", json.Number("-1"), json.Number("1.5"), json.Number("7"), true, []any{}, object{"": ""}, "gone"} {
			changed := maps.Clone(body)
			changed[name] = value
			if value == "gone" {
				delete(changed, name)
			}
			if o.fault(schema, changed) == nil {
				continue
			}
			refused++
			address, _ := o.address(op, true)
			if a := o.do(op.method, address, encoded(o.t, changed)); a.status != http.StatusBadRequest {
				o.t.Errorf("%s: the document refuses %s, the server says %d %s", op.id, encoded(o.t, changed), a.status, a.body)
			}
		}
	}
	if refused < 5 {
		o.t.Errorf("%s: the document refuses %d changes only", op.id, refused)
	}
}

// sent is a request that no example shows, and the status of its answer. Without a url it goes where the example does.
type sent struct {
	id, url, body string
	status        int
	header        []string
}

// unshown are requests that no example shows, in their order.
func (o *openAPI) unshown() []sent {
	o.t.Helper()
	long := `{"attributes":{"x":"` + strings.Repeat("x", 512<<10) + `"}}`
	month := o.admin + "/v1/admin/keys/refund?amount=1&limit=month&key=customer=acme"
	id := o.ids["id W5IJNI4C33Q2RGMSUYS7TAITT2"]
	var small struct{ ID string }
	if err := json.Unmarshal([]byte(o.post("/v1/reserve", `{"attributes":{"tenant":"small"},"cost":2}`).body), &small); err != nil {
		o.t.Fatal(err)
	}
	return []sent{
		{"take", "", `{"attributes":{"path":"/one"}}`, 200, nil},
		{"take", "", `{"attributes":{"path":"/one"}}`, 429, nil},
		{"take", "", `{"attributes":{"path":"/one"},"count_refused":true}`, 429, []string{"Idempotency-Key", "again"}},
		{"take", "", `{"attributes":{"path":"/one"},"count_refused":true}`, 429, []string{"Idempotency-Key", "again"}},
		{"take", "", `{"attributes":{"path":"/login","ip":"192.0.2.7"}}`, 403, nil},
		{"take", "", `{"attributes":{"path":"/login","ip":"192.0.2.7"},"count_refused":true}`, 403, []string{"Idempotency-Key", "again"}},
		{"take", "", `{"attributes":{"path":"/login","ip":"192.0.2.7"},"count_refused":true}`, 403, []string{"Idempotency-Key", "again"}},
		{"take", "", `{"attributes":{"path":"/hard"}}`, 200, []string{"Idempotency-Key", "again"}},
		{"take", "", `{"attributes":{"path":"/hard"}}`, 200, []string{"Idempotency-Key", "again"}},
		{"take", "", `{"attributes":{"path":"/away"},"cost":2}`, 429, nil},
		{"take", "", `{"attributes":{"path":"/own","way":"429"},"cost":2}`, 429, nil},
		{"take", "", `{"attributes":{"path":"/own","way":"410"},"cost":2}`, 410, nil},
		{"take", "", `{"attributes":{"path":"/less"}}`, 200, nil},
		{"take", "", `{"attributes":{"path":"/less"}}`, 200, nil},
		{"take", "", `{"attributes":{"path":"/watched"}}`, 200, nil},
		{"take", "", `{"attributes":{"path":"/watched"}}`, 200, nil},
		{"take", "", `{"attributes":{"path":"/free"}}`, 200, nil},
		{"take", "", `{"attributes":{"path":"/api/","user":"u2"},"cost":150}`, 200, nil},
		{"take", "", `{"attributes":{"path":"/api/","user":"u3"},"cost":2.0}`, 200, nil},
		{"take", "", `{`, 400, nil},
		{"take", "", `{"descriptors":[]}`, 400, nil},
		{"take", "", `{"cost":4611686018427387905}`, 400, nil},
		{"take", "", long, 413, nil},
		{"take", "", `{"attributes":{}}`, 403, []string{"Origin", "https://example.com", "Sec-Fetch-Site", "cross-site"}},
		{"take", "", `{"attributes":{}}`, 421, []string{"Host", "example.com"}},
		{"explain", "", `{"attributes":{"path":"/one"}}`, 200, nil},
		{"explain", "", `{"attributes":{"path":"/less"}}`, 200, nil},
		{"explain", "", `{"attributes":{"path":"/watched"}}`, 200, nil},
		{"explain", "", `{"attributes":{"path":"/free"}}`, 200, nil},
		{"explain", "", `{"attributes":{"path":"/hard"}}`, 200, nil},
		{"explain", "", `{"attributes":{"path":"/api/","user":"u2"},"cost":150}`, 200, nil},
		{"reserve", "", `{"attributes":{"path":"/one"},"cost":1}`, 429, nil},
		{"reserve", "", `{"attributes":{"tenant":"large"},"cost":2000000}`, 200, nil},
		{"commit", "", `{"id":"` + id + `","actual":312}`, 200, nil},
		{"renew", "", `{"id":"` + small.ID + `","used":5}`, 200, nil},
		{"commit", "", `{"id":"` + id + `","actual":313}`, 409, nil},
		{"commit", "", `{"id":"AAAAAAAAAAAAAAAAAAAAAAAAAA","actual":1}`, 404, nil},
		{"getLimit", o.http + "/v1/limits/none", "", 404, nil},
		{"getLimit", o.http + "/v1/limits/render", "", 200, nil},
		{"getLimit", o.http + "/v1/limits/free", "", 200, nil},
		{"getUsage", o.http + "/v1/usage?by=week", "", 400, nil},
		{"getUsage", o.http + "/v1/usage?format=csv", "", 200, nil},
		{"getUsage", o.http + "/v1/usage?format=jsonl", "", 200, nil},
		{"gateForwardAuth", o.http + "/v1/gate/forward-auth", "", 403, nil},
		{"gateForwardAuth", "", "", 421, []string{"Host", "example.com"}},
		{"gateForwardAuth", "", "", 400, []string{"X-Forwarded-Uri", "/a", "X-Original-Uri", "/b"}},
		{"gateForwardAuth", "", "", 429, []string{"X-Forwarded-Uri", "/one"}},
		{"gateNginx", "", "", 403, []string{"X-Forwarded-Uri", "/one"}},
		{"envoyJSON", "", `{"domain":"edge","descriptors":[{"entries":[{"key":"remote_address","value":"192.0.2.8"}]}],"hitsAddend":200}`, 429, nil},
		{"envoyJSON", "", `{`, 400, nil},
		{"refundKey", month, "", 200, []string{"Idempotency-Key", "first"}},
		{"refundKey", month, "", 200, []string{"Idempotency-Key", "first"}},
		{"refundKey", month + "0", "", 409, []string{"Idempotency-Key", "first"}},
		{"getKey", o.admin + "/v1/admin/keys?limit=none", "", 404, nil},
		{"listBans", o.admin + "/v1/bans?max=1", "", 200, nil},
		{"listBans", o.admin + "/v1/bans?max=", "", 400, nil},
		{"getTop", o.admin + "/v1/top?sort=", "", 400, nil},
		{"getUsage", o.http + "/v1/usage?from=", "", 400, nil},
		{"getLeases", o.admin + "/v1/leases?limit=", "", 400, nil},
		{"getLimit", o.http + "/v1/limits/render?wait=", "", 400, nil},
		{"getTop", o.admin + "/v1/top?limits=2&keys=20", "", 200, nil},
		{"getTop", o.admin + "/v1/top?keys=21", "", 400, nil},
		{"listBans", o.admin + "/v1/bans?lmit=a", "", 400, nil},
		{"listBans", o.admin + "/v1/bans", "", 421, []string{"Host", "example.com"}},
		{"listChanges", o.admin + "/v1/admin/audit?max=1", "", 200, nil},
		{"getCustomers", o.admin + "/v1/admin/customers?customer=acme", "", 200, nil},
		{"setCustomer", o.admin + "/v1/admin/customers?customer=hooli&plan=pro", "", 200, nil},
		{"setCustomer", o.admin + "/v1/admin/customers?customer=umbrella&plan=pro&count=messages=5@2030-01-01", "", 200, nil},
		{"getCustomers", o.admin + "/v1/admin/customers?customer=hooli", "", 200, nil},
		{"getCustomers", o.admin + "/v1/admin/customers?max=1", "", 200, nil},
		{"getCustomers", o.admin + "/v1/admin/customers", "", 200, nil},
	}
}

// others holds the answers to what no example shows against the document.
func (o *openAPI) others(all map[string]operation) {
	o.t.Helper()
	for _, c := range o.unshown() {
		op, address := all[c.id], c.url
		if address == "" {
			address, _ = o.address(op, true)
		}
		a := o.do(op.method, address, c.body, c.header...)
		if a.status != c.status {
			o.t.Errorf("%s %s %.80s: %d %s, want %d", op.method, address, c.body, a.status, a.body, c.status)
		}
		o.response(op, "", a)
		// A refusal is told from a fault by the limits that it names.
		refused := strings.Contains(a.body, `"violated-policies"`)
		if c.status == 429 && c.id != "envoyJSON" && !refused || (c.status == 400 || c.status == 404 || c.status == 409) && refused {
			o.t.Errorf("%s: %d %s", c.id, a.status, a.body)
		}
	}
}

// letThrough holds the figures of a limit that lets through what is over it against the document. They are counted each second.
func (o *openAPI) letThrough(op operation) {
	o.t.Helper()
	var a answer
	await(o.t, "requests over the limit that were let through", func() bool {
		o.post("/v1/take", `{"attributes":{"path":"/watched"}}`)
		a = o.do(op.method, o.admin+"/v1/top?find=watched", "")
		return strings.Contains(a.body, "let_through")
	})
	o.response(op, "", a)
}

// see notes which properties of the document an answer had.
func (o *openAPI) see(name string, schema, value any) {
	if ref, ok := mapOf(schema)["$ref"].(string); ok {
		name = ref[strings.LastIndexByte(ref, '/')+1:]
	}
	s := mapOf(o.at(schema))
	for _, one := range sliceOf(s["oneOf"]) {
		o.see(name, one, value)
	}
	for property, inner := range mapOf(s["properties"]) {
		if v, ok := mapOf(value)[property]; ok {
			o.seen[name+"."+property] = true
			o.see(name+"."+property, inner, v)
		}
	}
	for _, v := range sliceOf(value) {
		o.see(name, s["items"], v)
	}
	if inner, ok := s["additionalProperties"].(object); ok {
		for _, v := range mapOf(value) {
			o.see(name, inner, v)
		}
	}
}

// everythingSeen: each property that the document has was in an answer, but for those that are rare.
func (o *openAPI) everythingSeen() {
	o.t.Helper()
	var walk func(name string, schema any)
	walk = func(name string, schema any) {
		if ref, ok := mapOf(schema)["$ref"].(string); ok {
			name = ref[strings.LastIndexByte(ref, '/')+1:]
		}
		s := mapOf(o.at(schema))
		for property, inner := range mapOf(s["properties"]) {
			path := name + "." + property
			file, isRare := rare[path]
			switch {
			case isRare && o.seen[path]:
				o.t.Errorf("an answer had %s: it is not rare", path)
			case isRare && !written(o.t, path, file), !isRare && !o.seen[path]:
				o.t.Errorf("no answer had %s of the document", path)
			}
			walk(path, inner)
		}
		if s["items"] != nil {
			walk(name, s["items"])
		}
		if inner, ok := s["additionalProperties"].(object); ok {
			walk(name, inner)
		}
		for _, one := range sliceOf(s["oneOf"]) {
			walk(name, one)
		}
	}
	for _, op := range o.operations() {
		for _, response := range op.object["responses"].(object) {
			for _, media := range mapOf(o.at(response, "content")) {
				walk("", media.(object)["schema"])
			}
		}
	}
}

func sliceOf(v any) []any {
	s, _ := v.([]any)
	return s
}

// response finds what the document says about an answer and holds it against it.
// example is the name of what was sent.
func (o *openAPI) response(op operation, example string, a answer) {
	o.t.Helper()
	responses := op.object["responses"].(object)
	response := o.at(responses[strconv.Itoa(a.status)])
	if response == nil {
		response = o.at(responses["default"])
	}
	if response == nil {
		o.t.Errorf("%s: the document has no answer %d: %s", op.id, a.status, a.body)
		return
	}
	for name, field := range mapOf(o.at(response, "headers")) {
		if value := a.header.Get(name); value != "" {
			var v any = value
			if o.at(field, "schema", "type") == "integer" {
				v = json.Number(value)
			}
			if err := o.fault(o.at(field, "schema"), v); err != nil {
				o.t.Errorf("%s: %s is %q: %v", op.id, name, value, err)
			}
		}
	}
	content := mapOf(o.at(response, "content"))
	kind, _, _ := mime.ParseMediaType(a.header.Get("Content-Type"))
	if content[kind] == nil {
		if len(content) > 0 || a.body != "" {
			o.t.Errorf("%s: %d is %q, want one of %v: %s", op.id, a.status, kind, slices.Sorted(maps.Keys(content)), a.body)
		}
		return
	}
	if !strings.HasSuffix(kind, "/json") && !strings.HasSuffix(kind, "+json") {
		return
	}
	media := content[kind].(object)
	got := decoded(o.t, a.body)
	if err := o.fault(media["schema"], got); err != nil {
		o.t.Errorf("%s: %d %s: %v", op.id, a.status, a.body, err)
	}
	o.see("", media["schema"], got)
	o.learn(o.at(media, "examples", example, "value"), got)
}

func mapOf(v any) object {
	m, _ := v.(object)
	return m
}
