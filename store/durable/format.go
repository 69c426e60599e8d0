package durable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"time"

	"github.com/stint-io/stint/limit"
)

// A file is a header, a snapshot, and the batches that were appended since. Snapshot and batches are made of
// frames:
//
//	length  uint32  of the body
//	sum     uint32  CRC-32C of what follows
//	number  uint64  of the batch: in ascending order, with gaps where a write has failed
//	kind    byte
//	body
//
// Numbers are little-endian; those in bodies are varints unless a size is given. A batch ends with a frame of the
// kind frameCommit, and counts if that frame is whole. A snapshot was synced before the file got its name. Its last
// frame is the directory of the others: a start reads that one and the batches; the rest of the snapshot is read,
// and its sums are checked, when it is needed.
const (
	// framePolicy is the policy of the states of a limit: its ID, and JSON.
	framePolicy byte = iota + 1
	// frameStates are states of a limit: its ID, then keys and states. An empty state is that of a key that is as
	// good as new.
	frameStates
	// frameRecords are records of a table: its name, then keys, ends and values, each with a byte that is 1 if the
	// record was removed. In a snapshot they are in the order of their keys.
	frameRecords
	// frameDirectory is what a snapshot has: limits, with their policies and the places of their states; tables,
	// with the places and the first keys of their frames.
	frameDirectory
	// frameCommit ends a batch: the time in Unix nanoseconds and the length of the batch up to this frame, both uint64.
	frameCommit
)

const (
	formatVersion = 2 // 1 was in files of bbolt; a program reads the versions up to its own
	magic         = "stintcnt"
	headerSize    = 48
	frameHead     = 17
	commitSize    = frameHead + 16
	maxBody       = 1 << 30
)

// The sizes at which another frame begins. The states of a limit are read all together; a record is found by reading the
// frame that it is in.
const (
	statesFrame  = 1 << 20
	recordsFrame = 8 << 10
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

var (
	// errNewer is the error of a file that a newer program has written.
	errNewer   = errors.New("a newer version of this program has written it")
	errForeign = errors.New("it is no file of counts")
	errFrame   = errors.New("a part of it is not what its checksum says")
	errBody    = errors.New("a part of it cannot be decoded")
)

// header is the beginning of a file.
type header struct {
	base      int64  // the length of the file up to the end of the snapshot
	directory int64  // the place of the directory
	number    uint64 // batches behind the snapshot have higher ones
	at        int64  // when the snapshot was written, Unix nanoseconds
}

func (h header) encode() []byte {
	b := append(make([]byte, 0, headerSize), magic...)
	b = binary.LittleEndian.AppendUint32(b, formatVersion)
	b = append(b, 0, 0, 0, 0)
	for _, n := range []uint64{uint64(h.base), uint64(h.directory), h.number, uint64(h.at)} {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[16:], castagnoli))
	return b
}

