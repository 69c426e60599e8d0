package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/stint-io/stint/internal/testca"
)

const (
	takeToken  = "token-of-the-edge-0"
	otherToken = "token-of-orders-000"
)

// TestServeAndTakeByTLS: the service with TLS and identities, and the commands that ask it, as processes: with
// a token, with a certificate, and in every way that is refused. A file that is replaced takes effect.
func TestServeAndTakeByTLS(t *testing.T) {
	ca, foreign, dir := testca.New(), testca.New(), t.TempDir()
	cert, key := ca.Issue(testca.Names{Server: true}).Write(dir, "tls")
	authority, foreignAuthority := testca.File(dir, "ca.crt", ca.PEM), testca.File(dir, "foreign-ca.crt", foreign.PEM)
	two := testca.File(dir, "two.token", []byte(takeToken+"\nthe-next-token\n"))
	take, other, wrong := testca.File(dir, "take.token", []byte(takeToken+"\n")), testca.File(dir, "other.token", []byte(otherToken)), testca.File(dir, "wrong.token", []byte("token-of-nobody-000"))
	auth := testca.File(dir, "auth.yaml", []byte("identities:\n"+
		"  - {name: edge, token_file: take.token, certificate: {cn: edge}, roles: [take]}\n"+
		"  - {name: orders, token_file: other.token, roles: [lease]}\n"))
	edgeCert, edgeKey := ca.Issue(testca.Names{CommonName: "edge"}).Write(dir, "edge")
	nobodyCert, nobodyKey := ca.Issue(testca.Names{CommonName: "nobody"}).Write(dir, "nobody")
	foreignCert, foreignKey := foreign.Issue(testca.Names{CommonName: "edge"}).Write(dir, "foreign")
	p := serveProcess(t, nil, "--config", file(t, "stint.yaml", "limits:\n  - {name: per-user, key: [user], rate: 1000/hour}\n"),
		"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority, "--auth", auth)
	if !strings.HasPrefix(p.http, "https://") || !strings.HasPrefix(p.admin, "https://") || !strings.Contains(p.greeting, "ratelimit.v3, TLS)") || !strings.Contains(p.greeting, " https://127.0.0.1:") {
		t.Errorf("the greeting:\n%s", p.greeting)
	}
	for _, c := range []struct {
		flags string
		code  int
		text  string
	}{
		{"--ca " + authority + " --token-file " + take, exitOK, "allowed"},
		{"--ca " + authority + " --cert " + edgeCert + " --key " + edgeKey, exitOK, "allowed"},
		{"--ca " + authority, exitUsage, "401 Unauthorized: \"nothing proves who you are"},
		{"--ca " + authority, exitUsage, "\nhint: give a token with --token-file"},
		{"--ca " + authority + " --token-file " + wrong, exitUsage, "401 Unauthorized: \"the token is not known"},
		{"--ca " + authority + " --token-file " + other, exitUsage, "403 Forbidden: \"the identity orders lacks the role take: add it to its roles in the file of --auth"},
		{"--ca " + authority + " --cert " + nobodyCert + " --key " + nobodyKey, exitUsage, "those of no identity"},
		{"--ca " + authority + " --cert " + foreignCert + " --key " + foreignKey, exitUsage, "--cert and --key"}, // TLS says why, unless the connection is closed first
		{"--token-file " + take, exitUsage, "say with --ca which authority"},
		{"--ca " + foreignAuthority + " --token-file " + take, exitUsage, "say with --ca which authority"},
		{"--ca " + authority + " --addr https://127.0.0.1:1", exitUsage, "is the service running?"},
		{"--ca " + authority + " --cert " + edgeCert, exitUsage, "both --cert and --key"},
		{"--ca " + auth, exitUsage, "holds no certificate"},
		{"--ca " + authority + " --addr http://127.0.0.1:1", exitUsage, "write https://"},
		{"--token-file " + take + " --addr http://192.0.2.1:1", exitUsage, "not sent in plain text"},
		{"--token-file " + authority + "x", exitUsage, "--token-file"},
		{"--token-file " + two, exitUsage, "--token-file has several lines"},
		{"--addr " + strings.Replace(p.http, "https:", "http:", 1), exitUsage, "hint: write https:// in --addr"},
	} {
		args := append([]string{"take", "user=u", "--addr", p.http}, strings.Fields(c.flags)...)
		code, out, errOut := call(t, nil, args...)
		if code != c.code || !strings.Contains(out+errOut, c.text) || strings.Contains(out+errOut, "token-of") {
			t.Errorf("%s: exit code %d, want %d with %q\n%s%s", c.flags, code, c.code, c.text, out, errOut)
		}
	}
	testca.File(dir, "take.token", []byte("another-token-of-the-edge"))
	p.await("identities loaded")
	stale := testca.File(t.TempDir(), "stale.token", []byte(takeToken))
	for path, want := range map[string]int{take: exitOK, stale: exitUsage} {
		if code, out, errOut := call(t, []string{"STINT_CA=" + authority, "STINT_TOKEN_FILE=" + path}, "take", "user=u", "--addr", p.http); code != want {
			t.Errorf("after the token was replaced: exit code %d, want %d\n%s%s", code, want, out, errOut)
		}
	}
	foreign.Issue(testca.Names{Server: true}).Write(dir, "tls")
	p.await(`msg="certificate loaded" listener=http`)
	if code, _, errOut := call(t, nil, "take", "user=u", "--addr", p.http, "--ca", foreignAuthority, "--token-file", take); code != exitOK {
		t.Errorf("after the certificate was replaced: exit code %d\n%s", code, errOut)
	}
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
}

// TestLineToPasteOverTLS: the line that the service prints is answered as it stands, whatever its
// certificate, once what the lines below it ask for is added.
func TestLineToPasteOverTLS(t *testing.T) {
	ca, dir := testca.New(), filepath.Join(t.TempDir(), "it's here")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	cert, key := ca.Issue(testca.Names{Server: true}).Write(dir, "tls")
	elsewhere, elsewhereKey := ca.Issue(testca.Names{DNS: "stint.internal"}).Write(dir, "elsewhere")
	mine, mineKey := ca.Issue(testca.Names{CommonName: "edge"}).Write(dir, "edge")
	authority, token := testca.File(dir, "ca.crt", ca.PEM), testca.File(dir, "take.token", []byte(takeToken))
	auth := testca.File(dir, "auth.yaml", []byte("identities:\n  - {name: edge, token_file: "+filepath.Base(token)+", roles: [take]}\n"))
	paste := regexp.MustCompile(`curl -i .*`)
	for name, c := range map[string]struct {
		args  []string
		wants []string // in the greeting
		adds  string   // to the line
	}{
		"its own address": {[]string{"--tls-cert", cert, "--tls-key", key}, []string{"curl -i --cacert '"}, ""},
		"another name":    {[]string{"--tls-cert", elsewhere, "--tls-key", elsewhereKey}, []string{"curl -i -k -d"}, ""},
		"of HTTP alone": {
			[]string{"--http-tls-cert", cert, "--http-tls-key", key},
			[]string{"curl -i --cacert '", "admin   http://"},
			"",
		},
		"client certificates": {
			[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority, "--admin-tls-cert", "none"},
			[]string{"add --cert FILE --key FILE: a client certificate of " + authority},
			"--cert " + quoted(mine) + " --key " + quoted(mineKey),
		},
		"tokens": {
			[]string{"--tls-cert", cert, "--tls-key", key, "--auth", auth},
			[]string{"add -H 'Authorization: Bearer TOKEN': a token of an identity in " + auth},
			"-H 'Authorization: Bearer " + takeToken + "'",
		},
		"either": {
			[]string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority, "--auth", auth},
			[]string{"add --cert FILE --key FILE: ", "add -H 'Authorization: Bearer TOKEN': "},
			"-H 'Authorization: Bearer " + takeToken + "'",
		},
	} {
		p := serveProcess(t, nil, append(c.args, "--state-dir", "none")...)
		for _, want := range c.wants {
			if !strings.Contains(p.greeting, want) {
				t.Errorf("%s: no %q in\n%s", name, want, p.greeting)
			}
		}
		line := strings.Replace(paste.FindString(p.greeting), "curl -i", "curl -sS -i "+c.adds+" ", 1)
		if out, err := exec.Command("sh", "-c", line).CombinedOutput(); err != nil || !regexp.MustCompile(`^HTTP/\S+ 200`).Match(out) {
			t.Errorf("%s: %s: %v\n%s", name, line, err, out)
		}
		if code := p.end(syscall.SIGTERM); code != exitOK {
			t.Errorf("%s: exit code %d", name, code)
		}
	}
}

