package tlsfiles

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/testca"
)

// logged is a log that may be read while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logged) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// rig is a source with its files and its authority.
type rig struct {
	t      *testing.T
	ca     *testca.Authority
	dir    string
	files  Files
	log    *logged
	source *Source
}

func newRig(t *testing.T, clientCA bool) *rig {
	r := &rig{t: t, ca: testca.New(), dir: t.TempDir(), log: new(logged)}
	r.files.Cert, r.files.Key = r.ca.Issue(testca.Names{Server: true, CommonName: "first"}).Write(r.dir, "tls")
	if clientCA {
		r.files.ClientCA = testca.File(r.dir, "ca.crt", r.ca.PEM)
	}
	var err error
	if r.source, err = Load(r.options()); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *rig) options() Options {
	return Options{Files: r.files, ClientCertificate: tls.RequireAndVerifyClientCert, Protocols: []string{"h2"}, Name: "grpc", Logger: slog.New(slog.NewTextHandler(r.log, nil))}
}

// shake makes a handshake and returns the common name that the server showed.
func (r *rig) shake(client *tls.Config) (name string, err error) {
	r.t.Helper()
	a, b := net.Pipe()
	served := make(chan error, 1)
	go func() {
		s := tls.Server(a, r.source.Config())
		err := s.Handshake()
		if err == nil {
			_, err = s.Write([]byte("x"))
		}
		served <- err
		a.Close()
	}()
	client.RootCAs, client.ServerName = r.ca.Pool(), "127.0.0.1"
	if client.NextProtos == nil {
		client.NextProtos = []string{"h2"}
	}
	c := tls.Client(b, client)
	if err = c.Handshake(); err == nil {
		name = c.ConnectionState().PeerCertificates[0].Subject.CommonName
		// With TLS 1.3 the client is done before its certificate is checked.
		_, err = io.ReadFull(c, make([]byte, 1))
	}
	b.Close()
	if of := <-served; err == nil {
		err = of
	}
	return name, err
}

func (r *rig) want(client *tls.Config, name string) {
	r.t.Helper()
	if got, err := r.shake(client); err != nil || got != name {
		r.t.Errorf("the handshake shows %q, %v, want %q", got, err, name)
	}
}

// TestFaultsOfFiles: what is wrong with the files is said with the name of the file, and nothing of
// the key.
func TestFaultsOfFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	ca := testca.New()
	dir := t.TempDir()
	good, other := ca.Issue(testca.Names{Server: true}), ca.Issue(testca.Names{Server: true})
	cert, key := good.Write(dir, "good")
	_, otherKey := other.Write(dir, "other")
	expired, expiredKey := ca.Issue(testca.Names{Server: true, NotBefore: -2 * time.Hour, NotAfter: -time.Minute}).Write(dir, "expired")
	early, earlyKey := ca.Issue(testca.Names{Server: true, NotBefore: time.Hour, NotAfter: 2 * time.Hour}).Write(dir, "early")
	text := testca.File(dir, "text.crt", []byte("not PEM"))
	large := testca.File(dir, "large.crt", make([]byte, maxFile+1))
	for _, tt := range []struct {
		files Files
		want  string
	}{
		{Files{Cert: cert}, "--tls-key is missing"},
		{Files{Key: key}, "--tls-cert is missing"},
		{Files{ClientCA: cert}, "--tls-cert and --tls-key is missing"},
		{Files{Cert: cert, Key: otherKey}, "private key does not match"},
		{Files{Cert: filepath.Join(dir, "none.crt"), Key: key}, "none.crt"},
		{Files{Cert: expired, Key: expiredKey}, "has expired at"},
		{Files{Cert: early, Key: earlyKey}, "check the clock"},
		{Files{Cert: text, Key: key}, "text.crt"},
		{Files{Cert: large, Key: key}, "more than 1048576 bytes"},
		{Files{Cert: cert, Key: key, ClientCA: text}, "text.crt holds no certificate"},
	} {
		_, err := Load(Options{Files: tt.files, Name: "grpc", Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "grpc") {
			t.Errorf("%+v: %v, want something of %q", tt.files, err, tt.want)
		}
	}
}

