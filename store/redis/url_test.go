package redis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseURL(t *testing.T) {
	file := written(t, "password", " from a file\n")
	for _, tt := range []struct {
		url  string
		want Options
		text string // String, "" = the URL itself
	}{
		{"redis://127.0.0.1", Options{Addrs: []string{"127.0.0.1:6379"}}, "redis://127.0.0.1:6379"},
		{"REDIS://h:1/", Options{Addrs: []string{"h:1"}}, "redis://h:1"},
		{"valkey://my_host.example-1.com:65535/15", Options{Addrs: []string{"my_host.example-1.com:65535"}, DB: 15}, "redis://my_host.example-1.com:65535/15"},
		{"redis://h:1/3", Options{Addrs: []string{"h:1"}, DB: 3}, ""},
		{"redis://h?db=3", Options{Addrs: []string{"h:6379"}, DB: 3}, "redis://h:6379/3"},
		{"redis://[::1]", Options{Addrs: []string{"[::1]:6379"}}, "redis://[::1]:6379"},
		{"redis://[2001:DB8:0::1]:7000/1", Options{Addrs: []string{"[2001:db8::1]:7000"}, DB: 1}, "redis://[2001:db8::1]:7000/1"},
		{"redis://@h:1", Options{Addrs: []string{"h:1"}}, "redis://h:1"},
		{"redis://:pw@h:1", Options{Addrs: []string{"h:1"}, Password: "pw"}, "redis://h:1"},
		{"redis://u:@h:1", Options{Addrs: []string{"h:1"}, Username: "u"}, "redis://u@h:1"},
		{"redis://u:a:b,c@d+e@h:1", Options{Addrs: []string{"h:1"}, Username: "u", Password: "a:b,c@d+e"}, "redis://u@h:1"},
		{"redis://us%2Fer:p%40%3A%2f%3f%23%25%20@h:1", Options{Addrs: []string{"h:1"}, Username: "us/er", Password: "p@:/?#% "}, "redis://us%2Fer@h:1"},
		{"redis://u@h:1?password_file=" + file, Options{Addrs: []string{"h:1"}, Username: "u", Password: "from a file"}, "redis://u@h:1"},
		{
			"redis://h:1?prefix=team+a/é:&timeout=20ms&instances=4",
			Options{Addrs: []string{"h:1"}, Prefix: "team+a/é:", Timeout: 20 * time.Millisecond, Instances: 4},
			"redis://h:1?prefix=team%2Ba%2F%C3%A9%3A&timeout=20ms&instances=4",
		},
		{"redis://h:1?prefix=stint:&timeout=50ms", Options{Addrs: []string{"h:1"}, Prefix: "stint:", Timeout: 50 * time.Millisecond}, "redis://h:1"},
		{"redis://h:1?prefix=a@b", Options{Addrs: []string{"h:1"}, Prefix: "a@b"}, "redis://h:1?prefix=a%40b"},
		{"rediss://h:1", Options{Addrs: []string{"h:1"}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, ""},
		{"valkeys://h:1", Options{Addrs: []string{"h:1"}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, "rediss://h:1"},
		{
			"rediss://h:1?server_name=redis.example.com&insecure_skip_verify=true",
			Options{Addrs: []string{"h:1"}, TLS: &tls.Config{MinVersion: tls.VersionTLS12, ServerName: "redis.example.com", InsecureSkipVerify: true}},
			"",
		},
		{
			"redis+sentinel://host1:26380,host2,[::1]/my%20master/3?sentinel_username=su&sentinel_password=s%26p=1+",
			Options{
				Topology: Sentinel, Addrs: []string{"host1:26380", "host2:26379", "[::1]:26379"}, Master: "my master", DB: 3,
				SentinelUsername: "su", SentinelPassword: "s&p=1+",
			},
			"redis+sentinel://host1:26380,host2:26379,[::1]:26379/my%20master/3",
		},
		{"valkey+sentinel://h/m", Options{Topology: Sentinel, Addrs: []string{"h:26379"}, Master: "m"}, "redis+sentinel://h:26379/m"},
		{"rediss+sentinel://h:1/m", Options{Topology: Sentinel, Addrs: []string{"h:1"}, Master: "m", TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, ""},
		{"redis+cluster://u:p@a,b:7001,c", Options{Topology: Cluster, Addrs: []string{"a:6379", "b:7001", "c:6379"}, Username: "u", Password: "p"}, "redis+cluster://u@a:6379,b:7001,c:6379"},
		{"valkeys+cluster://a:1/0", Options{Topology: Cluster, Addrs: []string{"a:1"}, TLS: &tls.Config{MinVersion: tls.VersionTLS12}}, "rediss+cluster://a:1"},
	} {
		got, err := ParseURL(tt.url)
		if err != nil {
			t.Errorf("%s: %v", tt.url, err)
			continue
		}
		if !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", tt.url, got, tt.want)
		}
		want := tt.text
		if want == "" {
			want = tt.url
		}
		if got.String() != want {
			t.Errorf("%s: String is %s, want %s", tt.url, got, want)
		}
	}
}

func TestParseURLRefuses(t *testing.T) {
	empty := written(t, "empty", " \n")
	for url, want := range map[string]string{
		"":                                "no scheme, write it as redis://user:password@host:6379",
		"127.0.0.1:6379":                  "no scheme",
		"http://h":                        "scheme of the URL is not known, want redis, rediss",
		"redis://":                        "no host",
		"redis:///3":                      "no host",
		"redis://u:p@":                    "no host",
		"redis://:6379":                   "address 1 of the URL: want a host",
		"redis://h:":                      "address 1 of the URL: its port is no number from 1 to 65535",
		"redis://h:0":                     "its port is no number",
		"redis://h:65536":                 "its port is no number",
		"redis://h:6379x":                 "its port is no number",
		"redis://h h":                     "want a host",
		"redis://::1":                     "IPv6 address in brackets",
		"redis://[::1":                    "IPv6 address in the brackets",
		"redis://[127.0.0.1]":             "IPv6 address in the brackets",
		"redis://[::1]6379":               "IPv6 address in the brackets",
		"redis://[fe80::1%25eth0]":        "IPv6 address in the brackets",
		"redis://a,b":                     "2 addresses: several belong to sentinels or to a cluster",
		"redis+cluster://a,,b":            "address 2 of the URL: want a host",
		"redis+cluster://a,b,a":           "address 3 of the URL is there twice",
		"redis+cluster://a/3":             "a cluster has only database 0",
		"redis+sentinel://a":              "wants the name of the master",
		"redis+sentinel://a//3":           "wants the name of the master",
		"redis+sentinel://a/m/x":          `db wants a number from 0, this is "x"`,
		"redis://h/mymaster":              `db wants a number from 0, this is "mymaster"`,
		"redis://h/-1":                    `db wants a number from 0, this is "-1"`,
		"redis://h/3?db=4":                "db is given twice",
		"redis://h#x":                     "write it as %23",
		"redis://u:%zz@h":                 "write it as %25",
		"redis://pw@h":                    "a user and no password",
		"redis://h?tls=1":                 `the parameter "tls" is not known, known are ca, cert, db,`,
		"redis://h?tiemout=1s":            "did you mean timeout?",
		"redis://h?Server-Name=x":         "did you mean server_name?",
		"redis://h?password=x":            "did you mean password_file?",
		"redis://h?timeout":               "timeout has no value",
		"redis://h?prefix=":               "prefix has no value, write prefix=... or leave it out",
		"redis://h?prefix=%z":             "prefix has a % that begins no %XX",
		"redis://h?prefix={a}":            "without braces",
		"redis://h?prefix=a%20b":          "without braces and spaces",
		"redis://h?timeout=50":            `timeout wants a duration of at least 1ms, such as 50ms, this is "50"`,
		"redis://h?timeout=1us":           "at least 1ms",
		"redis://h?timeout=1s&timeout=1s": "timeout is given twice",
		"redis://h?instances=-1":          "instances wants a number from 0",
		"redis://h?ca=x":                  "ca is for TLS only, write rediss://",
		"rediss://h?ca=/nowhere":          "the file of ca: it cannot be read: no such file",
		"rediss://h?ca=" + empty:          "has no certificate in it",
		"rediss://h?cert=x":               "cert and key go together",
		"rediss://h?cert=" + empty + "&key=" + empty:  "PEM files that belong together",
		"rediss://h?cert=/nowhere&key=/nowhere":       "the file of cert: it cannot be read",
		"rediss://h?insecure_skip_verify=yes":         "insecure_skip_verify wants true or false",
		"redis://h?sentinel_password=x":               "sentinel_password is for redis+sentinel:// only",
		"redis+sentinel://h/m?sentinel_username=x":    "wants sentinel_password as well",
		"redis://u@h?password_file=/nowhere":          "the file of password_file: it cannot be read: no such file",
		"redis://h?password_file=/dev/zero":           "it is no regular file",
		"redis://h?password_file=" + empty:            "it is empty",
		"redis://:pw@h?password_file=" + empty:        "want one of them",
		"redis://user:se/cret@h":                      "write / and ? in that as %2F and %3F",
		"redis+cluster://a:x,b:y?tiemout=1&db=9&db=8": "did you mean timeout?",
	} {
		o, err := ParseURL(url)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", url, err, want)
			continue
		}
		if !reflect.DeepEqual(o, Options{}) {
			t.Errorf("%s: options beside the error: %+v", url, o)
		}
		for line := range strings.Lines(err.Error()) {
			if !strings.HasPrefix(line, "redis: ") {
				t.Errorf("%s: a line without its place: %q", url, line)
			}
		}
	}
}

func TestParseURLSaysAll(t *testing.T) {
	_, err := ParseURL("redis+cluster://a:x,b:y?tiemout=1&instances=x")
	if n := strings.Count(fmt.Sprint(err), "\n"); n != 3 {
		t.Errorf("want all four faults, got %v", err)
	}
}

// secret is a password of which no part is in any text of ours.
const secret = "Xq7Zv9Kw2"

// leaked reports whether some of the secret is in a text.
func leaked(text string) bool {
	for i := range len(secret) - 3 {
		if strings.Contains(text, secret[i:i+4]) {
			return true
		}
	}
	return false
}

// TestErrorsKeepPasswords writes a password in all the ways in which one can be
// written wrong.
func TestErrorsKeepPasswords(t *testing.T) {
	for _, url := range []string{
		secret, "redis:" + secret, secret + "://h", "redis://" + secret + "@h", "redis://:" + secret, "redis://u:" + secret,
		"redis://u:" + secret + "@", "redis://u:" + secret + "@h:x", "redis://u:%z" + secret + "@h", "redis://u:" + secret + "@h h",
		"redis://u:a/" + secret + "@h", "redis://u:a?" + secret + "@h", "redis://u:a#" + secret + "@h", "redis://u:a/b?" + secret + "=1@h",
		"redis://u:1/" + secret + "?x@h", "redis://u:a@b/" + secret + "?c@h", "redis://u:" + secret + ",x@h,h", "redis://a," + secret + "?@h",
		"redis://u:1?timeout=" + secret + "@h", "redis://u:1?a=b&" + secret + "@h", "redis+sentinel://u:p@h/m?sentinel_password=a&" + secret + "=1",
		"redis+sentinel://h/m?sentinel_password=%z" + secret, "redis+sentinel://h?sentinel_password=" + secret,
		"redis://h?password_file=" + secret, "redis+sentinel://u:a/" + secret + "@h/m", "redis+cluster://u:[" + secret + "@x]",
	} {
		if _, err := ParseURL(url); err == nil {
			t.Errorf("%s is taken", url)
		} else if leaked(err.Error()) {
			t.Errorf("%s: %v", url, err)
		}
	}
}

func TestCertificateFiles(t *testing.T) {
	cert, key := certificate(t)
	o, err := ParseURL("rediss://h?ca=" + cert + "&cert=" + cert + "&key=" + key)
	if err != nil {
		t.Fatal(err)
	}
	if o.TLS.RootCAs == nil || len(o.TLS.Certificates) != 1 || o.TLS.ServerName != "" {
		t.Errorf("got %+v", o.TLS)
	}
	if _, err := ParseURL("rediss://h?cert=" + key + "&key=" + cert); err == nil || !strings.Contains(err.Error(), "belong together") {
		t.Errorf("files the wrong way round: %v", err)
	}
}

// written returns a file with a text.
func written(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// certificate returns files with a certificate and its key.
func certificate(t *testing.T) (certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return written(t, "cert.pem", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}))),
		written(t, "key.pem", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: text})))
}

