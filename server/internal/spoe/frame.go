package spoe

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// frameType is the first byte of a frame.
type frameType byte

const (
	frameUnset           frameType = 0 // a further fragment
	frameHello           frameType = 1
	frameDisconnect      frameType = 2
	frameNotify          frameType = 3
	frameAgentHello      frameType = 101
	frameAgentDisconnect frameType = 102
	frameAck             frameType = 103
	flagFin, flagAbort             = uint32(1), uint32(2)
	prefixLen                      = 4
	minFrame                       = 7 // a type, the flags, and two numbers of one byte
	smallestMost         uint64    = 256
	typeNull             byte      = 0
	typeBool             byte      = 1
	typeInt32            byte      = 2
	typeUint32           byte      = 3
	typeInt64            byte      = 4
	typeUint64           byte      = 5
	typeIPv4             byte      = 6
	typeIPv6             byte      = 7
	typeString           byte      = 8
	typeBinary           byte      = 9
	boolTrue             byte      = 0x10
	actionSet, setArgs             = byte(1), byte(3)
	scopeTransaction     byte      = 2
	longestVarint                  = 10
)

// status is why a connection ends, as the protocol numbers the reasons.
type status uint64

const (
	statusNormal       status = 0
	statusTimeout      status = 2
	statusTooBig       status = 3
	statusInvalid      status = 4
	statusNoVersion    status = 5
	statusNoSize       status = 6
	statusNoCaps       status = 7
	statusVersion      status = 8
	statusSize         status = 9
	statusFragment     status = 10
	statusNoRoom       status = 13
	statusUnauthorized status = 100 // our own: the protocol leaves those above 99 free
)

// fault says why a frame cannot be understood. The connection ends with it.
type fault struct {
	status status
	text   string
}

func (f *fault) Error() string { return "spoe: " + f.text }

var (
	errShort  = &fault{statusInvalid, "the frame ends within a value"}
	errVarint = &fault{statusInvalid, "a number does not fit into 64 bits"}
	errType   = &fault{statusInvalid, "a value has a type that the protocol does not have"}
)

// header is what every frame begins with.
type header struct {
	kind          frameType
	flags         uint32
	stream, frame uint64
}

// varint reads a number and returns what follows it.
func varint(b []byte) (v uint64, rest []byte, err error) {
	if len(b) == 0 {
		return 0, nil, errShort
	}
	v = uint64(b[0])
	if v < 240 {
		return v, b[1:], nil
	}
	shift := uint(4)
	for i := 1; i < len(b); i++ {
		if i == longestVarint {
			return 0, nil, errVarint
		}
		part := uint64(b[i]) << shift
		if part>>shift != uint64(b[i]) || v+part < v {
			return 0, nil, errVarint
		}
		v += part
		if b[i] < 128 {
			return v, b[i+1:], nil
		}
		shift += 7
	}
	return 0, nil, errShort
}

// appendVarint writes a number.
func appendVarint(b []byte, v uint64) []byte {
	if v < 240 {
		return append(b, byte(v))
	}
	b = append(b, byte(v)|240)
	for v = (v - 240) >> 4; v >= 128; v = (v - 128) >> 7 {
		b = append(b, byte(v)|128)
	}
	return append(b, byte(v))
}

// text reads a length and as many bytes, which belong to the frame.
func text(b []byte) (s, rest []byte, err error) {
	n, b, err := varint(b)
	if err != nil {
		return nil, nil, err
	}
	if n > uint64(len(b)) {
		return nil, nil, errShort
	}
	return b[:n], b[n:], nil
}

func appendText(b []byte, s string) []byte { return append(appendVarint(b, uint64(len(s))), s...) }

// value is one value of a frame. Its bytes belong to the frame.
type value struct {
	kind  byte
	bytes []byte // of strings
	n     uint64 // of numbers
	flag  bool
	addr  netip.Addr
}

// typed reads a value with its type.
func typed(b []byte) (v value, rest []byte, err error) {
	if len(b) == 0 {
		return v, nil, errShort
	}
	v.kind, v.flag = b[0]&0x0f, b[0]&boolTrue != 0
	b = b[1:]
	switch v.kind {
	case typeNull, typeBool:
		return v, b, nil
	case typeInt32, typeUint32, typeInt64, typeUint64:
		v.n, rest, err = varint(b)
		return v, rest, err
	case typeIPv4:
		if len(b) < 4 {
			return v, nil, errShort
		}
		v.addr = netip.AddrFrom4([4]byte(b))
		return v, b[4:], nil
	case typeIPv6:
		if len(b) < 16 {
			return v, nil, errShort
		}
		v.addr = netip.AddrFrom16([16]byte(b))
		return v, b[16:], nil
	case typeString, typeBinary:
		v.bytes, rest, err = text(b)
		return v, rest, err
	default:
		return v, nil, errType
	}
}

// signed returns a number as its type has it. Numbers of 32 bits may come extended to 64.
func (v *value) signed() (n int64, ok bool) {
	switch v.kind {
	case typeInt32:
		return int64(int32(v.n)), true
	case typeUint32:
		return int64(uint32(v.n)), true
	case typeInt64:
		return int64(v.n), true
	case typeUint64:
		return int64(v.n), int64(v.n) >= 0
	default:
		return 0, false
	}
}

// parseHeader reads the beginning of a frame and returns its payload.
func parseHeader(b []byte) (h header, payload []byte, err error) {
	if len(b) < minFrame {
		return h, nil, errShort
	}
	h.kind, h.flags = frameType(b[0]), binary.BigEndian.Uint32(b[1:])
	if h.stream, b, err = varint(b[5:]); err != nil {
		return h, nil, err
	}
	h.frame, b, err = varint(b)
	switch {
	case err != nil:
		return h, nil, err
	case h.kind == frameUnset || h.flags&flagFin == 0:
		return h, nil, &fault{statusFragment, "the frame is a fragment, and this agent has not offered to put fragments together"}
	case h.flags&flagAbort != 0:
		return h, nil, &fault{statusInvalid, "the frame aborts fragments, and there are none"}
	}
	return h, b, nil
}

// begin appends the beginning of a frame; end writes its length.
func begin(b []byte, kind frameType, stream, frame uint64) []byte {
	b = append(b, 0, 0, 0, 0, byte(kind))
	b = binary.BigEndian.AppendUint32(b, flagFin)
	return appendVarint(appendVarint(b, stream), frame)
}

// end writes the length of the frame that began at start.
func end(b []byte, start int) []byte {
	binary.BigEndian.PutUint32(b[start:], uint32(len(b)-start-prefixLen))
	return b
}

func appendPairText(b []byte, name, s string) []byte {
	return appendText(append(appendText(b, name), typeString), s)
}

func appendPairNumber(b []byte, name string, n uint64) []byte {
	return appendVarint(append(appendText(b, name), typeUint32), n)
}

// appendDisconnect appends the frame that ends a connection.
func appendDisconnect(b []byte, why status, message string) []byte {
	start := len(b)
	b = begin(b, frameAgentDisconnect, 0, 0)
	b = appendPairNumber(b, "status-code", uint64(why))
	return end(appendPairText(b, "message", message), start)
}

// asFault is the fault that err is.
func asFault(err error) *fault {
	if f := (*fault)(nil); errors.As(err, &f) {
		return f
	}
	return &fault{status: statusInvalid, text: "the frame cannot be read"}
}
