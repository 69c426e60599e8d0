// Package agree asks envoyproxy/ratelimit and stint the same random requests under
// the same configuration and says where their answers differ. A difference is
// either of a kind that has a name and a reason here, and is exactly that, or it
// is unexplained.
//
// It measures no speed, and it does not say which of the two is right.
package agree

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/goccy/go-yaml"
)

// Set is one configuration: files that are loaded together.
type Set struct {
	Name  string
	Files []File
	Merge bool // several files may have one domain

	domains map[string][]Rule // the rules of all files
}

// File is a file of a set, as it is and as it reads.
type File struct {
	Name string // without its folder
	Text []byte

	Domain      string `yaml:"domain"`
	Descriptors []Rule `yaml:"descriptors"`
}

// Rule is a descriptor of a configuration.
type Rule struct {
	Key            string `yaml:"key"`
	Value          string `yaml:"value"`
	Limit          *Limit `yaml:"rate_limit"`
	Descriptors    []Rule `yaml:"descriptors"`
	ShadowMode     bool   `yaml:"shadow_mode"`
	DetailedMetric bool   `yaml:"detailed_metric"`
	ValueToMetric  bool   `yaml:"value_to_metric"`
	ShareThreshold bool   `yaml:"share_threshold"`
}

// Limit is the limit of a rule.
type Limit struct {
	Unit      string `yaml:"unit"`
	Requests  uint32 `yaml:"requests_per_unit"`
	Unlimited bool   `yaml:"unlimited"`
	Name      string `yaml:"name"`
	Replaces  []struct {
		Name string `yaml:"name"`
	} `yaml:"replaces"`
}

// The names of the sets of envoyproxy/ratelimit's integration suite.
const (
	SuiteSet    = "test/integration, config"
	SuiteReload = "test/integration, reload"
)

// published are the configurations that come with envoyproxy/ratelimit and are
// good, by their places in its module.
var published = []struct {
	name  string
	files []string
	merge bool
}{
	{"examples/ratelimit/config", []string{"examples/ratelimit/config/*.yaml"}, false},
	{"test/config/basic_config", []string{"test/config/basic_config.yaml"}, false},
	{"test/config/shadowmode_config", []string{"test/config/shadowmode_config.yaml"}, false},
	{"test/config/share_threshold", []string{"test/config/share_threshold.yaml"}, false},
	{"test/config/wildcard", []string{"test/config/wildcard.yaml"}, false},
	{"test/config/merge_domain_key1 and 2", []string{"test/config/merge_domain_key*.yaml"}, true},
	{SuiteSet, []string{"test/integration/runtime/current/ratelimit/config/*.yaml"}, false},
	{SuiteReload, []string{"test/integration/runtime/current/ratelimit/reload.yaml"}, false},
}

// Published reads the configurations that come with envoyproxy/ratelimit from its
// module, which is in the folder dir.
func Published(dir string) (sets []Set, err error) {
	for _, p := range published {
		s := Set{Name: p.name, Merge: p.merge, domains: map[string][]Rule{}}
		for _, pattern := range p.files {
			names, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
			if err != nil || len(names) == 0 {
				return nil, fmt.Errorf("agree: no %s in %s (%v): has the module's version changed?", pattern, dir, err)
			}
			for _, name := range names {
				f, err := readFile(name)
				if err != nil {
					return nil, err
				}
				s.Files = append(s.Files, f)
				s.domains[f.Domain] = append(s.domains[f.Domain], f.Descriptors...)
			}
		}
		sets = append(sets, s)
	}
	return sets, nil
}

func readFile(name string) (f File, err error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return f, fmt.Errorf("agree: %w", err)
	}
	if err := yaml.UnmarshalWithOptions(text, &f, yaml.Strict()); err != nil {
		return f, fmt.Errorf("agree: %s: %w", name, err)
	}
	f.Name, f.Text = filepath.Base(name), text
	return f, nil
}

// concrete returns a value that a rule's value may match.
func concrete(rng *rand.Rand, value string) string {
	if value == "" {
		return fmt.Sprintf("v%d", rng.IntN(25))
	}
	for strings.Contains(value, "*") {
		word := []string{"", "a", "b", "c/d", fmt.Sprint(rng.IntN(10))}[rng.IntN(5)]
		value = strings.Replace(value, "*", word, 1)
	}
	return value
}
