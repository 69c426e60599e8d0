package usage

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

const (
	// DefaultMaxKeys bounds the keys of one hour: 100,000, some 20 MB. Strangers may make keys, within
	// their limits.
	DefaultMaxKeys = 100_000
	// DefaultKeep is how long hours are kept: 400 days, so that a month can be compared with that of the
	// year before.
	DefaultKeep = 400 * 24 * time.Hour
	// OtherKeys is the subject under which keys beyond the bound are counted together.
	OtherKeys = "*"

	// A mark's key has at most store.MaxRecordKey bytes: both of these, and some 40 more.
	maxName    = 250
	maxSubject = 700
)

// Options are the choices of a [Meter]. The zero value counts in memory and reports nowhere.
type Options struct {
	// Records is where the process reports to, and from where [Meter.History] reads; nil = nowhere.
	Records store.Records
	// Folder has the files that survive a kill; "" = none. Several processes may have one folder.
	Folder string
	// MaxKeys bounds the keys of one hour; 0 = [DefaultMaxKeys].
	MaxKeys int
	// Every is the time between reports; 0 = a second.
	Every time.Duration
	// Keep is how long hours are kept; 0 = [DefaultKeep].
	Keep time.Duration
	// Now is the clock; nil = the system's.
	Now func() limit.Time
	// Logger gets what goes wrong; nil = slog.Default.
	Logger *slog.Logger
}

// Meter counts what was admitted. It is safe for concurrent use. Make it with [New].
type Meter struct {
	opts    Options
	current atomic.Pointer[table]

	mu     sync.Mutex
	closed []*table // not wholly reported yet, oldest first

	ended     atomic.Bool
	reporting sync.Mutex // held by Report
	stats     struct{ reports, failures, overflows, recovered atomic.Uint64 }
}

// Stats are figures of a [Meter] since it was made.
type Stats struct {
	// Reports and Failures count batches that the records took, or did not take.
	Reports, Failures uint64
	// Overflows counts requests whose key was counted under [OtherKeys].
	Overflows uint64
	// Recovered counts tables that a process which had ended left in the folder.
	Recovered uint64
	// Keys is how many keys of how many hours are in this process now.
	Keys, Tables int
}

// New returns a meter. With a folder it takes over what processes that have ended left there. The error is that
// of a folder which cannot be used.
func New(o Options) (*Meter, error) {
	o.MaxKeys = cmp.Or(max(o.MaxKeys, 0), DefaultMaxKeys)
	o.Every = cmp.Or(max(o.Every, 0), time.Second)
	o.Keep = cmp.Or(max(o.Keep, 0), DefaultKeep)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Now == nil {
		o.Now = func() limit.Time { return limit.At(time.Now()) }
	}
	m := &Meter{opts: o}
	if o.Folder != "" {
		left, err := m.recover(o.Folder)
		if err != nil {
			return nil, err
		}
		m.closed = left
		m.stats.recovered.Add(uint64(len(left)))
	}
	m.current.Store(m.newTable(hourOf(o.Now())))
	return m, nil
}

func (m *Meter) newTable(hour int64) *table {
	if m.opts.Folder == "" {
		return newTable(hour, nil)
	}
	j, err := createJournal(m.opts.Folder, hour)
	if err != nil {
		// To count in memory is better than to refuse requests.
		m.opts.Logger.Error("usage of this hour is in memory alone, a kill of the process loses up to a second of it", "err", err)
	}
	return newTable(hour, j)
}

// Of is what the meter knows of a limit. Make it once for each limit with [NewOf].
type Of struct {
	limit string
	zone  *time.Location
	// subject decodes a key of the store.
	subject func(key []byte) []limit.Attribute
	// local caches the offset of the zone in the hour that was asked for last.
	local atomic.Pointer[offset]
}

type offset struct{ hour, seconds int64 }

// NewOf returns what the meter must know of the limit of that name: the time zone of its days (nil = UTC), and
// the attributes of a key, in the order of the limit's key.
func NewOf(name string, zone *time.Location, subject func(key []byte) []limit.Attribute) *Of {
	return &Of{limit: short(name), zone: cmp.Or(zone, time.UTC), subject: subject}
}

