package server

import (
	"context"
	"net"
)

// door is how long a listener serves that keeps its own connections. The zero value serves nothing.
type door struct {
	end, cut   context.Context
	drain, now context.CancelFunc
	ended      chan struct{} // closed when all connections are; nil = there is no listener
}

func openDoor() (d door) {
	d.ended = make(chan struct{})
	d.end, d.drain = context.WithCancel(context.Background())
	d.cut, d.now = context.WithCancel(context.Background())
	return d
}

// run serves until shutdown is called.
func (d *door) run(serve func(ctx, cut context.Context, l net.Listener) error, l net.Listener) error {
	defer close(d.ended)
	return serve(d.end, d.cut, l)
}

// shutdown answers what is on its way, and cuts what has not ended when ctx does.
func (d *door) shutdown(ctx context.Context) (cut bool) {
	if d.ended == nil {
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
