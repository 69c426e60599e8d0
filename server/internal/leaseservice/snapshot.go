package leaseservice

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/leaselimits"
	"github.com/stint-io/stint/server/internal/leasepage"
)

// ServeHTTP answers GET /v1/leases: who has, wants and gets what of each shared limit.
// It shows keys, so it is for operators. ?limit=NAME shows one limit only.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) { ServePage(w, r, s) }

// ServePage is ServeHTTP of the services of several shards, of which there is at least one.
func ServePage(w http.ResponseWriter, r *http.Request, shards ...*Service) {
	name := r.URL.Query().Get("limit")
	x := shards[0].limits.Load()
	if name != "" && x.Limit(name) == nil {
		http.Error(w, "there is no limit of that name", http.StatusNotFound)
		return
	}
	page := leasepage.Page{Resources: []leasepage.Resource{}}
	for _, s := range shards {
		if !s.addPage(r.Context(), &page, name, x) {
			if r.Context().Err() != nil {
				return // nobody reads an answer
			}
			http.Error(w, "the coordinator does not run", http.StatusServiceUnavailable)
			return
		}
	}
	text, err := json.MarshalIndent(&page, "", " ")
	if err != nil {
		http.Error(w, "the leases cannot be written as JSON", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// A failed write means that the client has gone: nobody reads an error.
	_, _ = w.Write(append(text, '\n'))
}

// addPage adds the resources of one shard. It reports false when the coordinator does not run, or
// ctx ends.
func (s *Service) addPage(ctx context.Context, page *leasepage.Page, name string, x *leaselimits.Index) bool {
	select {
	case s.snapshots <- struct{}{}:
		defer func() { <-s.snapshots }()
	case <-ctx.Done():
		return false
	}
	return s.inLoop(ctx, func(now limit.Time) { s.show(page, name, x, now) })
}

func (s *Service) show(page *leasepage.Page, name string, x *leaselimits.Index, now limit.Time) {
	c := s.loop.coordinator
	page.Epoch, page.Instances = max(page.Epoch, c.Epoch()), max(page.Instances, c.Stats().Instances)
	c.Each(now, func(r *coordinator.ResourceState) bool {
		if name == "" || r.ID.Limit == name {
			page.Add(r, x)
		}
		return true
	})
}
