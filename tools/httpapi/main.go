// Command httpapi writes docs/reference/http-api.md from server/openapi.yaml: what the service says of its HTTP API,
// for people. It checks nothing; the tests of package server hold the document against a real server.
//
//	cd tools && go run ./httpapi ../server/openapi.yaml >../docs/reference/http-api.md
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 2 {
		log.Fatal("httpapi: want the path of the document: go run ./httpapi ../server/openapi.yaml")
	}
	text, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal("httpapi: ", err)
	}
	page, err := write(text)
	if err != nil {
		log.Fatal("httpapi: ", err)
	}
	if _, err := os.Stdout.Write(page); err != nil {
		log.Fatal("httpapi: ", err)
	}
}

// object is a mapping of the document in its order.
type object = yaml.MapSlice

// page is what is written, of a document.
type page struct {
	bytes.Buffer
	doc object
}

// write returns the page of a document.
func write(document []byte) ([]byte, error) {
	p := new(page)
	if err := yaml.UnmarshalWithOptions(document, &p.doc, yaml.UseOrderedMap()); err != nil {
		return nil, err
	}
	p.line("# The HTTP API\n")
	p.line("<!-- Written by ./scripts/generate from server/openapi.yaml: change that. -->\n")
	p.line("The service sends its [description in OpenAPI 3.1](../../server/openapi.yaml) as `GET /openapi.yaml`. [The service](service.md) says more")
	p.line("about header fields and ports; [how to ask from Python or TypeScript](../how-to/ask-from-python-or-typescript.md).\n")
	p.line("%s\n", strings.TrimSpace(text(get(p.doc, "info", "description"))))
	for _, tag := range list(get(p.doc, "tags")) {
		name := text(get(tag, "name"))
		p.line("## Calls: %s\n", name)
		p.line("%s\n", text(get(tag, "description")))
		for _, path := range fields(get(p.doc, "paths")) {
			for _, call := range fields(path.Value) {
				if tags := list(get(call.Value, "tags")); len(tags) == 1 && tags[0] == name {
					p.call(fmt.Sprint(path.Key), fmt.Sprint(call.Key), call.Value)
				}
			}
		}
	}
	p.line("## Objects\n")
	schemas := slices.Clone(fields(get(p.doc, "components", "schemas")))
	slices.SortFunc(schemas, func(a, b yaml.MapItem) int { return cmp.Compare(text(a.Key), text(b.Key)) })
	for _, s := range schemas {
		p.line("### %s\n", s.Key)
		if about := text(get(s.Value, "description")); about != "" {
			p.line("%s\n", about)
		}
		p.schema(s.Value)
	}
	return append(bytes.TrimRight(p.Bytes(), "\n"), '\n'), nil
}

func (p *page) line(format string, args ...any) { fmt.Fprintf(p, format+"\n", args...) }

func (p *page) call(path, method string, call any) {
	p.line("### `%s %s`\n", strings.ToUpper(method), path)
	p.line("%s\n", strings.TrimSpace(text(get(call, "summary"))+" "+text(get(call, "description"))))
	if parameters := list(get(call, "parameters")); len(parameters) > 0 {
		p.line("| parameter | in | | |\n|---|---|---|---|")
		for _, parameter := range parameters {
			parameter = p.follow(parameter)
			about := text(get(parameter, "description"))
			if get(parameter, "required") == true {
				about += " Required."
			}
			p.line("| `%s` | %s | %s | %s |", text(get(parameter, "name")), text(get(parameter, "in")), p.kind(get(parameter, "schema")), about)
		}
		p.line("")
	}
	if body := get(call, "requestBody", "content", "application/json"); body != nil {
		p.line("Body: %s.\n", p.kind(get(body, "schema")))
		p.examples(get(body, "examples"))
	}
	p.line("| answer | | |\n|---|---|---|")
	for _, response := range fields(get(call, "responses")) {
		r := p.follow(response.Value)
		var kinds []string
		for _, media := range fields(get(r, "content")) {
			if kind := p.kind(get(media.Value, "schema")); kind == "string" {
				kinds = append(kinds, "`"+text(media.Key)+"`")
			} else {
				kinds = append(kinds, kind)
			}
		}
		p.line("| %s | %s | %s |", text(response.Key), cmp.Or(strings.Join(kinds, ", "), "empty"), text(get(r, "description")))
	}
	p.line("")
}