func decodeHeader(b []byte) (h header, err error) {
	if len(b) < headerSize || string(b[:8]) != magic {
		return h, errForeign
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v > formatVersion {
		return h, fmt.Errorf("its format is %d, and this one knows %d: %w", v, formatVersion, errNewer)
	}
	if binary.LittleEndian.Uint32(b[12:]) != crc32.Checksum(b[16:headerSize], castagnoli) {
		return h, errFrame
	}
	n := func(i int) uint64 { return binary.LittleEndian.Uint64(b[16+8*i:]) }
	return header{base: int64(n(0)), directory: int64(n(1)), number: n(2), at: int64(n(3))}, nil
}

// frames collects frames. The zero value is ready for use.
type frames struct {
	buf    []byte
	number uint64 // of the batch, set before the first frame
	open   int    // where the open frame begins
}

// begin opens a frame, whose body is what is appended to buf until end.
func (f *frames) begin(kind byte) {
	f.open = len(f.buf)
	f.buf = append(f.buf, make([]byte, frameHead-1)...)
	f.buf = append(f.buf, kind)
}

// beginNamed opens a frame whose body begins with a name.
func (f *frames) beginNamed(kind byte, name string) {
	f.begin(kind)
	f.buf = appendBytes(f.buf, name)
}

func (f *frames) end() {
	frame := f.buf[f.open:]
	binary.LittleEndian.PutUint32(frame, uint32(len(frame)-frameHead))
	binary.LittleEndian.PutUint64(frame[8:], f.number)
	binary.LittleEndian.PutUint32(frame[4:], crc32.Checksum(frame[8:], castagnoli))
}

// long reports whether the open frame has size bytes, so that another one should begin.
func (f *frames) long(size int) bool { return len(f.buf)-f.open >= size }

func (f *frames) policy(id, text string) {
	f.beginNamed(framePolicy, id)
	f.buf = append(f.buf, text...)
	f.end()
}

// commit ends the batch, which begins at the beginning of buf.
func (f *frames) commit(at time.Time) {
	length := len(f.buf)
	f.begin(frameCommit)
	f.buf = binary.LittleEndian.AppendUint64(f.buf, uint64(at.UnixNano()))
	f.buf = binary.LittleEndian.AppendUint64(f.buf, uint64(length))
	f.end()
}

func oneIf(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// appendBytes appends the length of s, and s.
func appendBytes[S []byte | string](b []byte, s S) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendState appends the state of a key to the body of a frame.
func appendState[S []byte | string](b []byte, key S, state []byte) []byte {
	b = appendBytes(b, key)
	b = append(b, byte(len(state)))
	return append(b, state...)
}

// appendRecord appends a record to the body of a frame.
func appendRecord(b []byte, key string, e entry) []byte {
	b = appendBytes(b, key)
	b = append(b, oneIf(e.value == nil))
	b = binary.AppendUvarint(b, uint64(e.until))
	return appendBytes(b, e.value)
}

// decoder reads a body. A read beyond its end sets bad, and returns nothing.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) uvarint() uint64 {
	n, size := binary.Uvarint(d.b)
	if size <= 0 {
		d.b, d.bad = nil, true
		return 0
	}
	d.b = d.b[size:]
	return n
}

func (d *decoder) take(n uint64) []byte {
	if n > uint64(len(d.b)) {
		d.b, d.bad = nil, true
		return nil
	}
	part := d.b[:n:n]
	d.b = d.b[n:]
	return part
}

func (d *decoder) bytes() []byte { return d.take(d.uvarint()) }

func (d *decoder) flag() bool {
	b := d.take(1)
	return len(b) == 1 && b[0] == 1
}

// state reads what appendState has appended behind the key.
func (d *decoder) state() []byte {
	size := d.take(1)
	if d.bad {
		return nil
	}
	return d.take(uint64(size[0]))
}

// record reads a record; its value is a part of the body.
func (d *decoder) record() (key []byte, e entry) {
	key = d.bytes()
	removed := d.flag()
	e.until = limit.Time(d.uvarint())
	if value := d.bytes(); !removed {
		e.value = value
		if e.value == nil {
			e.value = []byte{}
		}
	}
	return key, e
}

func (d *decoder) err() error {
	if d.bad {
		return errBody
	}
	return nil
}

// frame is a frame that was read.
type frame struct {
	number uint64
	kind   byte
	body   []byte
	place  place
}

// place is where a frame is in the file.
type place struct {
	at   int64
	size uint32 // of head and body
}

// parseFrame returns the frame at the beginning of b; ok is false if there is none, or only a part of it.
func parseFrame(b []byte, at int64) (f frame, ok bool) {
	if len(b) < frameHead {
		return f, false
	}
	length := binary.LittleEndian.Uint32(b)
	if length > maxBody || int64(length) > int64(len(b)-frameHead) {
		return f, false
	}
	b = b[:frameHead+length]
	if binary.LittleEndian.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
		return f, false
	}
	return frame{
		number: binary.LittleEndian.Uint64(b[8:]), kind: b[16], body: b[frameHead:],
		place: place{at, uint32(len(b))},
	}, true
}

// readFrame reads the frame at a place. buf is used if it has room.
func readFrame(r io.ReaderAt, p place, kind byte, buf []byte) (frame, []byte, error) {
	if uint32(cap(buf)) < p.size {
		buf = make([]byte, p.size)
	}
	buf = buf[:p.size]
	if _, err := r.ReadAt(buf, p.at); err != nil {
		if errors.Is(err, io.EOF) {
			err = errFrame // it is shorter than when it was opened
		}
		return frame{}, buf, err
	}
	f, ok := parseFrame(buf, p.at)
	if !ok || f.kind != kind || f.place != p {
		return frame{}, buf, errFrame
	}
	return f, buf, nil
}
