package lending

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/server/internal/access"
)

// This file holds an instance to what its identity may send: the limits that it is lent, and by which band
// and weight. admission bounds its streams and members its keys. Where nobody asks who an instance is,
// nothing is bounded here.

// holder is what is known of who has opened a stream. The zero value is an instance of nobody.
type holder struct {
	session *access.Session
	name    string         // of the identity at the beginning of the stream
	may     *access.Leases // nil = everything; the reader's until a report is posted, then the loop's until it is taken
}

// identify finds out who begins a stream.
func (st *stream) identify(s *access.Session) error {
	if s == nil {
		return nil
	}
	id, err := s.Identity()
	if err != nil {
		return status.Error(codes.Unauthenticated, err.Error())
	}
	st.holder = holder{session: s, name: id.Name, may: id.Leases()}
	return nil
}

// permit makes of a report one that the identity may send. An instance is called after its identity, so
// that nobody can report as an instance of somebody else. Limits that it may not be lent are answered with
// StatusForbidden; a band or weight above its highest is lowered, as one that an old configuration has must
// not stop an instance. What is of sites is left out.
func (st *stream) permit(r *lease.Report) error {
	h := &st.holder
	if h.session == nil {
		return nil
	}
	id, err := h.session.Identity()
	switch {
	case err != nil:
		return status.Error(codes.Unauthenticated, err.Error())
	case id.Name != h.name:
		return errIdentity
	}
	if err := id.Refuses(access.Lease); err != nil {
		return status.Error(codes.PermissionDenied, err.Error())
	}
	r.Instance = id.Name + "/" + r.Instance
	if h.may = id.Leases(); h.may == nil {
		return nil
	}
	r.Site = false // which is for members: the claims of a site have weights of their own
	for i := range r.Demands {
		d := &r.Demands[i]
		d.Band, d.Weight, d.Claims, d.Most = min(d.Band, h.may.MaxBand), min(d.Weight, h.may.MaxWeight), nil, lease.Capacity{}
		if d.Resource.Limit != "" && !h.may.Covers(d.Resource.Limit) {
			d.Resource.Key, d.Attributes = forbiddenKey, nil
		} else if _, ok := leasewire.FromMemberKey(d.Resource.Key); ok {
			d.Resource.Key = forbiddenKey // the server's own form of keys, which is for members
		}
	}
	left := r.Usage[:0]
	for _, u := range r.Usage {
		if h.may.Covers(u.Limit) {
			left = append(left, u)
		}
	}
	r.Usage = left
	return nil
}

var (
	errIdentity  = status.Error(codes.PermissionDenied, "the stream's credential is that of another identity now: open another stream")
	errNarrowed  = status.Error(codes.PermissionDenied, "the identity may no longer be lent all that this instance asked for: its leases run out, and then it can begin anew")
	errInstances = status.Error(codes.ResourceExhausted, "the identity has as many instances as it may, those included that have just gone: raise max_streams in the file of --auth, or come back later")
)
