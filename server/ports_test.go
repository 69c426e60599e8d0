package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestPortsSayWhereTheOthersAre: what is asked of the wrong port is answered with the right one.
func TestPortsSayWhereTheOthersAre(t *testing.T) {
	s := start(t, "limits: [{name: a, key: [ip], rate: 5/minute}]")
	admin := s.Addrs().Admin.String()
	for _, path := range []string{"/", "/ui", "/ui/limits", "/metrics", "/readyz", "/admin/reload", "/v1/bans", "/v1/leases", "/v1/admin/keys"} {
		a := s.do(http.MethodGet, s.http+path, "")
		if a.status != http.StatusNotFound || !strings.Contains(a.body, "http://"+admin+"/ui") {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
	}
	if a := s.do(http.MethodGet, s.http+"/v2/nothing", ""); a.status != http.StatusNotFound || !strings.Contains(a.body, "/openapi.yaml") {
		t.Errorf("a path that there is not: %d %s", a.status, a.body)
	}
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	r, err := client.Get(s.admin + "/")
	if err != nil {
		t.Fatal(err)
	}
	if r.Body.Close(); r.StatusCode != http.StatusSeeOther || r.Header.Get("Location") != "/ui" {
		t.Errorf("/ on the admin port: %d %q", r.StatusCode, r.Header.Get("Location"))
	}
	for _, path := range []string{"/v1/take", "/v1/gate/nginx", "/json"} {
		if a := s.do(http.MethodPost, s.admin+path, "{}"); a.status != http.StatusNotFound || !strings.Contains(a.body, "HTTP port") {
			t.Errorf("%s on the admin port: %d %s", path, a.status, a.body)
		}
	}
	for _, method := range []string{"GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		conn, err := net.Dial("tcp", s.Addrs().GRPC.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(conn, "%s /v1/take HTTP/1.1\r\nHost: x\r\n\r\n", method)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%s on the gRPC port: %v", method, err)
			continue
		}
		body, _ := io.ReadAll(answer.Body)
		if answer.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "http://"+s.Addrs().HTTP.String()) {
			t.Errorf("%s on the gRPC port: %d %s", method, answer.StatusCode, body)
		}
		conn.Close()
	}
	for port, addr := range map[string]net.Addr{"gRPC": s.Addrs().GRPC} {
		conn, err := net.Dial("tcp", addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(conn, "*1\r\n$4\r\nPING\r\n")
		answer, err := bufio.NewReader(conn).ReadString('\n')
		if want := "-ERR this is the " + port + " port: start stint with --resp"; err != nil || !strings.HasPrefix(answer, want) {
			t.Errorf("the Redis protocol on the %s port: %q, %v", port, answer, err)
		}
		conn.Close()
	}
}
