package main

import (
	"os"
	"strings"
	"testing"
)

// TestPageIsWritten: the page is what the document says, and has each call and each object once.
func TestPageIsWritten(t *testing.T) {
	document, err := os.ReadFile("../../server/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	got, err := write(document)
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../docs/reference/http-api.md")
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Error("docs/reference/http-api.md is not what server/openapi.yaml says: run ./scripts/generate")
	}
	calls := strings.Count(string(document), "operationId: ") - 3 // of links
	if headings := strings.Count(string(got), "\n### `"); headings != calls || calls < 30 {
		t.Errorf("%d calls are on the page, %d in the document", headings, calls)
	}
}