// TestServeRefusesToBeOpen: an address beyond this machine without TLS and a proof of who comes does not
// start, and the error names the flags; neither does one with a fault in its files.
func TestServeRefusesToBeOpen(t *testing.T) {
	ca, dir := testca.New(), t.TempDir()
	cert, key := ca.Issue(testca.Names{Server: true}).Write(dir, "tls")
	expired, expiredKey := ca.Issue(testca.Names{Server: true, NotBefore: -2 * 3600e9, NotAfter: -3600e9}).Write(dir, "expired")
	auth := testca.File(dir, "auth.yaml", []byte("identities:\n  - {name: edge, tokenfile: take.token, roles: [take]}\n"))
	for flags, want := range map[string]string{
		"--http 0.0.0.0:0": "give --tls-cert and --tls-key with --auth or --tls-client-ca, or listen on 127.0.0.1, or accept it with --insecure",
		"--grpc :0":        "the grpc address :0 can be reached from other machines",
		"--grpc 0.0.0.0:0 --tls-cert " + cert + " --tls-key " + key: "--auth or --tls-client-ca",
		"--tls-cert " + cert: "--tls-key",
		"--tls-cert " + expired + " --tls-key " + expiredKey: "has expired at",
		"--auth " + auth:               auth + ":2:18: unknown key \"tokenfile\"",
		"--auth " + dir + "/none.yaml": "none.yaml",
		"--peer-cert " + cert:          "--peer-key",
	} {
		args := append([]string{"serve", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"}, strings.Fields(flags)...)
		if code, _, errOut := call(t, nil, args...); code != exitUsage || !strings.Contains(errOut, want) {
			t.Errorf("%s: exit code %d, want %d with %q\n%s", flags, code, exitUsage, want, errOut)
		}
	}
	p := serveProcess(t, nil, "--http", "0.0.0.0:0", "--insecure")
	p.await("listening beyond this machine")
}
