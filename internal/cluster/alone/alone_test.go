package alone_test

import (
	"testing"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/internal/cluster/clustertest"
)

func TestRegister(t *testing.T) {
	clustertest.Run(t, clustertest.Backend{Table: func(*testing.T) func() cluster.Register {
		r := alone.New()
		return func() cluster.Register { return r }
	}})
}
