package main

import (
	"github.com/spf13/pflag"

	"github.com/stint-io/stint/server"
)

// parentFlags are the flags of a server of a site.
func parentFlags(f *pflag.FlagSet, p *server.Parent) {
	f.StringSliceVar(&p.Addresses, "parent", nil, "gRPC address of the server that lends the capacity of limits shared by leases to this site; may be repeated")
	f.StringVar(&p.Site, "site", "", "name of this site at its parent, which no other site has (default: the name of the host)")
	f.StringVar(&p.Expiry, "parent-expiry", "", "what the site lends when its lease is over and no parent answers: pessimistic, safe or optimistic (default pessimistic)")
	f.StringVar(&p.CA, "parent-ca", "", "PEM file with the authorities of the parent's certificate (default: plain text)")
	f.StringVar(&p.Cert, "parent-cert", "", "PEM file with the certificate that this site shows its parent")
	f.StringVar(&p.Key, "parent-key", "", "PEM file with its private key")
	f.StringVar(&p.TokenFile, "parent-token-file", "", "file with the token that proves to the parent who this site is")
}