func (p *page) examples(examples any) {
	if len(fields(examples)) == 0 {
		return
	}
	p.line("```json")
	for _, e := range fields(examples) {
		p.line("%s", plain(get(e.Value, "value")))
	}
	p.line("```\n")
}

// schema writes the fields of an object, those of objects in it below it.
func (p *page) schema(s any) {
	p.line("| field | | |\n|---|---|---|")
	p.rows("", s)
	p.line("")
}

func (p *page) rows(prefix string, s any) {
	s = p.follow(s)
	if items := get(s, "items"); items != nil {
		p.rows(prefix, items)
		return
	}
	required := list(get(s, "required"))
	for _, f := range fields(get(s, "properties")) {
		about := text(get(f.Value, "description"))
		if about == "" {
			about = text(get(p.follow(f.Value), "description"))
		}
		if slices.Contains(required, f.Key) && prefix == "" {
			about += " Always there."
		}
		p.line("| `%s%s` | %s | %s |", prefix, text(f.Key), p.kind(f.Value), strings.TrimSpace(about))
		inner := get(f.Value, "items")
		if inner == nil {
			inner = f.Value
		}
		if get(inner, "$ref") == nil && get(inner, "properties") != nil {
			p.rows(prefix+text(f.Key)+".", inner)
		}
	}
	if values := get(s, "additionalProperties"); len(fields(values)) > 0 && get(s, "properties") == nil {
		p.line("| any | %s | |", p.kind(values))
	}
}

// kind says in a word what a schema takes, with a link where it has a name.
func (p *page) kind(s any) string {
	if ref := text(get(s, "$ref")); ref != "" {
		name := ref[strings.LastIndexByte(ref, '/')+1:]
		return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name))
	}
	var either []string
	for _, one := range list(get(s, "oneOf")) {
		either = append(either, p.kind(one))
	}
	switch {
	case either != nil:
		return strings.Join(either, " or ")
	case get(s, "enum") != nil:
		var values []string
		for _, v := range list(get(s, "enum")) {
			values = append(values, "`"+text(v)+"`")
		}
		return strings.Join(values, ", ")
	case get(s, "items") != nil:
		return "list of " + p.kind(get(s, "items"))
	case get(s, "format") != nil && text(get(s, "type")) == "string":
		return text(get(s, "format"))
	case get(s, "type") == nil:
		return "any"
	}
	if types := list(get(s, "type")); types != nil {
		return strings.ReplaceAll(strings.Join(texts(types), " or "), "number", "seconds")
	}
	return text(get(s, "type"))
}

// follow returns what a reference stands for, and everything else as it is.
func (p *page) follow(v any) any {
	ref := text(get(v, "$ref"))
	if ref == "" {
		return v
	}
	return get(p.doc, strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
}

// get follows names; nil = there is none.
func get(v any, names ...string) any {
	for _, name := range names {
		m := fields(v)
		i := slices.IndexFunc(m, func(f yaml.MapItem) bool { return text(f.Key) == name })
		if i < 0 {
			return nil
		}
		v = m[i].Value
	}
	return v
}

func fields(v any) object {
	m, _ := v.(object)
	return m
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func texts(l []any) (all []string) {
	for _, v := range l {
		all = append(all, text(v))
	}
	return all
}

func text(v any) string {
	if v == nil {
		return ""
	}
	return strings.TrimSpace(fmt.Sprint(v))
}

// plain returns a value as JSON on one line, in the order of the document.
func plain(v any) string {
	switch v := v.(type) {
	case object:
		var all []string
		for _, f := range v {
			all = append(all, plain(text(f.Key))+": "+plain(f.Value))
		}
		return "{" + strings.Join(all, ", ") + "}"
	case []any:
		var all []string
		for _, one := range v {
			all = append(all, plain(one))
		}
		return "[" + strings.Join(all, ", ") + "]"
	default:
		out, err := json.Marshal(v)
		if err != nil {
			return "null"
		}
		return string(out)
	}
}
