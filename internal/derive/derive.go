// Package derive finds attributes of a request from others: the region and the autonomous system of an address,
// the client behind a proxy, and the claims of a verified token. One place does it for all doors, since all of them
// give ip and header:NAME.
package derive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync/atomic"

	"github.com/stint-io/stint/internal/address"
	"github.com/stint-io/stint/internal/claims"
	"github.com/stint-io/stint/internal/filewatch"
	"github.com/stint-io/stint/internal/geo"
	"github.com/stint-io/stint/limit"
)

// The names of derived attributes; a claim has its name behind the colon.
const (
	Region = "region"
	ASN    = "asn"
	UserIP = "user_ip"
	Claim  = "claim:"

	ip = "ip"
)

// Config says where from. The zero value derives user_ip from ip, and nothing else.
type Config struct {
	Country, ASN     string   // paths of databases; "" = none
	Keys             string   // path or URL of a JSON web key set; "" = no token is believed
	Issuer, Audience string   // of tokens; "" = any
	Token            string   // attribute that has the token, such as header:authorization or cookie:session
	UserIP           []string // attributes of header fields that name the client, in lower case
}

// Equal reports whether two say the same.
func (c *Config) Equal(o *Config) bool {
	a, b := *c, *o
	a.UserIP, b.UserIP = nil, nil
	return fmt.Sprint(a) == fmt.Sprint(b) && strings.Join(c.UserIP, "\n") == strings.Join(o.UserIP, "\n")
}

// Source derives by a configuration that may be replaced. It is safe for concurrent use; New makes it.
type Source struct {
	log     *slog.Logger
	live    atomic.Pointer[sources]
	changed chan struct{} // Configure has replaced them
}

// sources are open files and keys.
type sources struct {
	config       Config
	country, asn *geo.Database
	keys         *claims.Keys
	verifier     *claims.Verifier
}

// New returns a source that derives as the zero Config says.
func New(log *slog.Logger) *Source {
	s := &Source{log: log, changed: make(chan struct{}, 1)}
	s.live.Store(&sources{})
	return s
}

