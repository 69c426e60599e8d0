// Command sbom prints the bill of materials of a Go program in CycloneDX 1.6: every module that
// the program says it was built from, with the hash by which go.sum knows it.
//
//	go run ./sbom -epoch 1795366276 -version 0.1.0 ./stint
//
// It reads the program alone, so that the bill is of what is shipped. It does not find licences, nor
// known vulnerabilities. The same program gives the same bytes.
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"time"
)

func main() {
	epoch := flag.Int64("epoch", 0, "time of the bill, in seconds since 1970")
	version := flag.String("version", "", "version of the program")
	flag.Parse()
	if err := run(flag.Args(), *version, time.Unix(*epoch, 0)); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(args []string, version string, at time.Time) error {
	if len(args) != 1 {
		return fmt.Errorf("want one program, got %d", len(args))
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	program, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	b, err := newBill(info, version, at)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(program)
	b.Metadata.Component.Name = strings.TrimSuffix(filepath.Base(args[0]), ".exe")
	b.Metadata.Component.Hashes = []hash{{"SHA-256", hex.EncodeToString(sum[:])}}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(b)
}

// bill is a document of CycloneDX, as far as it is used.
type bill struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Ref        string     `json:"bom-ref"`
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref       string   `json:"ref"`
	DependsOn []string `json:"dependsOn"`
}

// newBill lists the modules of a program, and Go's own library.
func newBill(info *debug.BuildInfo, version string, at time.Time) (bill, error) {
	if len(info.Deps) == 0 {
		return bill{}, fmt.Errorf("%s names no module that it was built from", info.Path)
	}
	program := "pkg:golang/" + info.Main.Path + "@" + version + "?type=module"
	b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1}
	b.Metadata.Timestamp = at.UTC().Format(time.RFC3339)
	b.Metadata.Component = component{Ref: program, Type: "application", Name: info.Main.Path, Version: version, PURL: program}
	for _, s := range info.Settings {
		b.Metadata.Component.Properties = append(b.Metadata.Component.Properties, property{"go:build:" + s.Key, s.Value})
	}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	std := "pkg:golang/std@" + goVersion + "?type=module"
	b.Components = []component{{Ref: std, Type: "library", Name: "std", Version: goVersion, PURL: std}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(m.Sum, "h1:"))
		if err != nil || len(sum) != sha256.Size {
			return bill{}, fmt.Errorf("module %s %s has the sum %q, want h1: and a SHA-256", m.Path, m.Version, m.Sum)
		}
		purl := "pkg:golang/" + m.Path + "@" + strings.ReplaceAll(m.Version, "+", "%2B") + "?type=module"
		b.Components = append(b.Components, component{
			Ref: purl, Type: "library", Name: m.Path, Version: m.Version, PURL: purl,
			Hashes: []hash{{"SHA-256", hex.EncodeToString(sum)}},
		})
	}
	b.Dependencies = []dependency{{Ref: program}}
	for _, c := range b.Components {
		b.Dependencies[0].DependsOn = append(b.Dependencies[0].DependsOn, c.Ref)
	}
	return b, nil
}
