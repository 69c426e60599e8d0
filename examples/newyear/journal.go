package main

import (
	"bufio"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"strings"
	"sync"
)

// journal keeps in a file what was accepted and is not processed yet. It only appends: a line
// for each message that was accepted and one for each that was processed, each with a checksum.
// It is safe for concurrent use.
type journal struct {
	mu      sync.Mutex
	file    *os.File
	state   map[string]bool // by id: whether it was processed
	waiting []string        // accepted and not processed, oldest first
	more    chan struct{}   // holds one when there may be something waiting

	synced  sync.Mutex // held while a sync goes on
	written int64      // bytes, under mu
	durable int64      // bytes of those that a sync has put on the disk, under synced
}

// The kinds of lines.
const (
	accepted  = "accepted"
	processed = "processed"
)

// openJournal reads a journal, or makes one. A last line that was cut off by a crash was not
// acknowledged to anybody, and is removed.
func openJournal(name string) (*journal, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	j := &journal{file: file, state: map[string]bool{}, more: make(chan struct{}, 1)}
	var order []string
	in := bufio.NewReader(file)
	for {
		line, err := in.ReadString('\n')
		kind, id, ok := parseLine(line)
		if err != nil || !ok {
			break
		}
		if kind == accepted {
			order = append(order, id)
		}
		j.state[id] = kind == processed
		j.written += int64(len(line))
	}
	for _, id := range order {
		if !j.state[id] {
			j.waiting = append(j.waiting, id)
		}
	}
	if err = file.Truncate(j.written); err == nil {
		_, err = file.Seek(j.written, io.SeekStart)
	}
	if err == nil {
		err = file.Sync()
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	j.durable = j.written
	j.more <- struct{}{}
	return j, nil
}

func formatLine(kind, id string) string {
	text := kind + " " + id
	return fmt.Sprintf("%s %08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

func parseLine(line string) (kind, id string, ok bool) {
	words := strings.Fields(line)
	if len(words) != 3 || words[0] != accepted && words[0] != processed {
		return "", "", false
	}
	return words[0], words[1], formatLine(words[0], words[1]) == line
}

// accept returns once the message is on the disk. One with an id that is known was accepted
// before, and is not processed again.
func (j *journal) accept(id string) error {
	j.mu.Lock()
	if _, known := j.state[id]; !known {
		if err := j.appendLocked(accepted, id); err != nil {
			j.mu.Unlock()
			return err
		}
		j.state[id] = false
		j.waiting = append(j.waiting, id)
	}
	end := j.written
	j.mu.Unlock()
	if err := j.sync(end); err != nil {
		return err
	}
	select {
	case j.more <- struct{}{}:
	default:
	}
	return nil
}

// done says that a message was processed. It is not synced: what a crash of the machine undoes
// is processed twice, and one of the process alone undoes nothing.
func (j *journal) done(id string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.state[id] = true
	return j.appendLocked(processed, id)
}

func (j *journal) appendLocked(kind, id string) error {
	n, err := j.file.WriteString(formatLine(kind, id))
	j.written += int64(n)
	return err
}

// sync returns once the first end bytes are on the disk. Callers that wait for a sync of
// others share the next one.
func (j *journal) sync(end int64) error {
	j.synced.Lock()
	defer j.synced.Unlock()
	if j.durable >= end {
		return nil
	}
	j.mu.Lock()
	written := j.written
	j.mu.Unlock()
	if err := j.file.Sync(); err != nil {
		return err
	}
	j.durable = written
	return nil
}

// next takes the message that has waited longest.
func (j *journal) next() (id string, ok bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.waiting) == 0 {
		return "", false
	}
	id = j.waiting[0]
	j.waiting = j.waiting[1:]
	return id, true
}
