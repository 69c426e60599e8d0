package kubernetes

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"
)

// account is where a pod finds its service account.
const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

const (
	// largest bounds an answer. The API server refuses objects above 1.5 MB.
	largest = 16 << 20

	// pingTime is after how long without a byte a connection is probed, and pingTimeout after how
	// long without an answer it is left: the host of an API server may be gone.
	pingTime    = 5 * time.Second
	pingTimeout = time.Second
)

// Options are the options of a Register. The zero value is a pod's own API server, namespace and
// service account, and the name "stint".
type Options struct {
	Server    string // URL; "" = https://kubernetes.default.svc
	Namespace string // "" = of the pod
	Name      string // begins the names of objects; "" = "stint"
	TokenFile string // it is read for each call; "" = of the pod, or none if Server is given
	CAFile    string // "" = of the pod, or the system's if Server is given
}

// complete sets defaults and checks the options.
func (o *Options) complete() error {
	if o.Server == "" {
		o.Server = "https://kubernetes.default.svc"
		if o.TokenFile == "" {
			o.TokenFile = account + "token"
		}
		if o.CAFile == "" {
			o.CAFile = account + "ca.crt"
		}
		if _, err := os.Stat(o.CAFile); err != nil {
			return fmt.Errorf("kubernetes: this process runs in no pod, name the API server, as in kubernetes://namespace/name?server=https://host:6443: %w", err)
		}
	}
	if o.Namespace == "" {
		text, err := os.ReadFile(account + "namespace")
		if err != nil {
			return fmt.Errorf("kubernetes: no namespace is given, and there is no pod's: %w", err)
		}
		o.Namespace = strings.TrimSpace(string(text))
	}
	if o.Name == "" {
		o.Name = "stint"
	}
	for _, name := range []string{o.Namespace, o.Name} {
		if !isName(name) {
			return fmt.Errorf("kubernetes: %q is no name of at most %d lower-case letters, digits and -", name, longestName)
		}
	}
	if !strings.HasPrefix(o.Server, "http://") && !strings.HasPrefix(o.Server, "https://") {
		return fmt.Errorf("kubernetes: the server %q is no URL, write it as https://host:6443", o.Server)
	}
	o.Server = strings.TrimSuffix(o.Server, "/")
	return nil
}

func isName(text string) bool {
	for i := range len(text) {
		c := text[i]
		if inner := i > 0 && i < len(text)-1; ('a' > c || c > 'z') && ('0' > c || c > '9') && (c != '-' || !inner) {
			return false
		}
	}
	return text != "" && len(text) <= longestName
}

// api makes calls of the API server.
type api struct {
	server    string
	tokenFile string
	client    *http.Client
	transport *http.Transport
}

func newAPI(o Options) (api, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return api{}, fmt.Errorf("kubernetes: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return api{}, fmt.Errorf("kubernetes: %s has no certificate", o.CAFile)
		}
	}
	transport := &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingTime, PingTimeout: pingTimeout},
	}
	return api{o.Server, o.TokenFile, &http.Client{Transport: transport}, transport}, nil
}

func (a *api) close() { a.transport.CloseIdleConnections() }

// statusError is a refusal of the API server.
type statusError struct {
	code    int
	message string
}

// Error says what the API server said.
func (e *statusError) Error() string {
	return fmt.Sprintf("kubernetes: the API server answers %d: %s", e.code, e.message)
}

// send makes a call and returns its answer, which has a status below 300.
func (a *api) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
		content = bytes.NewReader(b)
	}
	request, err := http.NewRequestWithContext(ctx, method, a.server+path, content)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	request.Header.Set("Accept", "application/json")
	switch {
	case method == http.MethodPatch:
		request.Header.Set("Content-Type", "application/merge-patch+json")
	case body != nil:
		request.Header.Set("Content-Type", "application/json")
	}
	if a.tokenFile != "" {
		// The kubelet replaces it before it expires.
		token, err := os.ReadFile(a.tokenFile)
		if err != nil {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	reply, err := a.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("kubernetes: %w", err)
	}
	if reply.StatusCode < http.StatusMultipleChoices {
		return reply, nil
	}
	defer func() { _ = reply.Body.Close() }()
	var status struct {
		Message string `json:"message"`
	}
	text, _ := io.ReadAll(io.LimitReader(reply.Body, largest))
	if json.Unmarshal(text, &status) != nil || status.Message == "" {
		status.Message = http.StatusText(reply.StatusCode)
	}
	return nil, &statusError{reply.StatusCode, status.Message}
}

// call makes a call and decodes its answer.
func (a *api) call(ctx context.Context, method, path string, body, answer any) error {
	reply, err := a.send(ctx, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(reply.Body, largest))
	if err == nil && answer != nil {
		err = json.Unmarshal(text, answer)
	}
	if err != nil {
		return fmt.Errorf("kubernetes: %w", err)
	}
	return nil
}

// stream calls f with each event of a watch, until it ends.
func (a *api) stream(ctx context.Context, path string, f func(watchEvent)) error {
	reply, err := a.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer func() { _ = reply.Body.Close() }()
	for d := json.NewDecoder(reply.Body); ; {
		var e watchEvent
		if err := d.Decode(&e); err != nil {
			return fmt.Errorf("kubernetes: %w", err)
		}
		f(e)
	}
}
