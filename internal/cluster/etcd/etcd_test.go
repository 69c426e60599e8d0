package etcd_test

import (
	"fmt"
	"testing"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/clustertest"
	"github.com/stint-io/stint/internal/cluster/etcd"
	"github.com/stint-io/stint/internal/etcdtest"
)

func TestRegister(t *testing.T) {
	server := etcdtest.Start(t)
	tables := 0
	clustertest.Run(t, clustertest.Backend{
		Table: func(t *testing.T) func() cluster.Register {
			tables++
			prefix := fmt.Sprintf("table%d/", tables)
			return func() cluster.Register {
				r, err := etcd.New(etcd.Options{Endpoints: []string{server.Addr()}, Prefix: prefix})
				if err != nil {
					t.Fatal(err)
				}
				return r
			}
		},
		Freeze: server.Freeze, Thaw: server.Thaw,
	})
}
