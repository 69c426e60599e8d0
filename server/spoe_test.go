package server_test

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/server"
)

// haproxy is a connection of HAProxy's, by hand: numbers in its frames are below 240.
type haproxy struct {
	t *testing.T
	net.Conn
}

func spoeText(s string) string { return string(rune(len(s))) + s }

// send sends a frame.
func (h *haproxy) send(kind byte, stream byte, payload string) {
	h.t.Helper()
	frame := append([]byte{kind, 0, 0, 0, 1, stream, 0}, payload...)
	// A server that has ended the connection says so where it is read.
	_, _ = h.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(frame))), frame...))
}

// hello begins, and notify asks for a user.
func (h *haproxy) hello() {
	h.t.Helper()
	h.send(1, 0, spoeText("supported-versions")+"\x08"+spoeText("2.0")+spoeText("max-frame-size")+"\x03\xf0\x01"+spoeText("capabilities")+"\x08"+spoeText("pipelining"))
}

func (h *haproxy) notify(user string) {
	h.t.Helper()
	h.send(3, 1, spoeText("check")+"\x01"+spoeText("user")+"\x08"+spoeText(user))
}

// receive wants a frame of a kind which has a text in it; 0 = that the connection ends.
func (h *haproxy) receive(kind byte, text string) {
	h.t.Helper()
	size := make([]byte, 4)
	if _, err := io.ReadFull(h, size); err != nil {
		if kind != 0 {
			h.t.Errorf("%v, want frame %d with %q", err, kind, text)
		}
		return
	}
	frame := make([]byte, min(binary.BigEndian.Uint32(size), 1<<16))
	if _, err := io.ReadFull(h, frame); err != nil || frame[0] != kind || !bytes.Contains(frame, []byte(text)) {
		h.t.Errorf("%q, %v, want frame %d with %q", frame, err, kind, text)
	}
}

// TestSPOEIdentities: HAProxy says who it is by a certificate, and nothing is answered or taken without one that may
// take; who is taken out of the file may not from then on, also on a connection that is open.
func TestSPOEIdentities(t *testing.T) {
	g := startAuth(t, func(o *server.Options) { o.SPOEAddr = "127.0.0.1:0" })
	addr := g.Addrs().SPOE.String()
	reach := func(c *tls.Config) *haproxy {
		t.Helper()
		conn, err := tls.Dial("tcp", addr, c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return &haproxy{t, conn}
	}
	for _, tt := range []struct {
		names *testca.Names
		kind  byte
		text  string
	}{
		{nil, 102, "show a client certificate"},
		{&testca.Names{CommonName: "nobody"}, 102, "status-code"},
		{&testca.Names{URI: "spiffe://shop/orders"}, 102, "status-code"},
		{&testca.Names{CommonName: "edge"}, 101, "max-frame-size"},
	} {
		h := reach(g.config(tt.names))
		h.hello()
		h.receive(tt.kind, tt.text)
		if tt.kind == 102 {
			h.notify("u")
			h.receive(0, "")
		}
	}
	// A certificate of somebody else's authority: with TLS 1.3 the client is done before it is checked.
	foreign := g.config(nil)
	foreign.Certificates = []tls.Certificate{testca.New().Issue(testca.Names{CommonName: "edge"}).TLS()}
	if conn, err := tls.Dial("tcp", addr, foreign); err == nil {
		h := &haproxy{t, conn}
		h.hello()
		h.receive(0, "")
		_ = conn.Close()
	}
	plain, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	h := &haproxy{t, plain}
	h.hello()
	if answer, _ := io.ReadAll(plain); bytes.Contains(answer, []byte("status-code")) || bytes.Contains(answer, []byte("max-frame-size")) {
		t.Errorf("without TLS: %q", answer)
	}

	h = reach(g.config(&testca.Names{CommonName: "edge"}))
	h.hello()
	h.receive(101, "pipelining")
	h.notify("u")
	h.receive(103, "allowed")
	file, err := os.ReadFile(g.dir + "/auth.yaml")
	if err != nil {
		t.Fatal(err)
	}
	testca.File(g.dir, "auth.yaml", []byte(strings.ReplaceAll(string(file), "edge", "elsewhere")))
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	h.notify("u")
	h.receive(102, "status-code")
	h.receive(0, "")
}
