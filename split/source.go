package split

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
)

const (
	// sourceWait is how long a service may wait for a change before it answers, and sourceTime how
	// long it may take in all.
	sourceWait = 5 * time.Second
	sourceTime = 10 * time.Second

	// sourcePause is between two questions that were answered at once. Not longer: another service
	// is asked after it. Not shorter: one that is gone would be asked all the time.
	sourcePause = 200 * time.Millisecond

	// maxAnswer bounds an answer; honest ones have some hundred bytes.
	maxAnswer = 64 << 10
)

// Source is where instances learn the total of a limit and between how many they split it: a stint
// service, which has both in its limits,
//
//	limits:
//	  - name: provider
//	    rate: 10000/s
//	    sharing: split
//	    split: {instances: 96}
//
// and so a file, or a configuration that 'stint config push' changes everywhere. The service is not
// asked for permits: while it is away, instances go on with what they know. The zero value is invalid.
// A Source has no state and may be used by several goroutines.
type Source struct {
	// Addresses are the URLs of the HTTP ports of services, such as http://127.0.0.1:8080. When one
	// does not answer, the next one is asked.
	Addresses []string

	// Limit is the name of the limit in the service's configuration.
	Limit string

	// Token is sent as a bearer token; empty = none.
	Token string

	// Client makes the calls; nil = http.DefaultClient.
	Client *http.Client
}

// Terms asks once. own is this instance's part, of which Of is what the service says: Part{First: 3,
// Weight: 1} is the fourth of however many there are. An instance for which no unit is left has a part
// of weight 0.
func (s *Source) Terms(ctx context.Context, own Part) (Terms, error) {
	var errs []error
	for _, address := range s.Addresses {
		terms, _, err := s.ask(ctx, address, own, "")
		if err == nil {
			return terms, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return Terms{}, errors.New("split: the source has no address")
	}
	return Terms{}, errors.Join(errs...)
}

// Follow keeps the total and the part of l at what the service says, until ctx ends, whose error it
// returns. The burst of l stays. A change is in force as soon as the service has it; see [Limiter.Set]
// for what is admitted while some instances know it and others do not. changed, which may be nil, is
// called with the terms after each change that was made, and with an error where the service does not
// answer or says nothing that l can use: the terms stay then. It is called by one goroutine at a time.
func (s *Source) Follow(ctx context.Context, l *Limiter, own Part, changed func(Terms, error)) error {
	if changed == nil {
		changed = func(Terms, error) {}
	}
	if len(s.Addresses) == 0 {
		return errors.New("split: the source has no address")
	}
	tag, fault := "", ""
	for next := 0; ctx.Err() == nil; {
		begun := time.Now()
		terms, latest, err := s.ask(ctx, s.Addresses[next%len(s.Addresses)], own, tag)
		if err == nil && latest != tag {
			var made bool
			if terms, made, err = l.follow(terms); made {
				changed(terms, nil)
			}
		}
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
			tag, fault = latest, ""
		default:
			if text := err.Error(); text != fault {
				fault = text
				changed(Terms{}, err)
			}
			tag = ""
			next++
		}
		if err != nil || time.Since(begun) < sourcePause {
			pause := time.NewTimer(sourcePause)
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
			pause.Stop()
		}
	}
	return ctx.Err()
}

// follow puts the total and the part of t in force at once, unless they are already, and returns the
// terms then. The burst is the limiter's own.
func (l *Limiter) follow(t Terms) (now Terms, made bool, err error) {
	if now = l.Terms(); now.Total == t.Total && now.Part == t.Part {
		return now, false, nil
	}
	err = l.change(func(own *Terms) { own.Total, own.Part = t.Total, t.Part })
	return l.Terms(), err == nil, err
}

// limitAnswer is what a service says of a limit.
type limitAnswer struct {
	Sharing   string `json:"sharing"`
	Unlimited bool   `json:"unlimited"`
	Rate      struct {
		Count    int64 `json:"count"`
		PeriodNS int64 `json:"period_ns"`
	} `json:"rate"`
	Split struct {
		Instances int64 `json:"instances"`
	} `json:"split"`
}

// ask asks one service. With the tag of the answer before it waits for another one; without a change
// the tag is the same and there are no terms.
func (s *Source) ask(ctx context.Context, address string, own Part, tag string) (t Terms, latest string, err error) {
	if !strings.Contains(address, "://") {
		return Terms{}, "", fmt.Errorf("split: the address %q is no URL, want one such as http://127.0.0.1:8080", address)
	}
	ctx, cancel := context.WithTimeout(ctx, sourceTime)
	defer cancel()
	target := strings.TrimSuffix(address, "/") + "/v1/limits/" + url.PathEscape(s.Limit)
	if tag != "" {
		target += "?wait=" + sourceWait.String()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return Terms{}, "", fmt.Errorf("split: %w", err)
	}
	if tag != "" {
		req.Header.Set("If-None-Match", tag)
	}
	if s.Token != "" {
		req.Header.Set("Authorization", "Bearer "+s.Token)
	}
	reply, err := cmp.Or(s.Client, http.DefaultClient).Do(req)
	if err != nil {
		return Terms{}, "", fmt.Errorf("split: %w", err)
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(reply.Body, maxAnswer))
	switch {
	case err != nil:
		return Terms{}, "", fmt.Errorf("split: %w", err)
	case reply.StatusCode == http.StatusNotModified && tag != "":
		return Terms{}, tag, nil
	case reply.StatusCode != http.StatusOK:
		return Terms{}, "", fmt.Errorf("split: %s says of limit %q: %s", address, s.Limit, reply.Status)
	}
	var a limitAnswer
	if err := json.Unmarshal(text, &a); err != nil {
		return Terms{}, "", fmt.Errorf("split: %s says of limit %q what cannot be read: %w", address, s.Limit, err)
	}
	if a.Unlimited || a.Split.Instances < 1 {
		return Terms{}, "", fmt.Errorf("split: limit %q of %s is not split: want a rate, sharing: split, and split: {instances: N}", s.Limit, address)
	}
	t = Terms{Total: limit.Rate{Count: a.Rate.Count, Period: time.Duration(a.Rate.PeriodNS)}, Part: own.of(a.Split.Instances)}
	return t, reply.Header.Get("ETag"), nil
}

// of is p among that many units, as far as there are so many.
func (p Part) of(units int64) Part {
	if p.First >= units {
		return Part{Of: units}
	}
	return Part{First: p.First, Weight: min(p.Weight, units-p.First), Of: units}
}
