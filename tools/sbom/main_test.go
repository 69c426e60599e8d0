package main

import (
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

const built = "path\texample.com/a/cmd/a\nmod\texample.com/a\t(devel)\t\n" +
	"dep\texample.com/b\tv1.2.3+incompatible\th1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n" +
	"build\tGOOS=linux\n"

// TestBillOfMaterials walks through a program with one module; its sum is that of nothing.
func TestBillOfMaterials(t *testing.T) {
	info, err := debug.ParseBuildInfo(built)
	if err != nil {
		t.Fatal(err)
	}
	info.GoVersion = "go1.26.8"
	b, err := newBill(info, "0.1.0", time.Unix(1795366276, 0))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range b.Components {
		got = append(got, c.PURL)
	}
	if s := strings.Join(got, " "); s != "pkg:golang/std@1.26.8?type=module pkg:golang/example.com/b@v1.2.3%2Bincompatible?type=module" {
		t.Errorf("components %s", s)
	}
	if h := b.Components[1].Hashes[0]; h.Content != "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" {
		t.Errorf("hash %+v", h)
	}
	if m := b.Metadata; m.Component.Version != "0.1.0" || m.Timestamp != "2026-11-22T16:51:16Z" || len(b.Dependencies[0].DependsOn) != 2 {
		t.Errorf("%+v %+v", m, b.Dependencies)
	}
	for _, bad := range []string{
		strings.ReplaceAll(built, "h1:47DE", "h1:"), // too short
		strings.SplitAfter(built, "(devel)\t\n")[0], // no modules
	} {
		if info, err = debug.ParseBuildInfo(bad); err != nil {
			t.Fatal(err)
		}
		if _, err := newBill(info, "0.1.0", time.Time{}); err == nil {
			t.Errorf("%q gives a bill", bad)
		}
	}
}
