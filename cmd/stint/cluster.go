package main

import (
	"github.com/spf13/pflag"

	"github.com/stint-io/stint/server"
)

// clusterFlags are the flags of a server that is one of several.
func clusterFlags(f *pflag.FlagSet, c *server.Cluster) {
	f.StringVar(&c.URL, "cluster", "", "backend in which several servers elect the one that lends limits shared by leases, such as etcd://HOST:PORT[,HOST:PORT]/PREFIX")
	f.StringVar(&c.Node, "node", "", "name of this server among the members of the cluster (default: the host with a random number)")
	f.StringVar(&c.Advertise, "advertise", "", "where members and instances reach the gRPC listener of this server, host:port (default: the address of --grpc)")
	f.StringVar(&c.LeaseKeyFile, "lease-key-file", "", "file with the keys that sign leases, in base64, a line each; the first signs, all are believed (default: the members keep one in the backend)")
	f.IntVar(&c.Shards, "cluster-shards", 0, "among how many coordinators the limits shared by leases are divided, by limit and key, 1 to 64; the same for all members (default 1)")
	f.DurationVar(&c.TTL, "cluster-ttl", 0, "how long a leader goes on without its backend, and how long nobody leads after it was killed (default 1s)")
}