// Configure opens what c names. After an error what was in use stays.
func (s *Source) Configure(ctx context.Context, c Config) error {
	if old := s.live.Load(); old.config.Equal(&c) {
		return nil
	}
	next := &sources{config: c}
	var errs []error
	open := func(path string) *geo.Database {
		if path == "" {
			return nil
		}
		d, err := geo.Open(path)
		errs = append(errs, err)
		return d
	}
	next.country, next.asn = open(c.Country), open(c.ASN)
	if c.Keys != "" {
		var err error
		next.keys, err = claims.OpenKeys(ctx, c.Keys)
		if errs = append(errs, err); err == nil {
			next.verifier = claims.New(claims.Options{Keys: next.keys, Issuer: c.Issuer, Audience: c.Audience})
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.live.Store(next)
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return nil
}

// Run follows the files and asks the URL until ctx ends.
func (s *Source) Run(ctx context.Context) {
	for ctx.Err() == nil {
		s.follow(ctx)
	}
}

// follow does it for what is configured, until that is replaced.
func (s *Source) follow(ctx context.Context) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	now := s.live.Load()
	said := func(what string, changed bool, err error) {
		switch {
		case err != nil:
			s.log.Error("what was read before stays in use", "of", what, "error", err)
		case changed:
			s.log.Info("read again", "of", what)
		}
	}
	ended := make(chan struct{}, 2)
	go func() {
		defer func() { ended <- struct{}{} }()
		if now.keys != nil {
			now.keys.Run(ctx, func(changed bool, err error) { said(now.keys.Source(), changed, err) })
		}
	}()
	go func() {
		defer func() { ended <- struct{}{} }()
		paths := now.files()
		if len(paths) == 0 {
			return
		}
		_ = filewatch.Watch(ctx, func() []string { return paths }, func() {
			for _, d := range []*geo.Database{now.country, now.asn} {
				if d != nil {
					changed, err := d.Reload()
					said(d.Path(), changed, err)
				}
			}
			if now.keys != nil && now.keys.File() != "" {
				changed, err := now.keys.Refresh(ctx)
				said(now.keys.File(), changed, err)
			}
		})
	}()
	select {
	case <-ctx.Done():
	case <-s.changed:
	}
	end()
	<-ended
	<-ended
}

func (s *sources) files() (paths []string) {
	for _, d := range []*geo.Database{s.country, s.asn} {
		if d != nil {
			paths = append(paths, d.Path())
		}
	}
	if s.keys != nil && s.keys.File() != "" {
		paths = append(paths, s.keys.File())
	}
	return paths
}

// Derives reports whether a name is one of those that may be derived.
func (*Source) Derives(name string) bool {
	return name == Region || name == ASN || name == UserIP || strings.HasPrefix(name, Claim)
}

// Needs returns the attributes from which derived ones among names are found, beside those.
func (s *Source) Needs(names []string) (more []string) {
	c := &s.live.Load().config
	for _, name := range names {
		switch {
		case name == UserIP:
			more = append(append(more, ip), c.UserIP...)
		case name == Region, name == ASN:
			more = append(more, ip)
		case strings.HasPrefix(name, Claim) && c.Token != "":
			more = append(more, c.Token)
		}
	}
	return more
}

// Derive returns attrs and behind them those of names that are derived and not there. attrs is not changed, and the
// result is attrs itself where nothing is derived.
func (s *Source) Derive(names []string, attrs []limit.Attribute) []limit.Attribute {
	now := s.live.Load()
	out, verified, given := attrs, claims.Claims(nil), false
	add := func(name, value string) {
		if len(out) == len(attrs) {
			out = append(make([]limit.Attribute, 0, len(attrs)+len(names)), attrs...)
		}
		out = append(out, limit.Attribute{Name: name, Value: value})
	}
	for _, name := range names {
		if _, there := value(out, name); there {
			continue
		}
		switch {
		case name == UserIP:
			if v, ok := now.user(out); ok {
				add(name, v)
			}
		case name == Region && now.country != nil:
			if addr, ok := now.address(out); ok {
				add(name, now.country.Country(addr))
			}
		case name == ASN && now.asn != nil:
			if addr, ok := now.address(out); ok {
				add(name, now.asn.ASN(addr))
			}
		case now.verifier != nil && strings.HasPrefix(name, Claim):
			if !given {
				given = true
				verified = now.claims(out)
			}
			if v, ok := verified[name[len(Claim):]]; ok {
				add(name, v)
			}
		}
	}
	return out
}

// address is that of the client, ip.
func (s *sources) address(attrs []limit.Attribute) (netip.Addr, bool) {
	text, ok := value(attrs, ip)
	if !ok {
		return netip.Addr{}, false
	}
	text, _, _ = strings.Cut(text, "/") // a network of IPv6, to which some doors shorten
	return address.Parse(text)
}

// user is the first address in the header fields of the operator's, else ip.
func (s *sources) user(attrs []limit.Attribute) (string, bool) {
	for _, name := range s.config.UserIP {
		if text, ok := value(attrs, name); ok {
			if addr, ok := address.Parse(strings.TrimSpace(text)); ok {
				return addr.String(), true
			}
		}
	}
	return value(attrs, ip)
}

func (s *sources) claims(attrs []limit.Attribute) claims.Claims {
	text, ok := value(attrs, s.config.Token)
	if !ok {
		return nil
	}
	if strings.EqualFold(s.config.Token, "header:authorization") {
		if text, ok = claims.Bearer(text); !ok {
			return nil
		}
	}
	out, _ := s.verifier.Verify(text)
	return out
}

// value returns the first attribute of that name. Names of header fields are compared without regard to case.
func value(attrs []limit.Attribute, name string) (string, bool) {
	for i := range attrs {
		if attrs[i].Name == name || len(name) > 7 && name[:7] == "header:" && strings.EqualFold(attrs[i].Name, name) {
			return attrs[i].Value, true
		}
	}
	return "", false
}

// Figures are those of metrics.
type Figures struct {
	Tokens    map[string]uint64 // verified, or why not; nil without keys
	KeysGood  bool
	Databases map[string]bool // whether the last reading was successful, by country and asn
}

// Figures returns the figures of now.
func (s *Source) Figures() Figures {
	now := s.live.Load()
	f := Figures{Databases: map[string]bool{}}
	if now.country != nil {
		f.Databases["country"] = now.country.Good()
	}
	if now.asn != nil {
		f.Databases["asn"] = now.asn.Good()
	}
	if now.verifier != nil {
		f.KeysGood, f.Tokens = now.keys.Good(), map[string]uint64{}
		for r := range claims.ResultCount {
			f.Tokens[claims.Result(r).String()] = now.verifier.Count(claims.Result(r))
		}
	}
	return f
}
