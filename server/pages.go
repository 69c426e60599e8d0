package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"

	"github.com/stint-io/stint/internal/listen"
)

// pages are listeners that show something and change nothing, for tools that were made for Envoy's own
// service. The zero value has none.
type pages struct {
	list []*http.Server
	open []net.Listener
}

// checkPages returns what is wrong with their addresses.
func (o *Options) checkPages() (errs []error) {
	prometheus, path := prometheusAt(o.EnvoyPrometheus)
	if o.EnvoyPrometheus != "" && (path == "/" || strings.ContainsAny(path, "{} ?")) {
		errs = append(errs, fmt.Errorf("server: the envoy-prometheus address %q has no path, write it as 127.0.0.1:9090/metrics", o.EnvoyPrometheus))
	}
	for _, p := range []struct{ name, addr string }{{"envoy-debug", o.EnvoyDebugAddr}, {"envoy-prometheus", prometheus}} {
		if p.addr == "" {
			continue
		}
		if err := listen.Check(p.addr); err != nil {
			errs = append(errs, fmt.Errorf("server: the %s address %q: %w, write it as 127.0.0.1:6070", p.name, p.addr, err))
		} else if !listen.Local(p.addr) && !o.Insecure {
			errs = append(errs, fmt.Errorf("server: the %s address %s can be reached from other machines, and shows limits to everybody there: listen on 127.0.0.1, or accept it with --insecure", p.name, p.addr))
		}
	}
	return errs
}

// pagesOf are the listeners of o, with what they show.
func (s *Server) pagesOf() (list []page) {
	if s.opts.EnvoyDebugAddr != "" {
		list = append(list, page{"envoy-debug", s.opts.EnvoyDebugAddr, s.debugPage()})
	}
	if s.opts.EnvoyPrometheus != "" {
		addr, path := prometheusAt(s.opts.EnvoyPrometheus)
		list = append(list, page{"envoy-prometheus", addr, s.prometheusPage(path)})
	}
	return list
}

// page is one listener.
type page struct {
	name, addr string
	handler    http.Handler
}

// debugPage is the debug port of Envoy's own service, without what changes or slows down the process.
func (s *Server) debugPage() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		// A failed write means that the client has gone.
		_, _ = io.WriteString(w, "/rlconfig: print out the currently loaded configuration for debugging\n/stats: print out stats\n")
	})
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) {
		out := bufio.NewWriter(w)
		each := func(name string, value uint64) { fmt.Fprintf(out, "%s: %d\n", name, value) }
		if s.hits != nil {
			s.statistics(each)
		} else {
			s.serviceCounts(each)
		}
		_ = out.Flush() // see above
	})
	mux.HandleFunc("GET /rlconfig", s.rlconfig)
	return mux
}

// listen opens all pages or none.
func (p *pages) listen(ctx context.Context, s *Server) error {
	for _, one := range s.pagesOf() {
		l, err := listen.Listen(ctx, one.addr)
		if err != nil {
			p.close()
			return fmt.Errorf("server: cannot listen for %s: %w; choose another address with --%s", one.name, err, one.name)
		}
		p.open = append(p.open, s.connections.bound("pages", l))
		p.list = append(p.list, newHTTP(ownHosts(s.opts.HTTPHosts, &s.opts, one.handler), s.opts.Logger))
		s.opts.Logger.Info("listening", "listener", one.name, "address", l.Addr().String())
	}
	return nil
}

// serve serves them, until close.
func (p *pages) serve(fail func(error)) {
	var all sync.WaitGroup
	for i, h := range p.list {
		all.Go(func() {
			if err := h.Serve(p.open[i]); !errors.Is(err, http.ErrServerClosed) {
				fail(err)
			}
		})
	}
	all.Wait()
}

// close ends them. What is asked of them now may be cut: they only show something.
func (p *pages) close() {
	for _, h := range p.list {
		_ = h.Close()
	}
	for _, l := range p.open {
		_ = l.Close() // is closed already, if it was served
	}
}
