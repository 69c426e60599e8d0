package server

import (
	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/server/internal/spoe"
)

// spoeDoor is the listener for HAProxy. The zero value has none.
type spoeDoor struct {
	*spoe.Server // nil = there is none
	door
}

// openSPOE makes the door, if there is an address for it. fields are the header fields that HAProxy may pass on.
func (s *Server) openSPOE(fields answer.Options) {
	if s.opts.SPOEAddr == "" || s.host != nil {
		return
	}
	o := spoe.Options{
		Engine: s.engine, Answer: fields, Identities: s.security.guard.live,
		Fault: func(call string, p any) { report(s.opts.Logger, call, p) },
	}
	if s.security.spoe != nil {
		o.TLS = s.security.spoe
	}
	s.spoe = spoeDoor{spoe.New(o), openDoor()}
}
