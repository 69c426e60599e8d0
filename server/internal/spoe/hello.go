package spoe

import (
	"strings"
)

// hello is what a gateway says of itself.
type hello struct {
	versions, capabilities string
	most                   uint64
	check                  bool

	hasVersions, hasCapabilities, hasMost bool
}

const (
	ourVersion = "2.0"
	pipelining = "pipelining"
)

// parseHello reads the payload of a HAPROXY-HELLO.
func parseHello(b []byte) (h hello, err error) {
	for len(b) > 0 {
		var name []byte
		var v value
		if name, b, err = text(b); err != nil {
			return h, err
		}
		if v, b, err = typed(b); err != nil {
			return h, err
		}
		switch string(name) {
		case "supported-versions":
			h.versions, h.hasVersions = string(v.bytes), v.kind == typeString
		case "max-frame-size":
			h.most, h.hasMost = v.n, v.kind == typeUint32
		case "capabilities":
			h.capabilities, h.hasCapabilities = string(v.bytes), v.kind == typeString
		case "healthcheck":
			h.check = v.kind == typeBool && v.flag
		}
	}
	switch {
	case !h.hasVersions:
		return h, &fault{statusNoVersion, "supported-versions is missing"}
	case !h.hasMost:
		return h, &fault{statusNoSize, "max-frame-size is missing"}
	case !h.hasCapabilities:
		return h, &fault{statusNoCaps, "capabilities is missing"}
	case !h.speaks():
		return h, &fault{statusVersion, "this agent speaks version " + ourVersion}
	case h.most < smallestMost:
		return h, &fault{statusSize, "max-frame-size is below 256 bytes"}
	}
	return h, nil
}

// speaks reports whether our version is among those of the gateway, which names the last one of each major version.
func (h *hello) speaks() bool {
	for v := range strings.SplitSeq(h.versions, ",") {
		if major, _, _ := strings.Cut(strings.TrimSpace(v), "."); major == "2" {
			return true
		}
	}
	return false
}

func (h *hello) pipelines() bool {
	for c := range strings.SplitSeq(h.capabilities, ",") {
		if strings.TrimSpace(c) == pipelining {
			return true
		}
	}
	return false
}

// appendAnswer appends the AGENT-HELLO.
func (h *hello) appendAnswer(b []byte, most uint64) []byte {
	capabilities := ""
	if h.pipelines() {
		capabilities = pipelining
	}
	start := len(b)
	b = begin(b, frameAgentHello, 0, 0)
	b = appendPairText(b, "version", ourVersion)
	b = appendPairNumber(b, "max-frame-size", most)
	return end(appendPairText(b, "capabilities", capabilities), start)
}
