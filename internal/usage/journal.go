package usage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// A journal is a file of one table. It begins with a header: magic, version, hour, origin. Behind it,
// and in further pieces of segmentSize bytes, are entries, none of which crosses into the next piece:
//
//	size      uint32  of the whole entry, a multiple of 8; written last; 0 = no further entry in the piece
//	sum       uint32  CRC-32C of what follows the counts
//	taken     uint64
//	returned  uint64
//	start     int64
//	limit     uint16 and as many bytes
//	subject   uint16 and as many bytes
//
// Numbers are those of a little-endian machine; counts are changed in place.
const (
	journalMagic   = "stintusg"
	journalVersion = 1
	journalSuffix  = ".usage"
	headerSize     = 64
	segmentSize    = 256 << 10
	entryHead      = 24 // bytes before what the sum covers
)

var crcTable = crc32.MakeTable(crc32.Castagnoli)

// errNewer says that a file is of a newer version of stint.
var errNewer = errors.New("it was written by a newer version of stint: start that one once more with this folder, or move the file away, and what it counted is not reported")

func journalHeader(hour int64, origin string) []byte {
	b := append(make([]byte, 0, headerSize), journalMagic...)
	b = binary.LittleEndian.AppendUint32(b, journalVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(hour))
	b = append(b, byte(len(origin)))
	b = append(b, origin...)
	return append(b, make([]byte, headerSize-len(b))...)
}

// entry returns the bytes of an entry without its size: at most a thousand.
func (s *slot) entry() []byte {
	b := make([]byte, entryHead, entryHead+16+len(s.limit)+len(s.subject))
	b = binary.LittleEndian.AppendUint64(b, uint64(s.start))
	for _, text := range []string{s.limit, s.subject} {
		b = binary.LittleEndian.AppendUint16(b, uint16(len(text)))
		b = append(b, text...)
	}
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[entryHead:], crcTable))
	b = append(b, make([]byte, (8-len(b)%8)%8)...)
	return b
}

// readJournal returns the table that a file holds, closed. An entry that is not whole ends its piece: it is that
// of a machine that lost its power.
func readJournal(file string) (t *table, damaged bool, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, false, err
	}
	if t, damaged, err = parseJournal(b); err != nil {
		err = fmt.Errorf("usage: %s: %w", file, err)
	}
	return t, damaged, err
}

// parseJournal is readJournal for the bytes of a file. Without a header there is no table.
func parseJournal(b []byte) (t *table, damaged bool, err error) {
	if len(b) < headerSize || !bytes.HasPrefix(b, []byte(journalMagic)) {
		return nil, true, nil
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != journalVersion {
		return nil, false, errNewer
	}
	n := int(b[20])
	if 21+n > headerSize || n == 0 {
		return nil, true, nil
	}
	t = newTable(int64(binary.LittleEndian.Uint64(b[12:])), nil)
	t.origin = string(b[21 : 21+n])
	t.close()
	for piece := 0; piece < len(b); piece += segmentSize {
		in := b[piece:min(piece+segmentSize, len(b))]
		if piece == 0 {
			in = in[headerSize:]
		}
		for len(in) >= entryHead {
			size := int(binary.LittleEndian.Uint32(in))
			if size == 0 {
				break
			}
			s := parseEntry(in, size)
			if s == nil {
				damaged = true
				break
			}
			t.slots = append(t.slots, s)
			in = in[size:]
		}
	}
	return t, damaged, nil
}

func parseEntry(in []byte, size int) *slot {
	if size < entryHead+12 || size > len(in) || size%8 != 0 {
		return nil
	}
	e := in[:size]
	s := &slot{n: new(counts), start: int64(binary.LittleEndian.Uint64(e[entryHead:]))}
	s.n.taken.Store(binary.LittleEndian.Uint64(e[8:]))
	s.n.returned.Store(binary.LittleEndian.Uint64(e[16:]))
	at := entryHead + 8
	for _, text := range []*string{&s.limit, &s.subject} {
		if at+2 > size {
			return nil
		}
		n := int(binary.LittleEndian.Uint16(e[at:]))
		if at += 2; at+n > size {
			return nil
		}
		*text = string(e[at : at+n])
		at += n
	}
	if len(s.limit) > maxName || len(s.subject) > maxSubject || strings.Contains(s.limit+s.subject, "\x00") {
		return nil
	}
	if crc32.Checksum(e[entryHead:at], crcTable) != binary.LittleEndian.Uint32(e[4:]) {
		return nil
	}
	return s
}

// recover returns the tables of processes that have ended. Files that others hold are theirs.
func (m *Meter) recover(folder string) (left []*table, err error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("usage: cannot use the folder: %w; give one that this user may write", err)
	}
	list, err := os.ReadDir(folder)
	if err != nil {
		return nil, fmt.Errorf("usage: cannot read the folder: %w", err)
	}
	for _, f := range list {
		if !strings.HasSuffix(f.Name(), journalSuffix) {
			continue
		}
		name := filepath.Join(folder, f.Name())
		j, err := takeJournal(name)
		if errors.Is(err, errHeld) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			m.opts.Logger.Error("a file of usage is left alone: it cannot be opened", "err", err)
			continue
		}
		t, damaged, err := readJournal(name)
		if err != nil { // of a newer version, or it cannot be read
			m.opts.Logger.Error("a file of usage is left alone: what it counted is not reported", "err", err)
			_ = j.release()
			continue
		}
		if t == nil { // killed before it had a header, or not ours
			m.opts.Logger.Warn("a file of usage has no header and is left alone", "file", name)
			_ = j.release()
			continue
		}
		if damaged {
			m.opts.Logger.Warn("a file of usage is damaged, as after a loss of power: what is whole in it is reported", "file", name)
		}
		t.file = j
		left = append(left, t)
	}
	return left, nil
}
