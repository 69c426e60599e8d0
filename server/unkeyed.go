package server

import (
	"strings"

	"github.com/stint-io/stint/rules"
)

// unkeyed says once of a limit that it limits nobody. A misspelled key and a gateway that sends no such attribute look
// like traffic within the limit.
func (s *Server) unkeyed(l *rules.Limit, why string) {
	s.opts.Logger.Warn("a limit was meant for ten requests and has applied to none, for want of its key: correct the key, have the caller send the attribute, or write what missing: says of requests without it",
		"limit", l.Name, "key", strings.Join(l.Key, ", "), "file", l.File, "line", l.Line, "why", why)
}
