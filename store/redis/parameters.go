package redis

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"
)

// parameters are those that the query of a URL may have.
var parameters = []string{
	"ca", "cert", "db", "insecure_skip_verify", "instances", "key", "password_file", "prefix",
	"sentinel_password", "sentinel_username", "server_name", "timeout",
}

// maxFile bounds the files that a URL names, in bytes: bundles of
// authorities are the longest.
const maxFile = 1 << 20

// query reads the parameters of the URL.
func (r *reading) query(text string) {
	if text == "" {
		return
	}
	show := r.frank && !strings.Contains(text, "sentinel_password")
	for i, pair := range strings.Split(text, "&") {
		name, raw, ok := strings.Cut(pair, "=")
		value, err := url.PathUnescape(raw)
		switch _, twice := r.seen[name]; {
		case !slices.Contains(parameters, name):
			r.unknown(i+1, name, show)
		case !ok || value == "" && err == nil:
			r.bad("%s has no value, write %s=... or leave it out", name, name)
		case err != nil:
			r.bad("%s has a %% that begins no %%XX, write it as %%25", name)
		case twice:
			r.bad("%s is given twice", name)
		default:
			r.seen[name] = value
			r.parameter(name, value)
		}
	}
}

// unknown reports a parameter that is not known. It shows the name only if that cannot be a part
// of a password with a & in it.
func (r *reading) unknown(position int, name string, show bool) {
	what := fmt.Sprintf("parameter %d of the URL", position)
	hint := "known are " + strings.Join(parameters, ", ")
	near := nearest(name)
	// A password with a ? in it looks like a parameter. One that resembles none that is known is not shown.
	if !show || near == "" && len(name) > 3 {
		hint += "; write a & in a value as %26"
	} else {
		what = fmt.Sprintf("the parameter %q", name)
		if near != "" {
			hint = fmt.Sprintf("did you mean %s? %s", near, hint)
		}
	}
	r.bad("%s is not known, %s", what, hint)
}

// nearest returns the known parameter that a misspelt one is most likely to be, or
// "".
func nearest(name string) string {
	plain := strings.ToLower(strings.ReplaceAll(name, "-", "_"))
	best, at := "", 3
	for _, p := range parameters {
		if d := distance(plain, p); d < at && d < len(p) {
			best, at = p, d
		}
		if best == "" && len(plain) >= 4 && strings.Contains(p, plain) {
			best = p
		}
	}
	return best
}

// distance is how many bytes must be inserted, deleted or replaced to get from a
// to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// parameter reads a parameter that does not depend on others.
func (r *reading) parameter(name, value string) {
	switch name {
	case "db":
		r.number(name, value, &r.o.DB)
	case "instances":
		r.number(name, value, &r.o.Instances)
	case "prefix":
		// A brace would move the tag that keeps a bucket in one slot.
		if strings.ContainsAny(value, "{}") || strings.ContainsFunc(value, func(c rune) bool { return c <= ' ' || c == 0x7f }) {
			r.bad("prefix wants a text without braces and spaces, such as %s", DefaultPrefix)
		}
		r.o.Prefix = value
	case "timeout":
		d, err := time.ParseDuration(value)
		if err != nil || d < time.Millisecond {
			r.bad("timeout wants a duration of at least 1ms, such as 50ms%s", r.quoted(value))
		}
		r.o.Timeout = d
	case "password_file":
		text, ok := r.file(name)
		text = bytes.TrimPrefix(text, []byte("\ufeff")) // some editors begin with a byte order mark
		if ok && strings.TrimSpace(string(text)) == "" {
			r.bad("the file of password_file: it is empty, put the password in it")
		}
		if r.o.Password != "" {
			r.bad("there is a password and a password_file, want one of them")
		}
		r.o.Password = strings.TrimSpace(string(text))
	case "sentinel_username":
		r.o.SentinelUsername = value
	case "sentinel_password":
		r.o.SentinelPassword = value
	}
}

// finish reads what depends on more than one parameter.
func (r *reading) finish() {
	_, file := r.seen["password_file"]
	if r.passwordless && !file {
		r.bad("there is a user and no password, write redis://user:password@host, or redis://:password@host, or add ?password_file=FILE")
	}
	for _, name := range []string{"sentinel_username", "sentinel_password"} {
		if _, given := r.seen[name]; given && r.o.Topology != Sentinel {
			r.bad("%s is for redis+sentinel:// only", name)
		}
	}
	if r.o.SentinelUsername != "" && r.o.SentinelPassword == "" {
		r.bad("sentinel_username wants sentinel_password as well")
	}
	r.tls()
}

func (r *reading) tls() {
	if r.o.TLS == nil {
		for _, name := range []string{"ca", "cert", "key", "server_name", "insecure_skip_verify"} {
			if _, given := r.seen[name]; given {
				r.bad("%s is for TLS only, write rediss:// for redis://", name)
			}
		}
		return
	}
	if _, given := r.seen["ca"]; given {
		pool := x509.NewCertPool()
		if text, ok := r.file("ca"); ok && !pool.AppendCertsFromPEM(text) {
			r.bad("the file of ca has no certificate in it, want PEM: -----BEGIN CERTIFICATE-----")
		}
		r.o.TLS.RootCAs = pool
	}
	_, hasCert := r.seen["cert"]
	_, hasKey := r.seen["key"]
	switch {
	case hasCert != hasKey:
		r.bad("cert and key go together, give both")
	case hasCert:
		certText, ok1 := r.file("cert")
		keyText, ok2 := r.file("key")
		if !ok1 || !ok2 {
			break
		}
		pair, err := tls.X509KeyPair(certText, keyText)
		if err != nil {
			r.bad("cert and key, which want PEM files that belong together: %v", err)
		}
		r.o.TLS.Certificates = []tls.Certificate{pair}
	}
	r.o.TLS.ServerName = r.seen["server_name"]
	switch r.seen["insecure_skip_verify"] {
	case "true":
		r.o.TLS.InsecureSkipVerify = true
	case "", "false":
	default:
		r.bad("insecure_skip_verify wants true or false")
	}
}

// file reads the file that a parameter names. It returns false after recording an error.
func (r *reading) file(name string) ([]byte, bool) {
	text, err := readFile(r.seen[name])
	if err != nil {
		r.bad("the file of %s: %w", name, err)
	}
	return text, err == nil
}

// readFile reads a file that a URL names. Its error has no name, which may be a
// password in the wrong place.
func readFile(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err == nil && !info.Mode().IsRegular() {
		// Others may never end.
		return nil, errors.New("it is no regular file")
	}
	var text []byte
	if err == nil {
		var f *os.File
		if f, err = os.Open(name); err == nil {
			defer f.Close()
			text, err = io.ReadAll(io.LimitReader(f, maxFile+1))
		}
	}
	if failed := (*os.PathError)(nil); errors.As(err, &failed) {
		err = fmt.Errorf("it cannot be read: %w", failed.Err)
	}
	if err == nil && len(text) > maxFile {
		err = fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	return text, err
}
