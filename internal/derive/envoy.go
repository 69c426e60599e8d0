package derive

import (
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
)

// envoyNames are the names by which Envoy sends what limits call otherwise: that of the action remote_address, and the
// pseudo header fields of HTTP/2, which are the usual names of entries with their values.
var envoyNames = map[string]string{"remote_address": ip, ":path": "path", ":authority": "host", ":method": "method", ":scheme": "proto"}

// Translates reports whether a descriptor of Envoy's may have the attribute in another form, or under another name.
func (*Source) Translates(name string) bool {
	switch name {
	case ip, "path", "host", "method", "proto", "*":
		return true
	}
	return false
}

// Translate returns the entries of a descriptor of Envoy's as other transports give them: the client's address is ip, a
// path comes in its readings, a host without its port. An entry under the limit's own name takes precedence over one
// under Envoy's. The entries stay as well under the names that they came with, and are not changed.
func (*Source) Translate(entries []limit.Attribute) []limit.Attribute {
	out, own := entries, false
	for i, a := range entries {
		name, renamed := envoyNames[a.Name]
		switch {
		case renamed:
			if _, there := value(out, name); there {
				continue
			}
		case a.Name == "path", a.Name == "host":
			name = a.Name
		default:
			continue
		}
		if !own {
			own, out = true, append(make([]limit.Attribute, 0, len(entries)+4), entries...)
		}
		switch {
		case name == "path":
			paths := identify.AppendPath(nil, a.Value)
			if !renamed && len(paths) > 0 {
				out[i], paths = paths[0], paths[1:]
			}
			out = append(out, paths...)
		case name == "host" && renamed:
			out = append(out, limit.Attribute{Name: name, Value: forwarded.Host(a.Value)})
		case name == "host":
			out[i].Value = forwarded.Host(a.Value)
		default:
			out = append(out, limit.Attribute{Name: name, Value: a.Value})
		}
	}
	return out
}
