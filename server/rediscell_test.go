package server_test

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
)

// redisConn is a connection of a client of Redis that sends commands one at a time.
type redisConn struct {
	t *testing.T
	net.Conn
	*bufio.Reader
}

func dialRedis(t *testing.T, address string) *redisConn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &redisConn{t, c, bufio.NewReader(c)}
}

// do sends a line of words and returns the answer.
func (c *redisConn) do(line string) any {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.Conn, "%s\r\n", line); err != nil {
		c.t.Fatal(err)
	}
	return c.answer()
}

// answer reads a number, a text, a list, or the first word of an error.
func (c *redisConn) answer() any {
	c.t.Helper()
	line, err := c.ReadString('\n')
	if err != nil {
		c.t.Fatal(err)
	}
	kind, text := line[0], strings.TrimSpace(line[1:])
	n, _ := strconv.Atoi(text)
	switch kind {
	case '-':
		code, _, _ := strings.Cut(text, " ")
		return "error " + strings.ReplaceAll(code, "Cell", "ERR") // as modules say it
	case ':':
		return n
	case '$':
		bulk := make([]byte, n+2)
		if _, err := io.ReadFull(c.Reader, bulk); err != nil {
			c.t.Fatal(err)
		}
		return string(bulk[:n])
	case '*':
		list := make([]any, n)
		for i := range list {
			list[i] = c.answer()
		}
		return list
	}
	return text
}

// TestBesideRedisCell: random commands, alone and in blocks, on few keys under changing terms, are answered as redis-server
// with redis-cell answers them. A token is worth at least an hour, so that the time between the two shows in seconds alone.
func TestBesideRedisCell(t *testing.T) {
	build := exec.Command("../scripts/rediscell")
	build.Stderr = os.Stderr
	module, err := build.Output()
	if err != nil {
		t.Fatalf("scripts/rediscell: %v", err)
	}
	theirs := dialRedis(t, redistest.Start(t, "--loadmodule", strings.TrimSpace(string(module))).Addr())
	s := start(t, "limits: [{name: any, rate: 1/s}]", withRESP)
	ours := dialRedis(t, s.Addrs().RESP.String())

	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	began, kinds := time.Now(), map[string]int{}
	const commands = 5000
	for i := range commands {
		key := fmt.Sprintf("k%d", rng.IntN(8))
		line := ""
		switch n := rng.IntN(100); {
		case n < 70:
			count, hours := pick(1, 2, 3, 5, 10), pick(1, 2, 3, 4, 6, 24)
			line = fmt.Sprintf("CL.THROTTLE %s %d %d %d", key, rng.IntN(13), count, count*hours*3600)
			if rng.IntN(3) > 0 {
				line += " " + strconv.Itoa(pick(0, 1, 1, 2, 3, 5, 8, 14))
			}
		case n < 76:
			line = "DEL " + key + " none"
		case n < 84:
			line = "MULTI"
		case n < 94:
			line = "EXEC"
		case n < 96:
			line = "DISCARD"
		case n < 97:
			line = "RESET"
		case n < 98:
			line = "ECHO" // without its argument
		case n < 99:
			line = "CL.THROTTLE " + key + " x 1 3600"
		default:
			line = "NO.SUCH"
		}
		want := theirs.do(line)
		got := ours.do(line)
		if err := likeRedisCell(got, want, time.Since(began)); err != nil {
			t.Fatalf("seed %d, command %d, %s: %v, want %v: %v", seed, i, line, got, want, err)
		}
		word, _, _ := strings.Cut(line, " ")
		kinds[fmt.Sprintf("%s %T", word, want)]++
	}
	if kinds["CL.THROTTLE []interface {}"] < commands/10 || kinds["EXEC []interface {}"] < commands/50 || kinds["DEL int"] < commands/100 {
		t.Errorf("too few of a kind: %v", kinds)
	}
}

// likeRedisCell reports how an answer differs. Seconds may differ by one, for how they are rounded, and by the time in which
// the two servers were asked. DEL counts a key that redis-cell knows because it was looked at, and stint does not.
func likeRedisCell(got, want any, elapsed time.Duration) error {
	if n, ok := got.(int); ok && n == 0 && want == 1 {
		return nil
	}
	ours, ok := got.([]any)
	theirs, same := want.([]any)
	if !ok || !same || len(ours) != len(theirs) {
		if !reflect.DeepEqual(got, want) {
			return fmt.Errorf("%v is not %v", got, want)
		}
		return nil
	}
	if five, ok := numbers(theirs); ok {
		mine, ok := numbers(ours)
		for i := range five {
			slack := 0.0
			if i >= 3 && five[i] >= 0 && mine[i] >= 0 {
				slack = 1 + elapsed.Seconds()
			}
			if !ok || math.Abs(float64(mine[i]-five[i])) > slack {
				return fmt.Errorf("%v is not %v", ours, theirs)
			}
		}
		return nil
	}
	for i := range ours {
		if err := likeRedisCell(ours[i], theirs[i], elapsed); err != nil {
			return err
		}
	}
	return nil
}

// numbers returns the answer to CL.THROTTLE.
func numbers(list []any) (five [5]int, ok bool) {
	for i, v := range list {
		n, isNumber := v.(int)
		if !isNumber || len(list) != 5 || i < 3 && n < 0 {
			return five, false
		}
		five[i] = n
	}
	return five, len(list) == 5 && (five[3] == -1 || five[4] > 1) // or it is one of a block of five DEL
}
