package claims

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	maxKeys   = 100
	maxKeySet = 1 << 20

	// refreshEvery is how often a URL is asked. Not rarer: a key that was taken back must go.
	refreshEvery = 5 * time.Minute
	// refreshSoonest is how soon it is asked again because of a token with an unknown key, or after a
	// failure. Not sooner: anybody can send such tokens.
	refreshSoonest = 10 * time.Second
	fetchTimeout   = 5 * time.Second
)

// Keys are the public keys of a file or a URL. It is safe for concurrent use; OpenKeys makes it, and Run
// keeps it new.
type Keys struct {
	source string
	client *http.Client // nil = a file
	set    atomic.Pointer[keySet]
	failed atomic.Bool
	wanted chan struct{} // a token named a key that is not known
}

type keySet struct {
	raw        []byte
	keys       []jose.JSONWebKey
	generation uint64
}

// OpenKeys reads the keys. A URL that does not answer is no error: it may be started later, and until then no
// token is verified. A file that is missing or broken is.
func OpenKeys(ctx context.Context, source string) (*Keys, error) {
	k := &Keys{source: source, wanted: make(chan struct{}, 1)}
	k.set.Store(&keySet{})
	if !strings.Contains(source, "://") {
		_, err := k.Refresh(ctx)
		return k, err
	}
	u, err := url.Parse(source)
	loopback := err == nil && (u.Hostname() == "localhost" || u.Hostname() == "127.0.0.1" || u.Hostname() == "::1")
	if err != nil || u.Host == "" || u.Scheme != "https" && (u.Scheme != "http" || !loopback) {
		return nil, fmt.Errorf("claims: %q is no https URL: who could change the keys on their way could sign any token", redacted(source))
	}
	k.client = &http.Client{Timeout: fetchTimeout, CheckRedirect: func(r *http.Request, via []*http.Request) error {
		if r.URL.Scheme != u.Scheme || len(via) > 3 {
			return errors.New("a redirect to another scheme, or the fourth")
		}
		return nil
	}}
	_, err = k.Refresh(ctx)
	if err != nil && k.set.Load().keys == nil {
		return k, nil //nolint:nilerr // Good says so, and Run tries again
	}
	return k, nil
}

// redacted leaves out the password of a URL.
func redacted(source string) string {
	if u, err := url.Parse(source); err == nil {
		return u.Redacted()
	}
	return "URL"
}

// Source is the file or URL, without a password.
func (k *Keys) Source() string { return redacted(k.source) }

// File is the path of the file; "" for a URL.
func (k *Keys) File() string {
	if k.client != nil {
		return ""
	}
	return k.source
}

// Good reports whether the last reading was successful.
func (k *Keys) Good() bool { return !k.failed.Load() }

// Generation changes when the keys do.
func (k *Keys) Generation() uint64 { return k.set.Load().generation }

// For returns the keys that may have signed a token. One that names no key may be of any. For an unknown name Run
// reads the keys again soon; the token is not waited for.
func (k *Keys) For(id string, _ time.Time) (out []jose.JSONWebKey) {
	all := k.set.Load().keys
	if id == "" {
		return all
	}
	for _, key := range all {
		if key.KeyID == id || key.KeyID == "" {
			out = append(out, key)
		}
	}
	if len(out) == 0 {
		select {
		case k.wanted <- struct{}{}:
		default:
		}
	}
	return out
}

// Refresh reads the keys again, and reports whether they differ. After an error the former ones stay in use.
func (k *Keys) Refresh(ctx context.Context) (changed bool, err error) {
	defer func() { k.failed.Store(err != nil) }()
	raw, err := k.read(ctx)
	if err != nil {
		return false, err
	}
	old := k.set.Load()
	if old.keys != nil && bytes.Equal(old.raw, raw) {
		return false, nil
	}
	keys, err := parse(raw)
	if err != nil {
		return false, fmt.Errorf("%w (%s)", err, k.Source())
	}
	k.set.Store(&keySet{raw, keys, old.generation + 1})
	return true, nil
}

func (k *Keys) read(ctx context.Context) ([]byte, error) {
	if k.client == nil {
		f, err := os.Open(k.source)
		if err != nil {
			return nil, fmt.Errorf("claims: %w", err)
		}
		defer f.Close()
		return bounded(f, k.source)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, k.source, nil)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	res, err := k.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("claims: %w", err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("claims: %s answered %d", k.Source(), res.StatusCode)
	}
	return bounded(res.Body, k.Source())
}

func bounded(r io.Reader, source string) ([]byte, error) {
	raw, err := io.ReadAll(io.LimitReader(r, maxKeySet+1))
	if err != nil {
		return nil, fmt.Errorf("claims: %s: %w", source, err)
	}
	if len(raw) > maxKeySet {
		return nil, fmt.Errorf("claims: the keys at %s have more than %d bytes", source, maxKeySet)
	}
	return raw, nil
}

// Run reads the keys of a URL every five minutes, and ten seconds after a failure or a token of an unknown key,
// until ctx ends. done hears of each reading. For a file it returns at once: its owner watches it.
func (k *Keys) Run(ctx context.Context, done func(changed bool, err error)) {
	if k.client == nil {
		return
	}
	last := time.Now()
	for {
		wait := refreshEvery
		if !k.Good() {
			wait = refreshSoonest
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-k.wanted:
			timer.Stop()
			if rest := refreshSoonest - time.Since(last); rest > 0 {
				select {
				case <-ctx.Done():
					return
				case <-time.After(rest):
				}
			}
		}
		last = time.Now()
		done(k.Refresh(ctx))
	}
}
