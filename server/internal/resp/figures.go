package resp

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// command numbers the commands, for figures.
type command uint8

const (
	throttle command = iota
	gcra
	del
	take
	peek
	reserving
	commit
	renew
	release
	finish
	session // HELLO, AUTH, CLIENT and the like
	unknown
	commands
)

var commandNames = [commands]string{"CL.THROTTLE", "GCRA", "DEL", "RL.TAKE", "RL.PEEK", "RL.RESERVE", "RL.COMMIT", "RL.RENEW", "RL.RELEASE", "RL.FINISH", "session", "unknown"}

// outcome is how a command ended.
type outcome uint8

const (
	done outcome = iota
	allowed
	refused
	failed
	outcomes
)

var outcomeNames = [outcomes]string{"done", "allowed", "refused", "error"}

// figures are what metrics show.
type figures struct {
	connections, refused, protocol atomic.Uint64
	unauthenticated, denied        atomic.Uint64
	commands                       [commands][outcomes]atomic.Uint64
}

var (
	openDesc     = prometheus.NewDesc("stint_resp_connections", "Connections of clients of Redis that are open.", nil, nil)
	takenDesc    = prometheus.NewDesc("stint_resp_connections_total", "Connections of clients of Redis that were taken, and those that were refused because there were too many.", []string{"outcome"}, nil)
	protocolDesc = prometheus.NewDesc("stint_resp_protocol_errors_total", "Connections that were closed because what came was no command.", nil, nil)
	commandsDesc = prometheus.NewDesc("stint_resp_commands_total", "Commands of clients of Redis, and how they ended: allowed, refused, done, or error.", []string{"command", "outcome"}, nil)
)
