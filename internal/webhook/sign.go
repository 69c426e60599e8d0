package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Secret is a key by which messages are signed.
type Secret []byte

const (
	secretPrefix = "whsec_"
	// The bounds of a secret, in bytes, as Standard Webhooks has them.
	minSecret, maxSecret = 24, 64
	// maxSecrets is how many a message is signed with: the one in use, and those that it replaces or will be
	// replaced by.
	maxSecrets = 4
)

// ParseSecrets reads the text of a file with secrets: one on each line, whsec_ and the secret in base64. Empty lines
// and those that begin with # are left out. Messages are signed with all, so that a receiver can change from one to
// another. Errors do not show what the file has.
func ParseSecrets(text []byte) (list []Secret, err error) {
	n := 0
	for line := range bytes.Lines(text) {
		n++
		entry := strings.TrimSpace(string(line))
		if entry == "" || entry[0] == '#' {
			continue
		}
		encoded, ok := strings.CutPrefix(entry, secretPrefix)
		secret, err := base64.StdEncoding.DecodeString(encoded)
		switch {
		case !ok:
			return nil, fmt.Errorf("line %d does not begin with whsec_: write a secret as echo whsec_$(head -c 32 /dev/urandom | base64) does", n)
		case err != nil:
			return nil, fmt.Errorf("line %d: what follows whsec_ is not base64", n)
		case len(secret) < minSecret || len(secret) > maxSecret:
			return nil, fmt.Errorf("line %d: the secret has %d bytes, want %d to %d", n, len(secret), minSecret, maxSecret)
		}
		list = append(list, secret)
	}
	if len(list) == 0 {
		return nil, errors.New("there is no secret in it: write one as echo whsec_$(head -c 32 /dev/urandom | base64) does")
	}
	if len(list) > maxSecrets {
		return nil, fmt.Errorf("it has %d secrets, want at most %d", len(list), maxSecrets)
	}
	return list, nil
}

// Sign returns the field webhook-signature of a message that is sent at that time.
func Sign(secrets []Secret, id string, at time.Time, body []byte) string {
	var list []string
	for _, s := range secrets {
		h := hmac.New(sha256.New, s)
		h.Write([]byte(id + "." + strconv.FormatInt(at.Unix(), 10) + "."))
		h.Write(body)
		list = append(list, "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
	}
	return strings.Join(list, " ")
}
