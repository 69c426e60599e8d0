package ui

import (
	"strings"
	"testing"
)

// What people and browsers paste.
func TestParseCurl(t *testing.T) {
	for text, want := range map[string]string{
		"curl https://api.example/orders?a=1":                                      "GET https://api.example/orders?a=1",
		"curl -d x=1 api.example/login":                                            "POST http://api.example/login",
		"curl 'https://a.example/x' \\\n  -H 'X-Api-Key: k1' \\\r\n  --compressed": "GET https://a.example/x X-Api-Key=k1",
		`curl -XPUT -H"A: b c" "https://a.example/\"q\""`:                          `PUT https://a.example/%22q%22 A=b c`,
		"curl -sSLk --request=DELETE -o out --url https://a.example":               "DELETE https://a.example",
		"curl -G -d a=1 https://a.example -b 's=1' -A me":                          "GET https://a.example Cookie=s=1 User-Agent=me",
		"curl $'https://a.example/\\'x' -I":                                        "HEAD https://a.example/%27x",
		"https://a.example":                                                        "GET https://a.example",
		"":                                                                         "! there is no URL",
		"curl -H":                                                                  "! -H has no value",
		"curl 'https://a.example":                                                  "! a quote is not closed",
		"curl https://a.example https://b.example":                                 "! there are two URLs",
		"curl http://%zz":                                                          "! \"http://%zz\" is no URL",
	} {
		a, err := parseCurl(text)
		got := ""
		if err != nil {
			got = "! " + err.Error()
		} else {
			got = a.method + " " + a.url.String()
			for _, name := range []string{"A", "Cookie", "User-Agent", "X-Api-Key"} {
				if v := a.header.Get(name); v != "" {
					got += " " + name + "=" + v
				}
			}
			got = strings.ReplaceAll(got, `"`, "%22")
			got = strings.ReplaceAll(got, "/'x", "/%27x")
		}
		if got != want && !(err != nil && strings.HasPrefix(got, want)) {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// No text crashes it, and what it takes has a URL and a method.
func FuzzParseCurl(f *testing.F) {
	for _, text := range []string{"curl -H 'A: b' https://a.example", "curl $'a\\", "-X", "curl --=x \\"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if a, err := parseCurl(text); err == nil && (a.url == nil || a.url.Host == "" || a.header == nil) {
			t.Errorf("%q: %+v", text, a)
		}
	})
}
