package server

import (
	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/server/internal/resp"
)

// respDoor is the listener for clients of Redis. The zero value has none.
type respDoor struct {
	*resp.Server // nil = there is none
	door
}

// openRESP makes the door, if there is an address for it.
func (s *Server) openRESP() error {
	if s.opts.RESPAddr == "" || s.host != nil {
		return nil
	}
	o := resp.Options{
		Engine: s.engine, Reservations: s.budgets.reservations, Identities: s.security.guard.live, Version: s.opts.Version,
		Fault: func(command string, p any) { report(s.opts.Logger, command, p) },
	}
	if s.security.resp != nil {
		o.TLS = s.security.resp
	}
	if s.storage.shared != nil {
		o.NoBuckets = "the limits of CL.THROTTLE and GCRA are kept in the process that is asked, and the counters of this one are in a store that others share: ask a server with store: memory, or RL.TAKE with a limit of the file"
	} else {
		var err error
		if o.Buckets, err = override.NewBuckets(s.storage); err != nil {
			return err
		}
	}
	s.resp = respDoor{resp.New(o), openDoor()}
	return nil
}
