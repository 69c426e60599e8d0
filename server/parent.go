package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/lending"
)

// Parent makes a server one of a site: what it lends of limits shared by leases it is lent by a
// parent, which is a server too and may have a parent itself. The zero value is a server that has
// all of its limits.
type Parent struct {
	// Addresses are those of the parent's gRPC port, host:port, tried in turn; none = no parent.
	Addresses []string
	// Site names the site: no other server below the same parent has its name. "" = the name of
	// the host.
	Site string
	// Expiry is what the site lends when its lease is over and no parent answers: "pessimistic" =
	// nothing, "safe" = the limit's safe share of a site, "optimistic" = the whole limit; "" =
	// pessimistic, the only one that keeps the limit whatever happens.
	Expiry string
	// CA is a PEM file with the authorities of the parent's certificate; Cert and Key are the
	// certificate that is shown to it. All "" = plain text. TokenFile is a file with the token
	// that proves who this site is. They are read at each connection.
	CA, Cert, Key, TokenFile string
}

var expiryModes = map[string]agent.ExpiryMode{"": agent.Pessimistic, "pessimistic": agent.Pessimistic, "safe": agent.Safe, "optimistic": agent.Optimistic}

// complete fills in the name of the site and returns everything that is wrong.
func (p *Parent) complete() error {
	if len(p.Addresses) == 0 {
		if p.Site != "" || p.Expiry != "" || p.CA != "" || p.Cert != "" || p.Key != "" || p.TokenFile != "" {
			return errors.New("server: a site, its expiry or the certificates and the token for its parent mean nothing without a parent: give its address with --parent, such as 10.0.0.7:8081")
		}
		return nil
	}
	var errs []error
	for _, a := range p.Addresses {
		if _, _, err := net.SplitHostPort(a); err != nil {
			if strings.ContainsAny(a, "@/") {
				a, err = "given", errors.New("it is a URL") // which may have a password
			}
			errs = append(errs, fmt.Errorf("server: the parent %q is not an address: %w; write it as 10.0.0.7:8081, the gRPC port of the parent", a, err))
		}
	}
	if p.Site == "" {
		p.Site, _ = os.Hostname() // "" where it cannot be read
	}
	if p.Site == "" || len(p.Site) > leasewire.MaxInstance || strings.ContainsFunc(p.Site, func(r rune) bool { return r <= ' ' || r == '/' || r == 0x7f }) {
		errs = append(errs, fmt.Errorf("server: the name of the site is %q, want 1 to %d bytes without spaces and slashes: give it with --site, such as eu-1", p.Site, leasewire.MaxInstance))
	}
	if _, ok := expiryModes[p.Expiry]; !ok {
		errs = append(errs, fmt.Errorf("server: --parent-expiry is %q, want pessimistic, safe or optimistic", p.Expiry))
	}
	if (p.Cert == "") != (p.Key == "") {
		errs = append(errs, errors.New("server: a certificate for the parent needs its key: give both --parent-cert and --parent-key"))
	}
	return errors.Join(errs...)
}

// options returns how the service of leases reaches its parent; nil = it has none.
func (p *Parent) options() (*lending.Parent, error) {
	if len(p.Addresses) == 0 {
		return nil, nil
	}
	o := client.Options{TokenFile: p.TokenFile, TLSFiles: client.TLSFiles{CA: p.CA, Cert: p.Cert, Key: p.Key}}
	if p.CA != "" || p.Cert != "" {
		if _, err := o.TLSFiles.Config(); err != nil {
			return nil, fmt.Errorf("server: TLS to the parent: %w", err)
		}
	}
	transport := client.NewTransport(o)
	return &lending.Parent{
		Addresses: p.Addresses, Site: p.Site, Expiry: expiryModes[p.Expiry],
		Connect: func(ctx context.Context, address string) (lending.ParentStream, error) {
			return transport.Connect(ctx, address)
		},
	}, nil
}

// warnOfSites says which limits a parent knows nothing of.
func (p *Parent) warnOfSites(o *Options, set *rules.Set) {
	if len(p.Addresses) == 0 {
		return
	}
	for _, l := range set.Limits() {
		if l.Sharing == rules.SharingSuppressed {
			o.Logger.Warn("a limit shared by suppression holds for this site alone: a parent lends limits with sharing: leased", "limit", l.Name, "site", p.Site)
		}
	}
}
