package explore

import (
	"encoding/binary"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// encode writes w as bytes; decode reads them.
func (w *World) encode(b []byte) []byte {
	n := func(v uint64) { b = binary.AppendUvarint(b, v) }
	list := func(l []number) {
		n(uint64(len(l)))
		for _, v := range l {
			n(uint64(v))
		}
	}
	n(uint64(w.now / instant))
	b = binary.AppendVarint(b, int64(w.level))
	r := &w.record
	n(r.run<<1 | bit(r.resigned))
	n(r.epoch)
	n(uint64(r.holders))
	n(r.inSync.epoch)
	n(uint64(r.inSync.ids[0]))
	n(uint64(r.inSync.ids[1]))
	n(uint64(r.used))
	n(uint64(w.streams))
	for i := range w.processes {
		p := &w.processes[i]
		n(p.run<<3 | bit(p.paused)<<2 | bit(p.apart)<<1 | bit(p.current))
		n(uint64(p.machine))
		n(p.term)
		n(uint64(p.until))
		n(uint64(p.seenAt))
		n(uint64(p.published))
		n(uint64(p.writing.sent))
		n(uint64(p.writing.holders))
		n(uint64(p.writing.inSync))
		n(uint64(p.listed))
		s := &p.stream
		n(uint64(s.id))
		n(uint64(s.received))
		n(s.confirmed)
		list(s.sent)
		n(uint64(p.replica.id))
		n(p.replica.epoch)
		n(uint64(p.replica.machine))
		n(uint64(len(p.asks)))
		for _, a := range p.asks {
			n(a.must)
			b = binary.AppendVarint(b, int64(a.level))
		}
	}
	for i := range w.instances {
		m := &w.instances[i]
		n(uint64(m.session))
		n(uint64(m.machine))
		n(uint64(m.to+1)<<3 | uint64(m.keeper+1)<<1 | bit(m.paused))
		list(m.up)
		list(m.down)
		n(uint64(len(m.waiting)))
		for _, g := range m.waiting {
			n(uint64(g.grant))
			n(g.must)
		}
		n(uint64(m.late))
		n(uint64(m.lateUp))
		n(uint64(m.replay))
	}
	return append(b, w.faults[:]...)
}

func decode(b []byte) *World {
	n := func() uint64 {
		v, size := binary.Uvarint(b)
		b = b[size:]
		return v
	}
	list := func() []number {
		l := make([]number, n())
		for i := range l {
			l[i] = number(n())
		}
		return l
	}
	amount := func() fixed.Amount {
		v, size := binary.Varint(b)
		b = b[size:]
		return fixed.Amount(v)
	}
	waiting := func() []withheld {
		l := make([]withheld, n())
		for i := range l {
			l[i] = withheld{number(n()), n()}
		}
		return l
	}
	w := &World{now: time.Duration(n()) * instant}
	w.level = amount()
	r := n()
	w.record = record{run: r >> 1, resigned: r&1 == 1, epoch: n(), holders: number(n())}
	w.record.inSync.epoch, w.record.inSync.ids, w.record.used = n(), [2]number{number(n()), number(n())}, number(n())
	w.streams = number(n())
	for i := range w.processes {
		r = n()
		w.processes[i] = process{
			run: r >> 3, paused: r&4 != 0, apart: r&2 != 0, current: r&1 != 0, machine: number(n()), term: n(), until: limit.Time(n()), seenAt: limit.Time(n()),
			published: number(n()), writing: write{limit.Time(n()), number(n()), number(n())}, listed: number(n()),
		}
		w.processes[i].stream = stream{id: number(n()), received: number(n()), confirmed: n(), sent: list()}
		w.processes[i].replica = replica{number(n()), n(), number(n())}
		w.processes[i].asks = make([]asking, n())
		for k := range w.processes[i].asks {
			w.processes[i].asks[k] = asking{n(), amount()}
		}
	}
	for i := range w.instances {
		session, machine := number(n()), number(n())
		r = n()
		w.instances[i] = member{
			session: session, machine: machine, paused: r&1 != 0, to: int(r>>3) - 1, keeper: int(r>>1&3) - 1, up: list(), down: list(), waiting: waiting(), late: number(n()), lateUp: number(n()), replay: number(n()),
		}
	}
	copy(w.faults[:], b)
	return w
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
