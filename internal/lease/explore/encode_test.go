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
	record := func(r *record) {
		if n(r.run<<5 | bit(r.unled.clean)<<4 | bit(r.unled.is)<<3 | bit(r.published)<<2 | bit(r.lost)<<1 | bit(r.resigned)); r.run == 0 {
			return
		}
		n(r.write)
		n(r.epoch)
		n(r.unled.epoch)
		n(uint64(r.holders))
		n(r.risen)
		n(r.inSync.epoch)
		n(uint64(r.inSync.ids[0]))
		n(uint64(r.inSync.ids[1]))
		n(uint64(r.used))
	}
	record(&w.record)
	record(&w.kept)
	n(w.latest<<1 | bit(w.lost))
	n(uint64(w.streams))
	for i := range w.processes {
		p := &w.processes[i]
		n(p.run<<7 | bit(p.first)<<6 | bit(p.beginning)<<5 | bit(p.follows)<<4 | bit(p.outdated)<<3 | bit(p.paused)<<2 | bit(p.apart)<<1 | bit(p.current))
		n(uint64(p.machine))
		n(p.term)
		n(uint64(p.until))
		n(p.from.epoch<<3 | bit(p.from.clean)<<2 | bit(p.from.watched)<<1 | bit(p.from.lost))
		record(&p.wrote)
		n(p.writes)
		n(uint64(p.seenAt))
		n(p.seen)
		n(p.epoch)
		n(p.write)
		n(p.folder)
		n(p.known)
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
	readRecord := func() (r record) {
		bits := n()
		if r.run = bits >> 5; r.run == 0 {
			return r
		}
		r.resigned, r.lost, r.published = bits&1 != 0, bits&2 != 0, bits&4 != 0
		r.write, r.epoch, r.unled = n(), n(), unled{bits&8 != 0, n(), bits&16 != 0}
		r.holders, r.risen = number(n()), n()
		r.inSync.epoch, r.inSync.ids, r.used = n(), [2]number{number(n()), number(n())}, number(n())
		return r
	}
	w.record, w.kept = readRecord(), readRecord()
	r := n()
	w.latest, w.lost = r>>1, r&1 != 0
	w.streams = number(n())
	for i := range w.processes {
		r = n()
		w.processes[i] = process{
			run: r >> 7, first: r&64 != 0, beginning: r&32 != 0, follows: r&16 != 0, outdated: r&8 != 0, paused: r&4 != 0, apart: r&2 != 0, current: r&1 != 0,
			machine: number(n()), term: n(), until: limit.Time(n()),
		}
		p := &w.processes[i]
		r = n()
		p.from = predecessor{r >> 3, r&4 != 0, r&2 != 0, r&1 != 0}
		p.wrote, p.writes, p.seenAt, p.seen, p.epoch, p.write, p.folder, p.known = readRecord(), n(), limit.Time(n()), n(), n(), n(), n(), n()
		p.published, p.writing, p.listed = number(n()), write{limit.Time(n()), number(n()), number(n())}, number(n())
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
