package redistest

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"
)

// answerTime bounds a command on the control connection. Longer than any pause of
// a loaded machine; a server that is slower is frozen or gone.
const answerTime = 5 * time.Second

// control is one connection to a server, made when it is needed.
type control struct {
	address string
	mu      sync.Mutex
	client  rueidis.Client // nil = not connected
}

// connect returns the client, and whether it had to be made.
func (c *control) connect(password string, config *tls.Config) (client rueidis.Client, fresh bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client != nil {
		return c.client, false, nil
	}
	option := rueidis.ClientOption{
		InitAddress:       []string{c.address},
		Password:          password,
		TLSConfig:         config,
		ForceSingleClient: true, // a node of a cluster speaks for itself
		DisableCache:      true,
		DisableRetry:      true, // a test counts what it sends
		AlwaysRESP2:       true, // RESP3 marks the texts of INFO and the like as such
		// Small: a test may have twenty of them.
		ReadBufferEachConn:  16 << 10,
		WriteBufferEachConn: 16 << 10,
		RingScaleEachConn:   8,
	}
	option.Dialer.Timeout = answerTime
	client, err = rueidis.NewClient(option)
	if err != nil {
		if client != nil {
			client.Close()
		}
		return nil, true, err
	}
	c.client = client
	return client, true, nil
}

// drop forgets client, which has failed. Another may have taken its place.
func (c *control) drop(client rueidis.Client) {
	c.mu.Lock()
	if c.client == client {
		c.client = nil
	}
	c.mu.Unlock()
	client.Close()
}

func (c *control) close() {
	c.mu.Lock()
	client := c.client
	c.client = nil
	c.mu.Unlock()
	if client != nil {
		client.Close()
	}
}

// Try runs a command on the control connection: one connection of its own (RESP2),
// which every command of this Server goes through. It is made when it is needed;
// where one that was kept ends instead of answering, because a failover has
// closed it, the command is sent once more on another.
//
// A nil reply is no error. Errors of the server are returned as they are, for
// [rueidis.IsRedisErr]; others, such as that of an answer that takes over five
// seconds, name the address and the command, without its arguments. Try may be
// called on any goroutine.
func (s *Server) Try(args ...string) (rueidis.RedisMessage, error) {
	command := strings.ToUpper(args[0])
	ctx, cancel := context.WithTimeout(context.Background(), answerTime)
	defer cancel()
	for {
		client, fresh, err := s.control.connect(s.password, s.tls)
		if err != nil {
			return rueidis.RedisMessage{}, fmt.Errorf("connecting to %s for %s: %w", s.Addr(), command, err)
		}
		reply, err := client.Do(ctx, client.B().Arbitrary(args[0]).Args(args[1:]...).Build()).ToMessage()
		if err == nil || rueidis.IsRedisNil(err) {
			return reply, nil
		}
		if _, fromServer := rueidis.IsRedisErr(err); fromServer {
			return reply, err // bare, because rueidis does not unwrap errors
		}
		s.control.drop(client)
		if !fresh && ctx.Err() == nil {
			continue
		}
		return reply, fmt.Errorf("%s at %s: %w", command, s.Addr(), err)
	}
}

// Do is [Server.Try] for a command that must succeed.
func (s *Server) Do(args ...string) rueidis.RedisMessage {
	s.t.Helper()
	reply, err := s.Try(args...)
	if err != nil {
		s.t.Fatalf("redistest: %s at %s: %v", strings.ToUpper(args[0]), s.Addr(), err)
	}
	return reply
}

// Text runs a command that must succeed and returns its reply, which must be a
// string; a nil reply is "".
func (s *Server) Text(args ...string) string {
	s.t.Helper()
	reply := s.Do(args...)
	if reply.IsNil() {
		return ""
	}
	text, err := reply.ToString()
	if err != nil {
		s.t.Fatalf("redistest: %s at %s: %v", strings.ToUpper(args[0]), s.Addr(), err)
	}
	return text
}

// Int runs a command that must succeed and returns its reply, which must be an
// integer.
func (s *Server) Int(args ...string) int64 {
	s.t.Helper()
	reply := s.Do(args...)
	n, err := reply.AsInt64()
	if err != nil {
		s.t.Fatalf("redistest: %s at %s: %v", strings.ToUpper(args[0]), s.Addr(), err)
	}
	return n
}

// Info returns one field of INFO, such as "connected_clients"; "" when there is
// none.
func (s *Server) Info(field string) string {
	s.t.Helper()
	return fields(s.Text("INFO", "everything"))[field]
}

// tryInfo is Info of one section, with the error as a reason.
func (s *Server) tryInfo(args ...string) (map[string]string, error) {
	reply, err := s.Try(args...)
	if err != nil {
		return nil, err
	}
	text, err := reply.ToString()
	return fields(text), err
}

// fields reads the name:value lines of INFO and CLUSTER INFO.
func fields(text string) map[string]string {
	found := map[string]string{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			found[name] = value
		}
	}
	return found
}