// FuzzParseURL: nothing panics, what parses is complete, says the same again without
// its password, and no error has the password, wherever in the URL it is.
func FuzzParseURL(f *testing.F) {
	for _, seed := range [][2]string{
		{"redis://u:", "@h:6379/3?db=3&timeout=20ms&prefix=x:"},
		{"rediss://:", "@[::1]:1?insecure_skip_verify=true&server_name=x"},
		{"redis+sentinel://", ":x@a,b:1,c/mymaster/3?sentinel_username=u&sentinel_password=p"},
		{"redis+cluster://u:x%25", "%40@a,b?instances=3"},
		{"redis://u:a/", "@h"},
		{"redis://u:a?", "=x@h"},
		{"valkeys+sentinel://h/m?sentinel_password=", "&sentinel_username=a"},
		{"redis://h?password_file=", ""},
	} {
		f.Add(seed[0], seed[1])
	}
	f.Fuzz(func(t *testing.T, before, after string) {
		if leaked(before) || leaked(after) {
			return
		}
		if o, err := ParseURL(before + after); err == nil {
			again(t, o)
		}
		o, err := ParseURL(before + secret + after)
		if err == nil {
			again(t, o)
			return
		}
		// What stands for a name is shown, and is no password: a database, a
		// parameter, a time.
		_, query, _ := strings.Cut(before, "?")
		_, rest, _ := strings.Cut(before, "://")
		asPassword := strings.Contains(after, "@") && !strings.Contains(rest, "@") || strings.Contains(query, "sentinel_password=") && !strings.Contains(query[strings.LastIndex(query, "sentinel_password="):], "&")
		if asPassword && leaked(err.Error()) {
			t.Errorf("%q: %v", before+secret+after, err)
		}
	})
}

// again holds options against those that their String makes.
func again(t *testing.T, o Options) {
	completed := o
	if err := completed.complete(); err != nil {
		t.Fatalf("%+v: %v", o, err)
	}
	if o.Password != "" && leaked(o.Password) && !leaked(o.Username+o.Master+o.Prefix+strings.Join(o.Addrs, "")) {
		if o.TLS == nil && leaked(o.String()) {
			t.Errorf("String tells the password: %s", o)
		}
	}
	o.Username, o.Password, o.SentinelUsername, o.SentinelPassword = "", "", "", ""
	if o.TLS != nil && (o.TLS.RootCAs != nil || len(o.TLS.Certificates) > 0) {
		return
	}
	if o.Prefix == DefaultPrefix {
		o.Prefix = ""
	}
	if o.Timeout == DefaultTimeout {
		o.Timeout = 0
	}
	same, err := ParseURL(o.String())
	if err != nil || !reflect.DeepEqual(same, o) {
		t.Errorf("%s: %+v, %v, want %+v", o, same, err, o)
	}
}
