package main

import (
	"cmp"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"regexp"
	"strings"

	"github.com/stint-io/stint/server"
)

// overTLS are the options by which curl reaches the HTTP listener: it trusts the certificate of the service
// itself, or any where that one is not of the address that is shown.
func overTLS(o *server.Options, addr net.Addr) string {
	file := cmp.Or(o.HTTPTLS.Cert, o.TLS.Cert)
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil || !certificateOf(file, host) {
		return "-k "
	}
	return "--cacert " + quoted(file) + " "
}

// certificateOf says whether the first certificate in a PEM file is of a host.
func certificateOf(file, host string) bool {
	text, err := os.ReadFile(file)
	if err != nil {
		return false
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return false
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	return err == nil && leaf.VerifyHostname(host) == nil
}

// proofs are lines that say what else a client of the HTTP listener needs.
func proofs(o *server.Options, onHTTP bool) (lines []string) {
	authority := cmp.Or(o.HTTPTLS.ClientCA, o.TLS.ClientCA)
	asks := onHTTP && authority != "" && authority != server.NoFile
	const certificate, token = "add --cert FILE --key FILE: ", "add -H 'Authorization: Bearer TOKEN': "
	switch {
	case asks && o.AuthFile != "":
		return []string{certificate + "a client certificate of " + authority + " that " + o.AuthFile + " names, or", token + "a token of an identity there, with the role take"}
	case asks:
		return []string{certificate + "a client certificate of " + authority}
	case o.AuthFile != "":
		return []string{token + "a token of an identity in " + o.AuthFile + ", with the role take"}
	}
	return nil
}

// quoted is a word as a shell takes it.
func quoted(word string) string {
	if regexp.MustCompile(`^[\w./:@%+,-]+$`).MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
