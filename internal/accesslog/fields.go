package accesslog

import (
	"slices"
	"strings"
)

// known are the names that servers and people give to fields, in lower case with underscores. Of
// several in one log the first counts.
var known = map[int][]string{
	toTime: {
		"msec", "start_time", "ts", "time_iso8601", "timestamp", "time", "time_local", "datetime", "date",
	},
	toTook: {
		"request_time", "duration", "took", "latency", "duration_ms", "latency_ms", "took_ms", "request_time_ms", "duration_s",
		"httprequest.latency",
	},
	toStatus:  {"status", "response_code", "status_code", "code", "httprequest.status"},
	toRequest: {"request", "request_line"},
	toMethod:  {"request_method", "method", "request.method", "verb", "httprequest.requestmethod"},
	toTarget: {
		"request_uri", "path", "uri", "document_uri", "url", "target", "request.uri", "request_path", "httprequest.requesturl",
	},
	toQuery: {"args", "query_string", "query"},
}

// endTimes are names of times that are taken when the answer has been sent.
var endTimes = []string{"msec", "ts", "time_iso8601", "time_local"}

// attributes are such names of attributes.
var attributes = map[string][]string{
	"ip": {
		"ip", "client_ip", "request.client_ip", "remote_addr", "request.remote_ip", "remote_ip", "downstream_remote_address", "client",
		"httprequest.remoteip", "client_address",
	},
	"user":  {"user", "remote_user", "user_id", "userid", "username"},
	"host":  {"host", "http_host", "authority", "request.host", "server_name", ":authority"},
	"proto": {"proto", "scheme"},
	"size":  {"content_length", "bytes_received", "request_size"},
	"sni":   {"sni", "ssl_server_name", "requested_server_name", "request.tls.server_name"},
}

// plain is a name in lower case, with underscores in place of hyphens.
func plain(name string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, "@")), "-", "_")
}

// sinkOf says what a field of that name is for. Names within objects come with a dot before each.
func (p *Parser) sinkOf(field string) *sink {
	given := strings.TrimPrefix(field, "$")
	if p.want.Cost != "" && given == strings.TrimPrefix(p.want.Cost, "$") {
		return &sink{to: toCost}
	}
	for i, name := range p.want.Attributes {
		if f := p.want.Fields[name]; f != "" && strings.TrimPrefix(f, "$") == given {
			return &sink{to: firstValue + i, kind: kindOf(name)}
		}
	}
	name := plain(given)
	for to, names := range known {
		if i := slices.Index(names, name); i >= 0 {
			return &sink{to: to, rank: 1 + i, unit: unitOf(name), ends: to == toTime && slices.Contains(endTimes, name)}
		}
	}
	for i, attribute := range p.want.Attributes {
		if p.want.Fields[attribute] != "" {
			continue
		}
		if rank, ok := p.fits(attribute, given, name); ok {
			return &sink{to: firstValue + i, rank: 1 + rank, kind: kindOf(attribute)}
		}
	}
	return &sink{to: none}
}

// fits reports whether a field may hold an attribute.
func (p *Parser) fits(attribute, given, name string) (rank int, ok bool) {
	if attribute == given {
		return 0, true
	}
	if i := slices.Index(attributes[attribute], name); i >= 0 {
		return 1 + i, true
	}
	kind, key, ok := strings.Cut(attribute, ":")
	if !ok {
		return 1, plain(attribute) == name
	}
	key = plain(key)
	switch kind {
	case "header":
		for i, n := range []string{"http_" + key, key, "request.headers." + key} {
			if n == name {
				return 1 + i, true
			}
		}
		if key == "referer" && name == "referrer" || key == "user_agent" && name == "agent" {
			return 4, true
		}
	case "cookie":
		return 1, name == "cookie_"+key
	case "query":
		return 1, name == "arg_"+key
	}
	return 0, false
}

func kindOf(attribute string) kind {
	switch attribute {
	case "ip", "user_ip":
		return asAddress
	case "host", "sni":
		return asHost
	}
	return asText
}

func unitOf(name string) unit {
	switch {
	case strings.HasSuffix(name, "_ms"):
		return milliseconds
	case strings.HasSuffix(name, "_s"), name == "request_time":
		return seconds
	}
	return anyUnit
}
