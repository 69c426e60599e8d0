package xds_test

import (
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/xds"
)

// Every fault of a URL is an error that says what is wanted; what can be a secret is not repeated.
func TestBadURLs(t *testing.T) {
	for text, want := range map[string]string{
		"http://a:1/n":                             "want xds://HOST:PORT/NODE",
		"xds://a:1/%zz":                            "cannot be read",
		"xds://a/n":                                "has no port",
		"xds://a:1/":                               "names no node",
		"xds://u:s3cret@a:1/n":                     "has a user or a password",
		"xds://a:1/n?cas=x":                        `"cas" of the URL is not known, want one of backoff`,
		"xds://a:1/n?backoff=5":                    `backoff is "5", want a duration from 10ms to 1h`,
		"xds://a:1/n?backoff_max=2h":               "backoff_max is",
		"xds://a:1/n?max_bytes=0":                  "want a number of bytes from 1024",
		"xds://a:1/n?max_bytes=x":                  "want a number of bytes",
		"xds://a:1/n?start=soon":                   "want empty",
		"xds://a:1/n?metadata=x":                   "want NAME=VALUE",
		"xds://a:1/n?header_password=s3cret":       "is not NAME:VALUE",
		"xds://a:1/n?backoff=1s&backoff=2s":        "stands in the URL 2 times",
		"xds://a:1/n?ca=x":                         "are for xdss://",
		"xdss://a:1/n?ca=/none":                    "the authorities cannot be read",
		"xdss://a:1/n?ca=url_test.go":              "has no certificate",
		"xdss://a:1/n?cert=url_test.go":            "give both cert and key",
		"xdss://a:1/n?cert=url.go&key=url_test.go": "the certificate cannot be read",
	} {
		_, err := xds.ParseURL(text)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v\nwant %s", text, err, want)
		}
	}
	if !xds.IsURL("xds://a") || !xds.IsURL("xdss://a") || xds.IsURL("etcd://a") || xds.IsURL("xds") {
		t.Error("IsURL")
	}
	o, err := xds.ParseURL("xds://a:1/some%2Fnode?header_password=Authorization:%20Bearer%20x&backoff=1m")
	if err != nil || o.Node != "some/node" || o.Header["authorization"] != "Bearer x" || o.BackoffMax != o.Backoff || o.MaxBytes != xds.DefaultMaxBytes {
		t.Errorf("%+v %v", o, err)
	}
}
