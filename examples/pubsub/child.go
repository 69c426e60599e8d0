package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// child is this command again, in a process of its own. It ends when its input does, so it
// does not outlive this one.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
	// wait waits for its end, as often as it is called.
	wait func() error
}

func startChild(ctx context.Context, args ...string) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self, args...)}
	c.cmd.Stderr = os.Stderr
	c.wait = sync.OnceValue(c.cmd.Wait)
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewScanner(out)
	c.out.Buffer(nil, 1<<20)
	return c, c.cmd.Start()
}

func (c *child) say(line string) error {
	_, err := fmt.Fprintln(c.in, line)
	return err
}

func (c *child) hear() (string, error) {
	if !c.out.Scan() {
		if err := c.out.Err(); err != nil {
			return "", err
		}
		return "", fmt.Errorf("pubsub: %v ended without an answer", c.cmd.Args)
	}
	return c.out.Text(), nil
}

// end ends its input, reads its last line into report, if that is not nil, and waits.
func (c *child) end(report any) error {
	_ = c.in.Close()
	var err error
	if report != nil {
		var line string
		if line, err = c.hear(); err == nil {
			err = json.Unmarshal([]byte(line), report)
		}
	}
	if ended := c.wait(); err == nil {
		err = ended
	}
	return err
}
