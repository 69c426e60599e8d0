package server

import (
	"context"
	"net"

	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/server/internal/resp"
)

// respDoor is the listener for clients of Redis. The zero value has none.
type respDoor struct {
	*resp.Server // nil = there is none

	end, cut   context.Context
	drain, now context.CancelFunc
	ended      chan struct{} // closed when all connections are
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
	d := &s.resp
	d.Server, d.ended = resp.New(o), make(chan struct{})
	d.end, d.drain = context.WithCancel(context.Background())
	d.cut, d.now = context.WithCancel(context.Background())
	return nil
}

// serve answers clients until drain is called.
func (d *respDoor) serve(l net.Listener) error {
	defer close(d.ended)
	return d.Serve(d.end, d.cut, l)
}

// shutdown answers what is on its way, and cuts what has not ended when ctx does.
func (d *respDoor) shutdown(ctx context.Context) (cut bool) {
	if d.Server == nil {
		return false
	}
	d.drain()
	defer d.now()
	select {
	case <-d.ended:
		return false
	case <-ctx.Done():
		return true
	}
}
