package access

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// bounds are those of the file. A thousand identities are a tenth of it.
var bounds = document.Bounds{Bytes: 1 << 20, Smaller: "remove identities that nobody uses", Depth: 16, Keys: 100, Anchors: 100, Aliased: 1 << 14}

// least is the length of a token in a file, in bytes. A shorter one can be guessed.
const least = 16

// properName is a name of an identity. It has no slash: instances are called after their identity, a
// slash, and their own name.
var properName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$`)

// reader reads the file of --auth.
type reader struct {
	*document.Document
	table *Table
	seen  map[string]*document.Node
	open  func(path string) ([]byte, error)
}

// Parse reads the text of a file, and the token files that it names by open. The error has every
// fault, with line, column and a way out.
func Parse(path string, text []byte, open func(path string) ([]byte, error)) (*Table, error) {
	faults := new(document.Faults)
	r := &reader{Document: document.Read(path, text, bounds, faults), table: newTable(), seen: map[string]*document.Node{}, open: open}
	if faults.Count() == 0 {
		r.file()
	}
	var list []error
	for _, f := range faults.Sorted() {
		f.Excerpt = "" // somebody may have written a token into the file
		list = append(list, errors.New(f.Text()))
	}
	if list != nil {
		return nil, errors.Join(list...)
	}
	return r.table, nil
}

func (r *reader) file() {
	if r.Root == nil || r.Root.Kind != document.Map {
		r.Fault(r.Root, "begin with identities:", "the file says nothing of who may do what")
		return
	}
	r.keys(r.Root, "identities")
	list := r.Root.Get("identities")
	if list == nil || list.Kind != document.List || len(list.Items) == 0 {
		r.Fault(r.Root, "write - {name: edge, token_file: edge.token, roles: [take]} below identities:", "there are no identities, so nobody may do anything")
		return
	}
	for _, n := range list.Items {
		r.identity(n)
	}
}

// keys reports the keys of a map that are not known.
func (r *reader) keys(n *document.Node, known ...string) {
	for i := range n.Fields {
		key := n.Fields[i].Key
		if contains(known, key.Text) {
			continue
		}
		hint := document.Meant(key.Text, known)
		if hint == "" {
			hint = "the keys are " + strings.Join(known, ", ")
		}
		r.Fault(key, hint, "unknown key %q", key.Text)
	}
}

func contains(list []string, s string) bool {
	for _, one := range list {
		if one == s {
			return true
		}
	}
	return false
}

func (r *reader) identity(n *document.Node) {
	if n.Kind != document.Map {
		r.Wants(n, "an identity", "write it as {name: edge, token_file: edge.token, roles: [take]}")
		return
	}
	r.keys(n, "name", "token_sha256", "token_file", "certificate", "roles")
	id := &Identity{}
	if v := n.Get("name"); v == nil {
		r.Fault(n, "give it a name of letters, digits, dots and hyphens", "the identity has no name")
		return
	} else if id.Name = v.Text; !properName.MatchString(v.Text) || v.Kind != document.Text {
		r.Wants(v, "a name of 1 to 64 letters, digits, dots, underscores and hyphens", "")
		return
	} else if first := r.seen[id.Name]; first != nil {
		r.Fault(v, "put all that is of one identity into one entry", "the identity %q is there twice, first on line %d", id.Name, first.Line)
		return
	} else {
		r.seen[id.Name] = v
	}
	proofs := 0
	for _, v := range n.Get("token_sha256").Each() {
		proofs++
		r.sum(v, id)
	}
	for _, v := range n.Get("token_file").Each() {
		proofs++
		r.tokenFile(v, id)
	}
	for _, v := range n.Get("certificate").Each() {
		proofs++
		r.certificate(v, id)
	}
	if proofs == 0 {
		r.Fault(n, "add token_file:, token_sha256: or certificate:", "nothing proves the identity %q", id.Name)
	}
	roles := n.Get("roles").Each()
	if len(roles) == 0 {
		r.Fault(n, "add roles: [take]; the roles are take, lease, admin, member", "the identity %q has no roles", id.Name)
	}
	for _, v := range roles {
		r.role(v, id)
	}
	r.table.identities = append(r.table.identities, id)
}

// sum reads the SHA-256 of a token.
func (r *reader) sum(n *document.Node, id *Identity) {
	var sum [sha256.Size]byte
	// A sum of digits alone is a number to YAML.
	if len(n.Text) != 2*len(sum) || (n.Kind != document.Text && n.Kind != document.Int) {
		// Not the text: it may be the token itself.
		r.Faults.Add(document.Fault{File: r.Name, Line: n.Line, Column: n.Column, Message: "want the SHA-256 of a token: 64 hexadecimal digits, in quotes", Hint: `printf %s "$TOKEN" | sha256sum`})
		return
	}
	if _, err := hex.Decode(sum[:], []byte(n.Text)); err != nil {
		r.Faults.Add(document.Fault{File: r.Name, Line: n.Line, Column: n.Column, Message: "want the SHA-256 of a token: 64 hexadecimal digits, in quotes", Hint: `printf %s "$TOKEN" | sha256sum`})
		return
	}
	if !r.table.addToken(sum, id) {
		r.Fault(n, "give each identity a token of its own", "the token is that of another identity as well")
	}
}

// tokenFile reads tokens from a file, one on each line.
func (r *reader) tokenFile(n *document.Node, id *Identity) {
	if n.Kind != document.Text || n.Text == "" {
		r.Wants(n, "the path of a file with a token", "")
		return
	}
	path := n.Text
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(r.Name), path)
	}
	r.table.files = append(r.table.files, path)
	text, err := r.open(path)
	if err != nil {
		var of *fs.PathError
		if errors.As(err, &of) {
			err = of.Err // not the path: somebody may have written the token there
		}
		r.Fault(n, "write the token into it, or correct the path", "the token cannot be read: %v", err)
		return
	}
	found := false
	for line := range strings.SplitSeq(string(text), "\n") {
		token := strings.TrimSpace(line)
		if token == "" {
			continue
		}
		found = true
		c, err := TokenOf(token)
		switch {
		case err != nil:
			r.Fault(n, "write one token of visible characters without commas on each line", "the file has a line that is no token")
		case len(token) < least:
			r.Fault(n, "make one with openssl rand -hex 32", "a token in the file has %d bytes, want at least %d: shorter ones can be guessed", len(token), least)
		case !r.table.addToken(c.sum, id):
			r.Fault(n, "give each identity a token of its own", "a token in the file is that of another identity as well")
		}
	}
	if !found {
		r.Fault(n, "write the token into it", "the file has no token")
	}
}

// certificate reads one name of client certificates.
func (r *reader) certificate(n *document.Node, id *Identity) {
	const hint = "write it as {uri: spiffe://shop/orders}, {dns: orders.shop.internal} or {cn: orders}"
	if n.Kind != document.Map || len(n.Fields) != 1 {
		r.Wants(n, "one name of a certificate", hint)
		return
	}
	r.keys(n, "uri", "dns", "cn")
	for kind, key := range []string{"uri", "dns", "cn"} {
		v := n.Get(key)
		switch {
		case v == nil:
		case v.Kind != document.Text || v.Text == "":
			r.Wants(v, "a name", hint)
		case strings.Contains(v.Text, "*"):
			r.Fault(v, "name each certificate", "the name of a certificate has no patterns")
		default:
			at := name{nameKind(kind), v.Text}
			if other := r.table.names[at]; other != nil && other != id {
				r.Fault(v, "give each identity a name of its own", "the name is that of the identity %q as well", other.Name)
				continue
			}
			r.table.names[at] = id
		}
	}
}

var roleWords = []string{"take", "lease", "admin", "member"}

func (r *reader) role(n *document.Node, id *Identity) {
	if n.Kind == document.Map && len(n.Fields) == 1 && n.Fields[0].Key.Text == "lease" {
		r.leases(n.Fields[0].Value, id)
		return
	}
	i, ok := r.Word(n, roleWords...)
	if !ok {
		return
	}
	switch roleWords[i] {
	case "take":
		id.take = true
	case "admin":
		id.admin = true
	case "member":
		id.member = true
	case "lease":
		id.leases = &Leases{Limits: []string{"*"}, MaxWeight: DefaultMaxWeight, MaxStreams: DefaultMaxStreams, MaxKeys: DefaultMaxKeys}
	}
}

func (r *reader) leases(n *document.Node, id *Identity) {
	l := &Leases{MaxWeight: DefaultMaxWeight, MaxStreams: DefaultMaxStreams, MaxKeys: DefaultMaxKeys}
	id.leases = l
	if n.Kind != document.Map {
		r.Wants(n, "what may be lent", `write it as lease: {limits: ["orders.*"], max_band: 3, max_weight: 10}`)
		return
	}
	r.keys(n, "limits", "max_band", "max_weight", "max_streams", "max_keys")
	for _, v := range n.Get("limits").Each() {
		if v.Kind != document.Text || v.Text == "" {
			r.Wants(v, "the name of a limit, or a pattern such as \"orders.*\"", "")
			continue
		}
		l.Limits = append(l.Limits, v.Text)
	}
	if len(l.Limits) == 0 {
		r.Fault(n, `add limits: ["orders.*"]; "*" is every limit`, "no limit may be lent")
	}
	number := func(key string, lowest, highest int64, set func(int64)) {
		v := n.Get(key)
		if v == nil {
			return
		}
		i, err := strconv.ParseInt(v.Text, 10, 64)
		if v.Kind != document.Int || err != nil || i < lowest || i > highest {
			r.Wants(v, fmt.Sprintf("a number from %d to %d", lowest, highest), "")
			return
		}
		set(i)
	}
	number("max_band", 0, math.MaxUint8, func(i int64) { l.MaxBand = uint8(i) })
	number("max_weight", 1, math.MaxUint32, func(i int64) { l.MaxWeight = uint32(i) })
	number("max_streams", 1, 1<<20, func(i int64) { l.MaxStreams = int(i) })
	number("max_keys", 1, 1<<30, func(i int64) { l.MaxKeys = int(i) })
}

// maxTokenFile bounds what is read of a token file.
const maxTokenFile = 64 << 10

// readTokenFile reads a file of tokens.
func readTokenFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxTokenFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxTokenFile)
	}
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	return bytes.TrimPrefix(text, []byte("\ufeff")), err // some editors begin with a byte order mark
}