// TestReloadKeepsWhatWorks: a file with a fault changes nothing but the figures and one line of the
// log, and the next good one is used.
func TestReloadKeepsWhatWorks(t *testing.T) {
	r := newRig(t, false)
	r.want(&tls.Config{}, "first")
	if err := r.source.Reload(); err != nil || r.source.Figures().Reloads != 0 {
		t.Errorf("files that have not changed: %v, %+v", err, r.source.Figures())
	}
	for range 3 {
		testca.File(r.dir, "tls.crt", []byte("broken"))
		if err := r.source.Reload(); err == nil {
			t.Error("a broken certificate is taken")
		}
	}
	if f := r.source.Figures(); f.OK || f.Failures != 1 || strings.Count(r.log.String(), "level=ERROR") != 1 {
		t.Errorf("a fault that stays is not said once: %+v\n%s", f, r.log)
	}
	if strings.Contains(r.log.String(), "PRIVATE") {
		t.Errorf("the log has the key:\n%s", r.log)
	}
	r.want(&tls.Config{}, "first")
	expired := r.ca.Issue(testca.Names{Server: true, NotBefore: -2 * time.Hour, NotAfter: -time.Minute})
	expired.Write(r.dir, "tls")
	if err := r.source.Reload(); err == nil || r.source.Figures().Failures != 2 {
		t.Errorf("an expired certificate is taken: %v, %+v", err, r.source.Figures())
	}
	r.want(&tls.Config{}, "first")
	r.ca.Issue(testca.Names{Server: true, CommonName: "second"}).Write(r.dir, "tls")
	if err := r.source.Reload(); err != nil {
		t.Fatal(err)
	}
	if f := r.source.Figures(); !f.OK || f.Reloads != 1 || f.Expires.Before(time.Now()) {
		t.Errorf("%+v", f)
	}
	r.want(&tls.Config{}, "second")
}

// TestFormerFilesAgain: files that had a fault and hold again what is in use are good.
func TestFormerFilesAgain(t *testing.T) {
	r := newRig(t, false)
	cert, err := os.ReadFile(r.files.Cert)
	if err != nil {
		t.Fatal(err)
	}
	testca.File(r.dir, "tls.crt", []byte("broken"))
	if r.source.Reload() == nil {
		t.Error("a broken certificate is taken")
	}
	testca.File(r.dir, "tls.crt", cert)
	if err := r.source.Reload(); err != nil || !r.source.Figures().OK {
		t.Errorf("%v, %+v", err, r.source.Figures())
	}
}

// TestClients: who a client must be, by its certificate and by the version and protocol it speaks.
func TestClients(t *testing.T) {
	r, foreign := newRig(t, true), testca.New()
	with := func(ca *testca.Authority, n testca.Names) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{ca.Issue(n).TLS()}}
	}
	r.want(with(r.ca, testca.Names{}), "first")
	old, other := with(r.ca, testca.Names{}), with(r.ca, testca.Names{})
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	other.NextProtos = []string{"spdy"}
	for what, client := range map[string]*tls.Config{
		"no certificate":                 {},
		"one of a foreign authority":     with(foreign, testca.Names{}),
		"an expired one":                 with(r.ca, testca.Names{NotBefore: -2 * time.Hour, NotAfter: -time.Minute}),
		"one of a server":                with(r.ca, testca.Names{Server: true}),
		"TLS 1.1":                        old,
		"a protocol that is not offered": other,
	} {
		if name, err := r.shake(client); err == nil {
			t.Errorf("%s: the handshake succeeds and shows %q", what, name)
		}
	}
	// Another authority takes effect for the next handshake.
	testca.File(r.dir, "ca.crt", foreign.PEM)
	if err := r.source.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.shake(with(r.ca, testca.Names{})); err == nil {
		t.Error("an authority that was removed is still believed")
	}
	r.want(with(foreign, testca.Names{}), "first")
}

// TestSwapOfALink: the symbolic link that Kubernetes swaps replaces certificate and key at once, and
// the watch follows.
func TestSwapOfALink(t *testing.T) {
	ca, dir := testca.New(), t.TempDir()
	put := func(version string) {
		folder := filepath.Join(dir, version)
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		ca.Issue(testca.Names{Server: true, CommonName: version}).Write(folder, "tls")
		link := filepath.Join(dir, "..data~")
		if err := os.Symlink(version, link); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	put("v0")
	for _, name := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r := &rig{t: t, ca: ca, dir: dir, files: Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}, log: new(logged)}
	var err error
	if r.source, err = Load(r.options()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.source.Watch(ctx) }()
	for i := 1; i <= 3; i++ {
		version := fmt.Sprintf("v%d", i)
		put(version)
		for late := time.After(30 * time.Second); ; {
			name, err := r.shake(&tls.Config{})
			if err != nil {
				t.Fatal(err)
			}
			if name == version {
				break
			}
			select {
			case <-late:
				t.Fatalf("%s is not in use: %s\n%s", version, name, r.log)
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if strings.Contains(r.log.String(), "level=ERROR") {
		t.Errorf("a swap was taken for a fault:\n%s", r.log)
	}
}
