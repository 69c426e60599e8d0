package server

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/server/internal/lending"
)

// This file is what a member of a cluster shows of the limits that another member coordinates.

// followed is a shard that this member does not coordinate, in GET /v1/leases.
type followed struct {
	Shard   int    `json:"shard"`
	Member  string `json:"member,omitempty"` // "" = nobody is known to coordinate it
	Address string `json:"address,omitempty"`
	Epoch   uint64 `json:"epoch"` // the highest that was seen; 0 = none
}

// elsewhere returns the shards that this member does not coordinate, and whether that is all of them.
// Without other members there is none.
func (l *leases) elsewhere() (list []followed, all bool) {
	if l.register == nil {
		return nil, false
	}
	at, cancel := context.WithCancel(context.Background())
	cancel() // FindLeader says what is known, and waits for nothing
	for shard := range l.Shards() {
		leader, here, err := l.FindLeader(at, shard)
		if here {
			continue
		}
		one := followed{Shard: shard}
		if err == nil {
			one.Member, one.Address = leader.ID, leader.Address
		}
		seen, _ := l.register.Leader(lending.Scope(shard, l.Shards()))
		one.Epoch = seen.Epoch
		list = append(list, one)
	}
	return list, len(list) == l.Shards()
}

// epochSeen is the highest epoch of any member's term, of all shards; 0 = none was seen.
func (l *leases) epochSeen() (highest uint64) {
	for shard := range l.Shards() {
		seen, _ := l.register.Leader(lending.Scope(shard, l.Shards()))
		highest = max(highest, seen.Epoch)
	}
	return highest
}

// serveLeases answers GET /v1/leases: what this member coordinates, and who coordinates the rest.
func (l *leases) serveLeases(w http.ResponseWriter, r *http.Request) {
	if _, err := answer.Parameters(r, "limit"); err != nil {
		answer.WriteError(w, http.StatusBadRequest, err.Error())
		return
	}
	list, all := l.elsewhere()
	if len(list) == 0 {
		l.Service.ServeHTTP(w, r)
		return
	}
	own := &answered{header: w.Header(), status: http.StatusOK}
	l.Service.ServeHTTP(own, r)
	text := own.body.Bytes()
	var page map[string]any
	if own.status == http.StatusOK {
		d := json.NewDecoder(&own.body)
		d.UseNumber() // an epoch is no float
		if err := d.Decode(&page); err == nil {
			text = withOthers(page, list, all, l.epochSeen())
		}
	}
	w.WriteHeader(own.status)
	// A failed write means that the client has gone: nobody reads an error.
	_, _ = w.Write(text)
}

// withOthers adds to a page of leases who coordinates what it does not show.
func withOthers(page map[string]any, list []followed, all bool, epoch uint64) []byte {
	page["elsewhere"] = list
	page["note"] = "other members coordinate the shards in elsewhere: ask their admin ports for the leases"
	if all {
		page["epoch"] = epoch // this member has no term
		page["note"] = "this member coordinates nothing: it is a follower. Ask the admin port of the member in elsewhere for the leases"
	}
	for _, one := range list {
		if one.Member == "" {
			page["note"] = "no member is known to coordinate the shards in elsewhere that have none: see the logs of the members, or ask 'stint doctor --cluster'"
		}
	}
	text, err := json.MarshalIndent(page, "", " ")
	if err != nil {
		panic(err) // it has only what JSON gave, numbers and texts
	}
	return append(text, '\n')
}

// answered is an answer that is not sent yet.
type answered struct {
	header http.Header
	status int
	body   bytes.Buffer
}

// Header implements [http.ResponseWriter].
func (a *answered) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *answered) WriteHeader(status int) { a.status = status }

// Write implements [http.ResponseWriter].
func (a *answered) Write(text []byte) (int, error) { return a.body.Write(text) }
