package rules

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// ShowKey is [Limit.KeyAttributes] for people. What the request lacked is left out. exact is false for a key with a value that is kept as its hash:
// it is shown as "sha256:" and the beginning of that. ok is false for what is no key of the limit.
func (l *Limit) ShowKey(key []byte) (attrs []limit.Attribute, exact, ok bool) {
	exact = true
	for _, name := range l.Key {
		if len(key) == 0 {
			return nil, false, false
		}
		value, size := keyPart(key)
		if size == 0 {
			return nil, false, false
		}
		switch tag := key[0]; {
		case tag == tagMissing:
			key = key[size:]
			continue
		case tag == tagHashed:
			value, exact = "sha256:"+value, false
		case tag == tagIPv6 && l.ipv6 < 128:
			value += "/" + strconv.Itoa(l.ipv6)
		}
		attrs = append(attrs, limit.Attribute{Name: name, Value: value})
		key = key[size:]
	}
	return attrs, exact, len(key) == 0
}

// KeyFrom returns the key that a request with these attributes has with the limit, in stint's
// format. An attribute that is not part of the key is an error, and so is one that lacks.
func (l *Limit) KeyFrom(attrs []limit.Attribute) ([]byte, error) {
	for _, a := range attrs {
		if contains(l.Key, canonicalName(a.Name)) {
			continue
		}
		hint := ""
		if near, ok := document.Suggest(a.Name, l.Key); ok {
			hint = fmt.Sprintf(", did you mean %s?", near)
		}
		return nil, fmt.Errorf("rules: %q is not in the key of limit %q, which is [%s]%s", a.Name, l.Name, strings.Join(l.Key, ", "), hint)
	}
	s := subject{attrs: attrs}
	key, missing := l.appendKey(nil, &s)
	if missing && l.Missing != MissingAll {
		return nil, fmt.Errorf("rules: the key of limit %q is [%s]: give each of them as NAME=VALUE", l.Name, strings.Join(l.Key, ", "))
	}
	return key, nil
}

// KeyTextOf is [Limit.KeyText] for the beginning of a key of so many bytes, such as where no more of it was kept.
func (l *Limit) KeyTextOf(begin []byte, size int) string {
	if size <= len(begin) {
		return l.KeyText(begin)
	}
	whole := 0
	for whole < len(begin) {
		_, n := keyPart(begin[whole:])
		if n == 0 {
			break
		}
		whole += n
	}
	key := append([]byte(nil), begin...)
	if rest := len(key) - whole; rest > 1 && key[whole] <= maxLiteral {
		key[whole], whole = byte(rest-1), len(key)
	}
	return strings.TrimSuffix(l.KeyText(key[:whole]), " ") + "..."
}
