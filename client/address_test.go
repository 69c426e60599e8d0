package client

import (
	"strings"
	"testing"
)

// TestAddress: an address that cannot be that of a gRPC listener is refused with the one to write.
func TestAddress(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:8081": "", "stint:8081": "", "[::1]:8081": "", "dns:///stint:8081": "", "unix:/run/stint": "", "passthrough:///stint:8081": "",
		"http://127.0.0.1:8080":  "as in 127.0.0.1:8081",
		"https://stint.example/": "as in stint.example:8081",
		"127.0.0.1":              "write it as 127.0.0.1:8081",
		"stint":                  "write it as stint:8081",
		"::1":                    "write it as [::1]:8081",
	} {
		for _, o := range []Options{{Address: address}, {Address: "127.0.0.1:8081", Others: []string{address}}} {
			_, err := New(o)
			if want == "" && err != nil || want != "" && (err == nil || !strings.HasSuffix(err.Error(), want)) {
				t.Errorf("%s: %v, want %q", address, err, want)
			}
		}
	}
}
