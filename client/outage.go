package client

import (
	"context"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/stint-io/stint/limit"
)

// outage bounds what is logged while no coordinator answers: each address and cause once, and
// then once per faultGap while it lasts. An outage that ends and comes back is logged as any
// fault is. It is of the goroutine that connects.
type outage struct {
	known  map[string]outageCause
	logged bool // in this outage
}

type outageCause struct {
	knownFault
	at limit.Time // when it was logged last
}

// due reports whether the failure of a try is to be logged, and counts it.
func (o *outage) due(now limit.Time, address string, err error) bool {
	key := address + " " + strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1 // the port of this end, which is another one each time
		}
		return r
	}, err.Error())
	c, ok := o.known[key]
	if ok && !c.healed && now < c.at.Add(faultGap) || (!ok || c.healed) && !c.log(now) {
		return false
	}
	if len(o.known) >= maxFaults || o.known == nil {
		o.known = map[string]outageCause{}
	}
	c.at = now
	o.known[key], o.logged = c, true
	return true
}

// answered ends the outage, and reports whether something of it was logged.
func (o *outage) answered() bool {
	if !o.logged {
		return false
	}
	o.logged = false
	for key, c := range o.known {
		c.healed = true
		o.known[key] = c
	}
	return true
}

// logOutage logs that a try to reach the coordinator has failed.
func (a *lane) logOutage(ctx context.Context, address string, err error, pause time.Duration) {
	if a.outage.due(a.client.now(), address, err) {
		attrs := []slog.Attr{slog.String("address", address), slog.Any("error", err), slog.Duration("next_try_in", pause)}
		if hint := outageHint(err); hint != "" {
			attrs = append(attrs, slog.String("hint", hint))
		}
		a.client.log.LogAttrs(ctx, slog.LevelWarn, "no connection to the coordinator: it is tried again all the time, and leases run on until they end", attrs...)
	}
}

// outageHint is what to do about an outage that does not end by itself; "" = nothing is known.
func outageHint(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "error reading server preface: http2: "), strings.Contains(text, "looked like an HTTP/1.1 header"):
		return "another protocol is spoken there: give the address of the coordinator's gRPC listener (--grpc), such as 127.0.0.1:8081"
	case strings.Contains(text, "error reading server preface"):
		return "is TLS expected there? give the client its certificates, and the address of the coordinator's gRPC listener (--grpc)"
	case strings.Contains(text, "first record does not look like a TLS handshake"):
		return "that listener has no TLS: leave it out of the client, or start the service with --tls-cert and --tls-key"
	case strings.Contains(text, "connection refused"):
		return "is the service running? start one with stint serve, or give the address of its gRPC listener (--grpc)"
	}
	return ""
}

// logAnswer logs that the coordinator answers, where it was logged that none did.
func (a *lane) logAnswer(ctx context.Context, address string) {
	if a.outage.answered() {
		a.client.log.LogAttrs(ctx, slog.LevelInfo, "the coordinator answers again", slog.String("address", address))
	}
}
