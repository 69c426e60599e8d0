package verify

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

// TestContainerfile: BuildKit parses it and its linter has nothing to say; the image is built on nothing, runs
// as nobody, and copies files that exist. ./scripts/package-test builds it.
func TestContainerfile(t *testing.T) {
	text, err := os.ReadFile("../Containerfile")
	if err != nil {
		t.Fatal(err)
	}
	tree, err := parser.Parse(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range tree.Warnings {
		t.Errorf("%s: %v", w.Short, w.Detail)
	}
	lint := linter.New(&linter.Config{Warn: func(rule, _, _, message string, at []parser.Range) { t.Errorf("%s: %s %v", rule, message, at) }})
	stages, _, err := instructions.Parse(tree.AST, lint)
	if err != nil {
		t.Fatal(err)
	}
	last := stages[len(stages)-1]
	if last.BaseName != "scratch" {
		t.Errorf("the image is built on %s", last.BaseName)
	}
	seen := map[string]string{}
	for _, stage := range stages {
		for _, command := range stage.Commands {
			switch c := command.(type) {
			case *instructions.CopyCommand:
				for _, source := range c.SourcePaths {
					if _, err := os.Stat(filepath.Join("..", "..", source)); c.From == "" && err != nil {
						t.Error(err)
					}
				}
			case *instructions.UserCommand:
				seen["user"] = c.User
			case *instructions.HealthCheckCommand:
				seen["health"] = strings.Join(c.Health.Test, " ")
			case *instructions.EntrypointCommand:
				seen["entry"] = strings.Join(c.CmdLine, " ")
			}
		}
	}
	if seen["user"] != "65532:65532" || seen["health"] != "CMD /bin/stint ready" || seen["entry"] != "/bin/stint" {
		t.Errorf("%v", seen)
	}
}
