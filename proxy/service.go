package proxy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/remote"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server"
)

// service is a [limit.Taker] that asks a stint service, and knows what becomes of requests about which that does not
// decide.
type service struct {
	*remote.Client
	url        string
	onFailure  OnFailure
	local      *server.Decider
	attributes []string
}

var (
	_ limit.Keeper          = (*service)(nil)
	_ limit.AttributeReader = (*service)(nil)
)

func newService(o *Options, local *server.Decider) (*service, error) {
	s := &service{url: o.Service.URL, onFailure: o.Service.OnFailure, local: local, attributes: o.Service.Attributes}
	token := ""
	if o.Service.TokenFile != "" {
		text, err := os.ReadFile(o.Service.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("proxy: cannot read the token of the service: %w", err)
		}
		token = strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff"))
	}
	var err error
	s.Client, err = remote.New(remote.Options{
		URL: o.Service.URL, Timeout: o.Service.Timeout, Connect: o.Timeouts.Connect, Token: token, Logger: o.Decide.Logger,
	})
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	return s, nil
}

// Attributes implements [limit.AttributeReader].
func (s *service) Attributes() []string {
	own := s.local.Attributes()
	if len(own) == 0 {
		return s.attributes
	}
	return slices.Concat(own, s.attributes)
}

// Take implements [limit.Taker].
func (s *service) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	d, err := s.Client.Take(ctx, req)
	switch {
	case err == nil:
		if d.Permit != 0 {
			d.Permit = d.Permit<<1 | 1 // see Finish
		}
		return d, nil
	case !errors.Is(err, remote.ErrNoDecision), s.onFailure == FailureReject:
		return limit.Decision{}, err
	case s.onFailure == FailureAllow:
		s.local.CountNoService()
		return limit.Decision{Allowed: true}, nil
	}
	d, err = s.local.Take(ctx, req)
	d.Permit <<= 1
	if d.Allowed {
		s.local.CountNoService()
	}
	return d, err
}

// Finish implements [limit.Finisher]. The lowest bit of a permit says who gave it.
func (s *service) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	if permit&1 == 0 {
		return s.local.Finish(ctx, req, permit>>1)
	}
	return s.Client.Finish(ctx, req, permit>>1)
}

// Keep implements [limit.Keeper].
func (s *service) Keep(ctx context.Context, req limit.Request, permit uint64) error {
	if permit&1 == 0 {
		return s.local.Keep(ctx, req, permit>>1)
	}
	return s.Client.Keep(ctx, req, permit>>1)
}

// readiness says whether requests should be sent to this proxy as far as the service is concerned: not before it was
// reached once, as a wrong address or token would go unnoticed otherwise. Later it fails for all proxies at once.
func (s *service) readiness() (ready bool, text string) {
	met, problem := s.Standing()
	switch {
	case !met && problem != nil:
		return false, fmt.Sprintf("the service %s was not reached yet: %v", s.url, problem)
	case !met:
		return false, fmt.Sprintf("the service %s was not reached yet", s.url)
	case problem != nil:
		return true, fmt.Sprintf("the service does not answer, decided by --on-service-failure: %s", s.onFailure)
	}
	return true, ""
}
