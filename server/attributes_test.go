package server_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// TestWrongAttributes: a key of a limit that is opened with other attributes than those of
// its limits file, or in another order, is an error of each request and told once, whether requests have these attributes or not; the right ones go on.
func TestWrongAttributes(t *testing.T) {
	const file = "limits: [{name: messages, key: [account, ip], rate: 100/s, burst: 100, sharing: leased}]\n"
	s := leasing(t, file)
	complete := limit.Request{Attributes: []limit.Attribute{
		{Name: "account", Value: "a"}, {Name: "ip", Value: "192.0.2.1"}, {Name: "user", Value: "u"},
	}}
	for _, tt := range []struct {
		name    string
		limit   string
		key     []string
		request limit.Request
		wrong   string // in the error; empty = none
	}{
		{"right", "messages", []string{"account", "ip"}, complete, ""},
		{"others that requests have", "messages", []string{"user", "ip"}, complete, "wrong_attributes"},
		{"others that no request has", "messages", []string{"acount", "ip"}, complete, "wrong_attributes"},
		{"another order", "messages", []string{"ip", "account"}, complete, "wrong_attributes"},
		{"fewer", "messages", []string{"account"}, complete, "wrong_attributes"},
		{"a request without", "messages", []string{"account", "ip"}, limit.Request{}, ""},
		{"no such limit, a request without", "mesages", []string{"account"}, limit.Request{}, "unknown_limit"},
	} {
		for _, refuse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, refused %v", tt.name, refuse), func(t *testing.T) {
				told := make(chan error, 10)
				k := s.keyed(tt.limit, tt.key, client.KeyedOptions{RefuseMissing: refuse}, told)
				missing := len(tt.request.Attributes) == 0
				if _, err := k.Take(t.Context(), tt.request); tt.wrong != "" {
					if err = <-told; !strings.Contains(err.Error(), tt.wrong) {
						t.Errorf("told %v, want an error about %s", err, tt.wrong)
					}
				} else if err != nil {
					t.Error(err)
				}
				for range 3 {
					d, err := k.Take(t.Context(), tt.request)
					switch {
					case tt.wrong == "" && (err != nil || missing && d.Allowed == refuse):
						t.Errorf("%+v, %v", d, err)
					case tt.wrong != "" && (!errors.Is(err, client.ErrRefused) || !strings.Contains(err.Error(), tt.wrong)):
						t.Errorf("want an error about %s, got %v", tt.wrong, err)
					}
				}
				if len(told) > 0 {
					t.Errorf("told %v", <-told)
				}
			})
		}
	}
}

// keyed opens a key of a limit as an instance of its own.
func (s *service) keyed(name string, key []string, o client.KeyedOptions, told chan<- error) *client.Keyed {
	s.t.Helper()
	c, err := client.New(client.Options{
		Address: s.Addrs().GRPC.String(), Logger: slog.New(slog.DiscardHandler),
		OnFault: func(_ string, err error) { told <- err },
	})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var ran sync.WaitGroup
	ran.Go(func() {
		if err := c.Run(ctx); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(func() { cancel(); ran.Wait() })
	k, err := c.Keyed(name, key, o)
	if err != nil {
		s.t.Fatal(err)
	}
	return k
}
