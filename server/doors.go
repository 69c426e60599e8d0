package server

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/stint-io/stint/internal/listen"
)

// doors are the listeners of a server.
type doors struct {
	http, grpc, admin net.Listener
	resp, spoe        net.Listener // nil = there is none
}

// all are those that are open.
func (d *doors) all() (list []net.Listener) {
	for _, l := range []net.Listener{d.http, d.grpc, d.admin, d.resp, d.spoe} {
		if l != nil {
			list = append(list, l)
		}
	}
	return list
}

func (d *doors) close() (err error) {
	for _, l := range d.all() {
		err = errors.Join(err, l.Close())
	}
	return err
}

func (d *doors) addrs() Addrs {
	a := Addrs{HTTP: d.http.Addr(), GRPC: d.grpc.Addr(), Admin: d.admin.Addr()}
	if d.resp != nil {
		a.RESP = d.resp.Addr()
	}
	if d.spoe != nil {
		a.SPOE = d.spoe.Addr()
	}
	return a
}

// listen opens all listeners or none.
func (s *Server) listen(ctx context.Context) (*doors, error) {
	d := new(doors)
	to := map[string]*net.Listener{"http": &d.http, "grpc": &d.grpc, "admin": &d.admin, "resp": &d.resp, "spoe": &d.spoe}
	for _, one := range s.opts.listeners() {
		l, err := listen.Listen(ctx, one.addr)
		if err != nil {
			err = fmt.Errorf("server: cannot listen for %s: %w; choose another address with --%s", one.name, err, one.name)
			return nil, errors.Join(err, d.close())
		}
		*to[one.name] = s.connections.bound(one.name, l)
		if one.name == "grpc" && s.security.grpc == nil {
			d.grpc = &wrongPort{d.grpc, s.atGRPC}
		}
		if !listen.Local(one.addr) {
			s.opts.Logger.Warn("listening beyond this machine", "listener", one.name, "address", l.Addr().String())
		}
	}
	return d, nil
}
