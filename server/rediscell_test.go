package server_test

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
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
	if c.Conn != nil { // otherwise the answers are recorded
		if _, err := fmt.Fprintf(c.Conn, "%s\r\n", line); err != nil {
			c.t.Fatal(err)
		}
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

var (
	besideRedisCell = flag.Bool("redis-cell", false, "TestBesideRedisCell asks a redis-server with the redis-cell of scripts/rediscell, with a seed drawn anew")
	recordRedisCell = flag.Bool("record-redis-cell", false, "TestBesideRedisCell writes testdata/rediscell anew")
)

// TestBesideRedisCell: random commands, alone and in blocks, on few keys under changing terms, are answered as redis-server
// with redis-cell answers them. Debian 12 has a cargo that reads the index of crates from GitHub, so the answers of
// redis-cell 0.2.2 to three seeds are recorded; ./scripts/soak asks redis-cell itself.
func TestBesideRedisCell(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	if *besideRedisCell {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		likeRedis(t, seed, 5000, dialRedis(t, startRedisCell(t)))
		return
	}
	for seed := range uint64(3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			name := filepath.Join("testdata", "rediscell", strconv.FormatUint(seed, 10)+".resp")
			var record bytes.Buffer
			theirs := &redisConn{t: t}
			if *recordRedisCell {
				theirs = dialRedis(t, startRedisCell(t))
				theirs.Reader = bufio.NewReader(io.TeeReader(theirs.Conn, &record))
			} else {
				answers, err := os.ReadFile(name)
				if err != nil {
					t.Fatal(err)
				}
				theirs.Reader = bufio.NewReader(bytes.NewReader(answers))
			}
			likeRedis(t, seed, 1500, theirs)
			if *recordRedisCell {
				if err := os.WriteFile(name, record.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			} else if _, err := theirs.ReadByte(); err != io.EOF {
				t.Errorf("%s has more answers than there are commands", name)
			}
		})
	}
}

// startRedisCell returns the address of a redis-server with redis-cell.
func startRedisCell(t *testing.T) string {
	t.Helper()
	build := exec.Command("../scripts/rediscell")
	build.Stderr = os.Stderr
	module, err := build.Output()
	if err != nil {
		t.Fatalf("scripts/rediscell: %v", err)
	}
	return redistest.Start(t, "--loadmodule", strings.TrimSpace(string(module))).Addr()
}

// likeRedis sends so many random commands to a new service, and compares its answers with theirs. A token is worth at
// least an hour, so that the time between two servers shows in seconds alone.
func likeRedis(t *testing.T, seed uint64, commands int, theirs *redisConn) {
	t.Helper()
	s := start(t, "limits: [{name: any, rate: 1/s}]", withRESP)
	ours := dialRedis(t, s.Addrs().RESP.String())
	rng := rand.New(rand.NewPCG(seed, 1))
	pick := func(of ...int) int { return of[rng.IntN(len(of))] }
	began, kinds := time.Now(), map[string]int{}
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
		if err := likeRedisCell(got, want, time.Second+time.Since(began)); err != nil { // a record took less than a second
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
