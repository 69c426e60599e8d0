// Package kubernetes keeps the records of a cluster in Lease objects (coordination.k8s.io/v1) of a
// Kubernetes API server, by its REST interface. Reads and writes are linearizable, since they ask
// for no older version; a record's revision is the resourceVersion.
//
// The value is in an annotation, in base64. The service account needs get, list, watch, create,
// patch and delete of leases in the namespace. Each renewal is a write of the API server: 4 per TTL
// and scope, and one a second for each member.
package kubernetes

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/cluster"
)

// The marks of an object.
const (
	annotationKey   = "stint.io/key"
	annotationValue = "stint.io/value"
	// annotationAfter is the revision before. An update that changes nothing would keep its
	// resourceVersion.
	annotationAfter = "stint.io/after"
	labelTable      = "stint.io/cluster"
)

const (
	// watchPause is how long after the end of a watch it is begun anew.
	watchPause = 250 * time.Millisecond

	// watchTime is after how long the API server ends a watch.
	watchTime = 5 * time.Minute

	// longestName is that of a label's value, and leaves room for the key in an object's name.
	longestName = 63
	longestKey  = 150
)

// Register is a [cluster.Register] in a Kubernetes API server. [New] makes it.
type Register struct {
	api       api
	namespace string
	name      string
}

var _ cluster.Register = (*Register)(nil)

// New returns a Register. It does not wait for the API server.
func New(o Options) (*Register, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	a, err := newAPI(o)
	if err != nil {
		return nil, err
	}
	return &Register{api: a, namespace: o.Namespace, name: o.Name}, nil
}

// lease is a Lease object, as far as it is used.
type lease struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   metadata  `json:"metadata"`
	Spec       leaseSpec `json:"spec"`
}

type metadata struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
}

// leaseSpec is for people who list leases; nothing depends on it.
type leaseSpec struct {
	RenewTime string `json:"renewTime,omitempty"`
}

type leaseList struct {
	Items []lease `json:"items"`
}

// deleteOptions delete only the version that they name.
type deleteOptions struct {
	APIVersion    string        `json:"apiVersion"`
	Kind          string        `json:"kind"`
	Preconditions preconditions `json:"preconditions"`
}

type preconditions struct {
	ResourceVersion string `json:"resourceVersion"`
}

// Read implements [cluster.Register].
func (r *Register) Read(ctx context.Context, key string) (cluster.Record, error) {
	var l lease
	switch err := r.api.call(ctx, http.MethodGet, r.object(key), nil, &l); {
	case isStatus(err, http.StatusNotFound):
		return cluster.Record{}, nil
	case err != nil:
		return cluster.Record{}, err
	}
	if found := l.Metadata.Annotations[annotationKey]; found != key {
		return cluster.Record{}, fmt.Errorf("kubernetes: the lease %s is of the key %q, not %q", l.Metadata.Name, found, key)
	}
	return l.record()
}

// Swap implements [cluster.Register].
func (r *Register) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	if value == nil {
		return 0, r.remove(ctx, key, revision)
	}
	l := r.lease(key, revision, value)
	method, path := http.MethodPost, r.objects()
	if revision != 0 {
		// No PUT: the API server would create a lease that has been deleted.
		method, path = http.MethodPatch, r.object(key)
	}
	var written lease
	switch err := r.api.call(ctx, method, path, l, &written); {
	case isStatus(err, http.StatusConflict), revision != 0 && isStatus(err, http.StatusNotFound):
		return 0, cluster.ErrChanged
	case err != nil:
		return 0, err
	}
	record, err := written.record()
	return record.Revision, err
}

func (r *Register) remove(ctx context.Context, key string, revision uint64) error {
	if revision == 0 {
		record, err := r.Read(ctx, key)
		if err == nil && record.Revision != 0 {
			err = cluster.ErrChanged
		}
		return err
	}
	o := deleteOptions{"v1", "DeleteOptions", preconditions{strconv.FormatUint(revision, 10)}}
	err := r.api.call(ctx, http.MethodDelete, r.object(key), o, nil)
	if isStatus(err, http.StatusConflict) || isStatus(err, http.StatusNotFound) {
		return cluster.ErrChanged
	}
	return err
}

