// Package httpload asks an HTTP/1.1 server on kept connections, one request after the other on
// each, and measures how many are answered and how long that takes.
//
// The generator is light: requests are written as bytes, and of an answer the status and the length
// are read. It knows nothing of what is asked.
package httpload

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/stint-io/stint/bench/internal/measure"
)

// Request encodes a POST as bytes for the wire.
func Request(addr, path, body string) []byte {
	return fmt.Appendf(nil, "POST %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: httpload\r\nAccept-Encoding: identity\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, addr, len(body), body)
}

// Conn is a kept connection. Not safe for concurrent use.
type Conn struct {
	conn net.Conn
	in   *bufio.Reader
	body []byte
}

// Dial connects.
func Dial(addr string) (*Conn, error) {
	conn, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("httpload: %w", err)
	}
	return &Conn{conn: conn, in: bufio.NewReader(conn)}, nil
}

// Close closes the connection.
func (c *Conn) Close() { _ = c.conn.Close() }

// Ask sends a request and returns the status and the body, which is valid until the next call.
func (c *Conn) Ask(request []byte) (status int, body []byte, err error) {
	if _, err := c.conn.Write(request); err != nil {
		return 0, nil, fmt.Errorf("httpload: %w", err)
	}
	length := -1
	for first := true; ; first = false {
		line, err := c.in.ReadSlice('\n')
		if err != nil {
			return 0, nil, fmt.Errorf("httpload: %w", err)
		}
		line = bytes.TrimRight(line, "\r\n")
		if first {
			if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
				return 0, nil, fmt.Errorf("httpload: the answer begins with %q", line)
			}
			if status, err = strconv.Atoi(string(line[9:12])); err != nil {
				return 0, nil, fmt.Errorf("httpload: the answer begins with %q", line)
			}
			continue
		}
		if len(line) == 0 {
			break
		}
		if name := []byte("content-length:"); len(line) > len(name) && bytes.EqualFold(line[:len(name)], name) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(name):]))); err != nil {
				return 0, nil, fmt.Errorf("httpload: %q is no length", line)
			}
		}
	}
	if length < 0 {
		return 0, nil, fmt.Errorf("httpload: the answer has no length")
	}
	if cap(c.body) < length {
		c.body = make([]byte, length)
	}
	c.body = c.body[:length]
	if _, err := io.ReadFull(c.in, c.body); err != nil {
		return 0, nil, fmt.Errorf("httpload: %w", err)
	}
	return status, c.body, nil
}

// Result is what one run of the load got.
type Result struct {
	Answers int64 // all of them 200, and accepted by the check
	Elapsed time.Duration
	Latency measure.Latency
}

// PerSecond is the throughput.
func (r *Result) PerSecond() float64 { return float64(r.Answers) / r.Elapsed.Seconds() }

// Run asks on every connection for d, each time a random one of the requests. The first error, or an
// answer that is not 200 or that check refuses, is returned.
func Run(conns []*Conn, requests [][]byte, d time.Duration, check func(body []byte) bool) (*Result, error) {
	results, failed := make([]Result, len(conns)), make([]error, len(conns))
	var all sync.WaitGroup
	start := time.Now()
	for i, c := range conns {
		all.Go(func() {
			r, random := &results[i], rand.New(rand.NewPCG(uint64(start.UnixNano()), uint64(i)))
			for t := start; t.Sub(start) < d; {
				status, body, err := c.Ask(requests[random.IntN(len(requests))])
				if err == nil && (status != 200 || !check(body)) {
					err = fmt.Errorf("httpload: got %d and %s", status, body)
				}
				if err != nil {
					failed[i] = err
					return
				}
				now := time.Now()
				r.Latency.Add(now.Sub(t))
				r.Answers++
				t = now
			}
		})
	}
	all.Wait()
	sum := &Result{Elapsed: time.Since(start)}
	for i := range results {
		if failed[i] != nil {
			return nil, failed[i]
		}
		sum.Answers += results[i].Answers
		sum.Latency.Merge(&results[i].Latency)
	}
	return sum, nil
}
