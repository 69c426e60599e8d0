// Package etcd keeps the records of a cluster in etcd 3.4 or later. Reads and writes are
// linearizable, and a record's revision is that of etcd, which it never uses twice.
package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/stint-io/stint/internal/cluster"
)

const (
	// DefaultPrefix begins the keys of records.
	DefaultPrefix = "stint/"

	// authTime bounds the one call of New: the log-in of a user.
	authTime = 5 * time.Second

	// keepAliveTime is how often an idle connection is probed; gRPC allows no shorter one. A silent
	// server is left after keepAliveTimeout, also in the middle of a call.
	keepAliveTime    = 10 * time.Second
	keepAliveTimeout = 2 * time.Second

	// reconnect is the longest pause between two tries to connect. Not longer: nobody leads for as
	// long after etcd is back, where gRPC waits up to two minutes after a long outage. Not
	// shorter: each member tries so often while etcd is gone.
	reconnect = 250 * time.Millisecond

	// watchPause is how long after the loss of a watch it is begun anew.
	watchPause = 250 * time.Millisecond
)

// Options are the options of a Register. Endpoints are required.
type Options struct {
	Endpoints []string // host:port
	Prefix    string   // "" = DefaultPrefix
	Username  string   // "" = no authentication
	Password  string
	TLS       *tls.Config // nil = plaintext
}

// Register is a [cluster.Register] in etcd. [New] makes it.
type Register struct {
	client *clientv3.Client
	prefix string
}

var _ cluster.Register = (*Register)(nil)

// New returns a Register. It does not wait for etcd, unless there is a user to log in.
func New(o Options) (*Register, error) {
	if len(o.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoint")
	}
	scheme := "http://"
	if o.TLS != nil {
		scheme = "https://"
	}
	c := clientv3.Config{
		Username: o.Username, Password: o.Password, TLS: o.TLS,
		DialTimeout:       authTime,
		DialKeepAliveTime: keepAliveTime, DialKeepAliveTimeout: keepAliveTimeout,
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: reconnect / 4, Multiplier: 1.6, Jitter: 0.2, MaxDelay: reconnect},
			MinConnectTimeout: keepAliveTimeout,
		})},
		Logger: zap.NewNop(), // errors come back from each call
	}
	for _, endpoint := range o.Endpoints {
		c.Endpoints = append(c.Endpoints, scheme+endpoint)
	}
	client, err := clientv3.New(c)
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	prefix := o.Prefix
	if prefix == "" {
		prefix = DefaultPrefix
	}
	return &Register{client, prefix}, nil
}

// Read implements [cluster.Register].
func (r *Register) Read(ctx context.Context, key string) (cluster.Record, error) {
	reply, err := r.client.Get(ctx, r.prefix+key)
	if err != nil {
		return cluster.Record{}, fmt.Errorf("etcd: %w", err)
	}
	if len(reply.Kvs) == 0 {
		return cluster.Record{}, nil
	}
	return cluster.Record{Revision: uint64(reply.Kvs[0].ModRevision), Value: reply.Kvs[0].Value}, nil
}

// Swap implements [cluster.Register]. The client repeats no write whose outcome is unknown.
func (r *Register) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	key = r.prefix + key
	then := clientv3.OpPut(key, string(value))
	if value == nil {
		then = clientv3.OpDelete(key)
	}
	reply, err := r.client.Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(key), "=", int64(revision))).
		Then(then).
		Commit()
	switch {
	case err != nil:
		return 0, fmt.Errorf("etcd: %w", err)
	case !reply.Succeeded:
		return 0, cluster.ErrChanged
	case value == nil:
		return 0, nil
	}
	return uint64(reply.Header.Revision), nil
}

// List implements [cluster.Register].
func (r *Register) List(ctx context.Context, prefix string) (map[string]cluster.Record, error) {
	reply, err := r.client.Get(ctx, r.prefix+prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("etcd: %w", err)
	}
	list := map[string]cluster.Record{}
	for _, kv := range reply.Kvs {
		list[strings.TrimPrefix(string(kv.Key), r.prefix)] = cluster.Record{Revision: uint64(kv.ModRevision), Value: kv.Value}
	}
	return list, nil
}

// Watch implements [cluster.Register]. A watch that etcd ends is begun anew.
func (r *Register) Watch(ctx context.Context, prefix string) <-chan struct{} {
	hints := make(chan struct{}, 1)
	hint := func() {
		select {
		case hints <- struct{}{}:
		default: // one is waiting to be received
		}
	}
	go func() {
		defer close(hints)
		for ctx.Err() == nil {
			// Without a leader etcd would keep the watch and be silent.
			watching, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
			for range r.client.Watch(watching, r.prefix+prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify()) {
				hint()
			}
			cancel()
			select {
			case <-ctx.Done():
			case <-time.After(watchPause):
			}
		}
	}()
	return hints
}

// Forgets implements [cluster.Register]: what etcd acknowledges a majority has on disk.
func (r *Register) Forgets() bool { return false }

// Close implements [cluster.Register].
func (r *Register) Close() error { return r.client.Close() }
