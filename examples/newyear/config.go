package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
)

// config is what the configuration service tells the consumers of one provider.
type config struct {
	Version   int64         `json:"version"`
	Total     string        `json:"total"`          // such as "9600/s"
	Instances int           `json:"instances"`      // those with a lower index share the total
	From      time.Time     `json:"from,omitzero"`  // when it begins; zero = at once
	Step      time.Duration `json:"step,omitempty"` // for the experiment: how far wall clocks have been stepped
}

// configService is a small service that keeps one configuration and tells all who watch
// it of each change: GET with ?after=VERSION answers once there is a newer one.
type configService struct {
	mu      sync.Mutex
	current config
	changed chan struct{} // closed when current changes
}

func newConfigService(c config) *configService {
	c.Version = 1
	return &configService{current: c, changed: make(chan struct{})}
}

// change is what an operator does.
func (s *configService) change(edit func(*config)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.current
	edit(&next)
	if _, err := limit.ParseRate(next.Total); err != nil {
		return err
	}
	if next.Instances < 1 {
		return fmt.Errorf("config: %d instances, want at least 1", next.Instances)
	}
	next.Version++
	s.current = next
	close(s.changed)
	s.changed = make(chan struct{})
	return nil
}

func (s *configService) get() (config, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current, s.changed
}

func (s *configService) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	after := int64(0)
	if text := r.URL.Query().Get("after"); text != "" {
		var err error
		if after, err = strconv.ParseInt(text, 10, 64); err != nil {
			http.Error(w, "after is not a version", http.StatusBadRequest)
			return
		}
	}
	for {
		c, changed := s.get()
		if c.Version > after {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(c) // a client that went away asks again
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// configClient follows a configuration service.
type configClient struct {
	http *http.Client
	base string
}

// next returns the configuration once it is newer than the version.
func (c configClient) next(ctx context.Context, after int64) (config, error) {
	query := url.Values{"after": {strconv.FormatInt(after, 10)}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/config?"+query.Encode(), nil)
	if err != nil {
		return config{}, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return config{}, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return config{}, fmt.Errorf("config: %s", resp.Status)
	}
	var got config
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		return config{}, fmt.Errorf("config: %w", err)
	}
	return got, nil
}
