package server

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// askPeers are the connections by which this server asks other members. It is safe for
// concurrent use.
type askPeers struct {
	options client.Options

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn // by address
}

// conn returns the connection to a member.
func (a *askPeers) conn(address string) (*grpc.ClientConn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if conn := a.conns[address]; conn != nil {
		return conn, nil
	}
	conn, err := client.Dial(address, a.options)
	if err != nil {
		return nil, err
	}
	if a.conns == nil {
		a.conns = map[string]*grpc.ClientConn{}
	}
	a.conns[address] = conn
	return conn, nil
}

// close closes the connection to a member, as certificates may have changed; "" = all.
func (a *askPeers) close(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for of, conn := range a.conns {
		if address == "" || of == address {
			_ = conn.Close() // nothing is left to be sent
			delete(a.conns, of)
		}
	}
}

var errNoLeader = errors.New("no member coordinates the limits that are shared by leases")

// dropUnless closes the connection to a member that does not answer, so that the next one is made by the certificates
// of then.
func (a *askPeers) dropUnless(address string, err error) {
	if status.Code(err) == codes.Unavailable {
		a.close(address)
	}
}

// ask asks the coordinator of a shard, in this process or in that of the member that leads.
func (l *leases) ask(ctx context.Context, shard int, asks []lease.Ask) ([]lease.Answer, error) {
	leader, here, known := l.Leader(shard)
	switch {
	case !known:
		return nil, errNoLeader
	case here:
		return l.Answer(ctx, shard, asks)
	}
	conn, err := l.peers.conn(leader.Address)
	if err != nil {
		return nil, fmt.Errorf("%s at %s leads: %w", leader.ID, leader.Address, err)
	}
	ctx = metadata.AppendToOutgoingContext(ctx, client.ShardHeader, strconv.Itoa(shard))
	m, err := leasepb.NewLeasesClient(conn).Ask(ctx, leasewire.ToAsks(asks))
	if err != nil {
		l.peers.dropUnless(leader.Address, err)
		return nil, fmt.Errorf("%s at %s leads: %w", leader.ID, leader.Address, err)
	}
	return leasewire.FromAnswers(m, len(asks))
}