// start returns when the hour of now began in the limit's time zone. Zones are off by parts of an hour.
func (l *Of) start(now limit.Time, utc int64) int64 {
	o := l.local.Load()
	if o == nil || o.hour != utc {
		_, seconds := time.Unix(utc*hour, 0).In(l.zone).Zone()
		o = &offset{utc, int64(seconds)}
		l.local.Store(o)
	}
	local := int64(max(now, 0))/1e9 + o.seconds
	return local - (local%hour+hour)%hour - o.seconds
}

// Taken counts cost as admitted by a limit, and Returned as given back. The key is the store's.
func (m *Meter) Taken(l *Of, key []byte, cost int64) { m.count(l, key, cost, 0) }

// Returned counts cost as given back.
func (m *Meter) Returned(l *Of, key []byte, cost int64) { m.count(l, key, 0, cost) }

func (m *Meter) count(l *Of, key []byte, taken, returned int64) {
	if taken <= 0 && returned <= 0 {
		return
	}
	now := m.opts.Now()
	utc := hourOf(now)
	start := l.start(now, utc)
	var space [256]byte
	whole := append(append(append(space[:0], l.limit...), 0, byte(start/60), byte(start/60>>8)), key...)
	for {
		t := m.current.Load()
		if t.hour != utc {
			m.turn(t, utc)
			continue
		}
		known := true
		if t.size.Load() >= int64(m.opts.MaxKeys) && !t.has(whole) {
			whole, known = append(whole[:len(l.limit)+3], 0xff, 0xff, OtherKeys[0]), false
			m.stats.overflows.Add(1)
		}
		if t.count(whole, taken, returned, func() *slot {
			s := &slot{limit: l.limit, subject: OtherKeys, start: start}
			if known {
				s.subject = Subject(l.subject(key))
			}
			return s
		}) || m.ended.Load() {
			return
		}
	}
}

func (t *table) has(key []byte) bool {
	s := &t.shards[fnv(key)%shards]
	s.RLock()
	defer s.RUnlock()
	return s.slots[string(key)] != nil
}

// turn puts a table of another hour in the place of t. A clock that is set back makes a second table of an hour
// that had one, with an origin of its own.
func (m *Meter) turn(t *table, hour int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.current.Load() != t {
		return
	}
	m.current.Store(m.newTable(hour))
	t.close()
	m.closed = append(m.closed, t)
}

// Subject writes attributes as text: customer=acme&user=bob, in their order, escaped as in a URL. Very long
// ones are a hash.
func Subject(attrs []limit.Attribute) string {
	var b strings.Builder
	for i, a := range attrs {
		if i > 0 {
			b.WriteByte('&')
		}
		b.WriteString(url.QueryEscape(a.Name))
		b.WriteByte('=')
		b.WriteString(url.QueryEscape(a.Value))
	}
	text := b.String()
	if len(text) <= maxSubject {
		return text
	}
	return "sha256=" + sum(text)
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}

// short returns the name of a limit, without its end if it is very long: those of rules in Envoy's format have
// all their descriptors in them.
func short(name string) string {
	name = strings.ReplaceAll(name, "\x00", "")
	if len(name) <= maxName {
		return name
	}
	return name[:maxName-65] + "~" + sum(name)
}

// Attributes is the inverse of [Subject].
func Attributes(subject string) (attrs []limit.Attribute) {
	if subject == "" {
		return nil
	}
	for part := range strings.SplitSeq(subject, "&") {
		name, value, _ := strings.Cut(part, "=")
		n, err1 := url.QueryUnescape(name)
		v, err2 := url.QueryUnescape(value)
		if err1 != nil || err2 != nil {
			n, v = name, value
		}
		attrs = append(attrs, limit.Attribute{Name: n, Value: v})
	}
	return attrs
}

// Stats returns figures.
func (m *Meter) Stats() Stats {
	s := Stats{
		Reports: m.stats.reports.Load(), Failures: m.stats.failures.Load(), Overflows: m.stats.overflows.Load(),
		Recovered: m.stats.recovered.Load(),
	}
	for _, t := range m.tables() {
		s.Tables++
		s.Keys += len(t.all())
	}
	return s
}

// tables returns those that are not wholly reported, and the current one last.
func (m *Meter) tables() []*table {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append(m.closed[:len(m.closed):len(m.closed)], m.current.Load())
}
