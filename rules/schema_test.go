package rules

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// schema is as much of JSON Schema as the test needs.
type schema struct {
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	Enum       []string           `json:"enum"`
	Ref        string             `json:"$ref"`
	Defs       map[string]*schema `json:"$defs"`
}

func readSchema(t *testing.T) *schema {
	t.Helper()
	src, err := os.ReadFile("stint.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var s schema
	if err := json.Unmarshal(src, &s); err != nil {
		t.Fatal(err)
	}
	return &s
}

func (s *schema) keys() []string {
	var out []string
	for k := range s.Properties {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

func TestSchemaHasTheKeysOfTheFormat(t *testing.T) {
	s := readSchema(t)
	limits := s.Defs["limit"]
	exceed := limits.Properties["on_exceed"]
	inherited := slices.DeleteFunc(slices.Clone(limitKeys), func(k string) bool { return contains(notInherited, k) })
	for _, tt := range []struct {
		where string
		got   *schema
		want  []string
	}{
		{"root", s, rootKeys},
		{"limit", limits, limitKeys},
		{"defaults", s.Properties["defaults"], inherited},
		{"override", limits.Properties["overrides"].Items, overrideKeys},
		{"on_exceed", exceed, exceedKeys},
		{"ban", exceed.Properties["ban"], banKeys},
		{"reject", exceed.Properties["reject"], rejectKeys},
		{"queue", exceed.Properties["queue"], queueKeys},
		{"redirect", exceed.Properties["redirect"], redirectKeys},
		{"tag", exceed.Properties["tag"], tagKeys},
		{"throttle", s.Properties["throttle"], throttleKeys},
		{"queue", s.Properties["throttle"].Properties["queue"], throttleQueueKeys},
		{"class", s.Properties["throttle"].Properties["classes"].Items, classKeys},
		{"identity", s.Properties["identity"], identityKeys},
		{"events", s.Properties["events"], eventsKeys},
		{"estimates", s.Properties["estimates"], estimatesKeys},
		{"plan", s.Properties["plans"].Items, planKeys},
		{"customers", s.Properties["customers"], customersKeys},
		{"jwt", s.Properties["identity"].Properties["jwt"], jwtKeys},
		{"geoip", s.Properties["identity"].Properties["geoip"], geoipKeys},
		{"lease", limits.Properties["lease"], leaseKeys},
		{"share", limits.Properties["share"], shareKeys},
	} {
		if got, want := tt.got.keys(), slices.Sorted(slices.Values(tt.want)); !slices.Equal(got, want) {
			t.Errorf("%s: schema has %v, the format has %v", tt.where, got, want)
		}
	}
	for key, want := range map[string][]string{
		"algorithm": limit.AlgorithmNames(), "missing": missingNames[:],
		"sharing": sharingNames[:], "on_store_failure": failureNames[:], "on_condition_error": conditionErrorNames[:],
	} {
		if got := limits.Properties[key].Enum; !slices.Equal(got, want) {
			t.Errorf("%s: schema has %v, the format has %v", key, got, want)
		}
	}
	if got := limits.Properties["lease"].Properties["allocation"].Enum; !slices.Equal(got, append(allocationNames[:], busyWord)) {
		t.Errorf("allocation: schema has %v, the format has %v", got, allocationNames)
	}
}

func TestSchemaKnowsTheGoodFiles(t *testing.T) {
	root := readSchema(t)
	var walk func(name string, n *document.Node, s *schema)
	walk = func(name string, n *document.Node, s *schema) {
		if ref, ok := strings.CutPrefix(s.Ref, "#/$defs/"); ok {
			s = root.Defs[ref]
		}
		if s.Items != nil {
			for _, item := range n.Items {
				walk(name, item, s.Items)
			}
		}
		if s.Properties == nil {
			return
		}
		for _, f := range n.Fields {
			p := s.Properties[f.Key.Text]
			if p == nil {
				t.Errorf("%s:%d: %s is not in the schema", name, f.Key.Line, f.Key.Text)
				continue
			}
			walk(name, f.Value, p)
		}
	}
	seen := 0
	for _, name := range corpus(t, "testdata/good/*.yaml") {
		src, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		d := document.Read(name, src, bounds, new(document.Faults))
		if !isEnvoy(d.Root) {
			seen++
			walk(name, d.Root, root)
		}
	}
	if seen < 3 {
		t.Errorf("%d files in stint's format", seen)
	}
}

const reference = "../docs/reference/limits-file.md"

func TestTheReferencePage(t *testing.T) {
	src, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	page := string(src)
	for _, keys := range [][]string{rootKeys, identityKeys, eventsKeys, estimatesKeys, planKeys, customersKeys, jwtKeys, geoipKeys, limitKeys, overrideKeys, exceedKeys, banKeys, leaseKeys, splitKeys, suppressKeys, shareKeys, sharingNames[:], allocationNames[:], envoyKeysIn["a descriptor"], envoyKeysIn["rate_limit"], limit.AlgorithmNames()} {
		for _, key := range keys {
			if !strings.Contains(page, "`"+key+"`") && !strings.Contains(page, key+":") {
				t.Errorf("%s is not on the page", key)
			}
		}
	}
	for _, words := range [][]string{rootKeys, limitKeys} {
		for _, key := range words {
			if !strings.Contains(page, "\n| `"+key+"` |") {
				t.Errorf("%s has no row in a table", key)
			}
		}
	}
	blocks := strings.Split(page, "```yaml\n")[1:]
	if len(blocks) < 4 {
		t.Fatalf("%d examples", len(blocks))
	}
	for _, b := range blocks {
		b, _, _ = strings.Cut(b, "```")
		if s, err := Parse("example", []byte(b)); err != nil || len(s.Limits()) == 0 {
			t.Errorf("%v in\n%s", err, b)
		}
	}
}