// List implements [cluster.Register].
func (r *Register) List(ctx context.Context, prefix string) (map[string]cluster.Record, error) {
	var all leaseList
	if err := r.api.call(ctx, http.MethodGet, r.objects()+"?"+r.selector().Encode(), nil, &all); err != nil {
		return nil, err
	}
	list := map[string]cluster.Record{}
	for _, l := range all.Items {
		key := l.Metadata.Annotations[annotationKey]
		if !strings.HasPrefix(key, prefix) {
			continue
		}
		record, err := l.record()
		if err != nil {
			return nil, err
		}
		list[key] = record
	}
	return list, nil
}

// watchEvent is a line of a watch.
type watchEvent struct {
	Type   string `json:"type"`
	Object lease  `json:"object"`
}

// Watch implements [cluster.Register]. A watch that ends is begun anew.
func (r *Register) Watch(ctx context.Context, prefix string) <-chan struct{} {
	hints := make(chan struct{}, 1)
	go func() {
		defer close(hints)
		query := r.selector()
		query.Set("watch", "true")
		query.Set("timeoutSeconds", strconv.Itoa(int(watchTime.Seconds())))
		for ctx.Err() == nil {
			// It begins with the objects that there are.
			_ = r.api.stream(ctx, r.objects()+"?"+query.Encode(), func(e watchEvent) {
				if !strings.HasPrefix(e.Object.Metadata.Annotations[annotationKey], prefix) {
					return
				}
				select {
				case hints <- struct{}{}:
				default: // one is waiting to be received
				}
			})
			select {
			case <-ctx.Done():
			case <-time.After(watchPause):
			}
		}
	}()
	return hints
}

// Forgets implements [cluster.Register]: the API server keeps leases in etcd.
func (r *Register) Forgets() bool { return false }

// Close implements [cluster.Register].
func (r *Register) Close() error {
	r.api.close()
	return nil
}

func (r *Register) objects() string {
	return "/apis/coordination.k8s.io/v1/namespaces/" + r.namespace + "/leases"
}

func (r *Register) object(key string) string { return r.objects() + "/" + objectName(r.name, key) }

func (r *Register) selector() url.Values {
	return url.Values{"labelSelector": {labelTable + "=" + r.name}}
}

// objectName returns that of the object of a key. Names have lower-case letters, digits, "-" and "."
// only, so a hash keeps keys apart that look the same in them.
func objectName(table, key string) string {
	readable := strings.Map(func(c rune) rune {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9':
			return c
		case 'A' <= c && c <= 'Z':
			return c - 'A' + 'a'
		}
		return '-'
	}, key)
	sum := sha256.Sum256([]byte(key))
	return table + "-" + readable[:min(len(readable), longestKey)] + "-" + hex.EncodeToString(sum[:6])
}

func (r *Register) lease(key string, revision uint64, value []byte) *lease {
	l := &lease{
		APIVersion: "coordination.k8s.io/v1", Kind: "Lease",
		Metadata: metadata{
			Name: objectName(r.name, key), Namespace: r.namespace,
			Labels: map[string]string{labelTable: r.name, "app.kubernetes.io/managed-by": "stint"},
			Annotations: map[string]string{
				annotationKey:   key,
				annotationValue: base64.StdEncoding.EncodeToString(value),
				annotationAfter: strconv.FormatUint(revision, 10),
			},
		},
		Spec: leaseSpec{RenewTime: time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")},
	}
	if revision != 0 {
		l.Metadata.ResourceVersion = strconv.FormatUint(revision, 10)
	}
	return l
}

func (l *lease) record() (cluster.Record, error) {
	revision, err := strconv.ParseUint(l.Metadata.ResourceVersion, 10, 64)
	if err != nil || revision == 0 {
		return cluster.Record{}, fmt.Errorf("kubernetes: the resourceVersion %q of the lease %s is no number", l.Metadata.ResourceVersion, l.Metadata.Name)
	}
	value, err := base64.StdEncoding.DecodeString(l.Metadata.Annotations[annotationValue])
	if err != nil {
		return cluster.Record{}, fmt.Errorf("kubernetes: the lease %s: %w", l.Metadata.Name, err)
	}
	return cluster.Record{Revision: revision, Value: value}, nil
}

// isStatus reports whether the API server refused a call with this status.
func isStatus(err error, code int) bool {
	var s *statusError
	return errors.As(err, &s) && s.code == code
}
