package replay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// topKeys is how many keys of each limit a report names.
const topKeys = 10

// Report is what a replay has shown.
type Report struct {
	// Lines are all lines of the logs, Bad those that could not be read, of which Unread shows some.
	Lines  int64    `json:"lines"`
	Bad    int64    `json:"bad"`
	Unread []Unread `json:"unread"`
	// First and Last are when the first and the last request came.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	// Logged are the requests that the log says were refused already, by their status.
	Logged    int64     `json:"logged"`
	Backwards Backwards `json:"backwards"`
	// Formats are those of the logs.
	Formats []string `json:"formats"`

	Result
	// Against is what the configuration to compare with would have done; nil = there is none.
	Against *Against `json:"against,omitempty"`

	// Notes say where the figures mean less than they seem to.
	Notes []string `json:"notes"`
}

// Unread is a line that could not be read.
type Unread struct {
	Log  string `json:"log"`
	Line int    `json:"line"`
	Why  string `json:"why"`
}

// Backwards says how far the times of a log go back.
type Backwards struct {
	Lines int64         `json:"lines"` // earlier than some line before
	Most  time.Duration `json:"most"`  // by how much at most, in nanoseconds
	Late  int64         `json:"late"`  // by more than could be put in order: decided at the time of the latest line
}

// Result is what one configuration would have done.
type Result struct {
	Requests int64   `json:"requests"`
	Admitted int64   `json:"admitted"`
	Refused  int64   `json:"refused"`
	Limits   []Limit `json:"limits"`

	width time.Duration
	start limit.Time
	all   series
}

// Limit is what one limit would have done. A request may meet several.
type Limit struct {
	Name string `json:"limit"`
	File string `json:"file"`
	Line int    `json:"line"`

	// Asked are the requests that met the limit. Admitted are those of them that all limits admitted, and
	// Others those that other limits alone refused.
	Asked    int64 `json:"asked"`
	Admitted int64 `json:"admitted"`
	Others   int64 `json:"refused_by_others"`
	// Refused are refusals by this limit. Banned and Missing are those of them for a ban, and for an
	// attribute that is missing.
	Refused int64 `json:"refused"`
	Banned  int64 `json:"banned"`
	Missing int64 `json:"missing"`
	// Shadow are refusals that refuse nothing: of a shadow limit, or of one that tags.
	Shadow int64 `json:"shadow"`

	// First and Last are when it refused first and last; nil = never.
	First *time.Time `json:"first"`
	Last  *time.Time `json:"last"`

	// Keys are those that were refused most. No count is too low, and none is too high by more than
	// KeysError.
	Keys      []Key `json:"keys"`
	KeysError int64 `json:"keys_error"`

	// Newly are the requests that it refused and that the configuration compared with admitted.
	Newly     int64 `json:"newly,omitempty"`
	NewlyKeys []Key `json:"newly_keys,omitempty"`

	// Bursts are of token buckets, the limit's own rate first, then its overrides; nil unless [Options.Bursts] asks.
	Bursts []Bursts `json:"bursts,omitempty"`

	limit  *rules.Limit
	series series
}

// Key is a key that was refused.
type Key struct {
	Key     string    `json:"key"`
	Refused int64     `json:"refused"`
	First   time.Time `json:"first"`
	Last    time.Time `json:"last"`
}

// Against compares two configurations by what became of each request.
type Against struct {
	// NewlyRefused were admitted by the one to compare with, NewlyAdmitted refused by it.
	NewlyRefused  int64 `json:"newly_refused"`
	NewlyAdmitted int64 `json:"newly_admitted"`
	Result
}

func newReport(o *Options) *Report {
	r := &Report{Unread: []Unread{}, Notes: []string{}, Formats: []string{}}
	if o.Against != nil {
		r.Against = &Against{}
	}
	return r
}

func stamp(at limit.Time) time.Time { return time.Unix(0, int64(at)).UTC() }

// read adds what a stream has found.
func (r *Report) read(s *stream) {
	r.Lines += s.all
	r.Bad += s.bad
	r.Unread = append(r.Unread, s.unread...)
	r.Unread = r.Unread[:min(len(r.Unread), maxShown)]
	if s.format != nil && !slices.Contains(r.Formats, s.format.Name()) {
		r.Formats = append(r.Formats, s.format.Name())
	}
}

// fill writes what p has counted.
func (p *player) fill(r *Result) {
	r.Requests, r.Refused = p.total.asked, p.total.refused
	r.Admitted = r.Requests - r.Refused
	r.width, r.start, r.all = p.time.width, p.time.start, p.total.series
	r.Limits = []Limit{}
	for _, l := range p.set.Limits() {
		c := p.limits[l.Base.Index]
		out := Limit{
			Name: l.Name, File: l.File, Line: l.Line,
			Asked: c.asked, Admitted: c.admitted, Refused: c.refused, Others: c.asked - c.admitted - c.refused, Banned: c.banned, Missing: c.missing, Shadow: c.shadow,
			Keys: keysOf(&c.keys, l), KeysError: c.keys.bound(),
			Newly: c.newly, NewlyKeys: keysOf(&c.newKeys, l),
			Bursts: p.fits.report(l), limit: l, series: c.series,
		}
		if c.first != 0 {
			first, last := stamp(c.first), stamp(c.last)
			out.First, out.Last = &first, &last
		}
		r.Limits = append(r.Limits, out)
	}
}

func keysOf(s *sketch, l *rules.Limit) []Key {
	keys := []Key{}
	for _, c := range s.top(topKeys) {
		text := cmp.Or(l.KeyText([]byte(c.key)), "all requests")
		keys = append(keys, Key{text, c.n, stamp(c.first), stamp(c.last)})
	}
	return keys
}

// compare notes what became of the lines of the latest play.
func (a *Against) compare(p, old *player) {
	for i := range p.refusals {
		now, before := &p.refusals[i], &old.refusals[i]
		switch {
		case now.refused && !before.refused:
			a.NewlyRefused++
			if c := now.counts; c != nil {
				c.newly++
				c.newKeys.add(now.key, now.at)
			}
		case !now.refused && before.refused:
			a.NewlyAdmitted++
		}
	}
}

// warn adds what a reader of the figures has to know.
func (r *Report) warn(run *run, streams []*stream) {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	took, coarse := false, false
	for _, s := range streams {
		took = took || s.parser != nil && s.parser.HasTook()
		coarse = coarse || s.parser != nil && s.parser.Coarse()
	}
	if coarse && !run.o.Bunched {
		note("the log has whole seconds: the requests of a second are taken to come evenly within it")
	}
	if coarse && run.o.Bunched {
		note("the log has whole seconds: the requests of a second are taken to come all at its beginning")
	}
	if r.Backwards.Late > 0 {
		note("%d requests came more than %v before a line in front of them, and were decided at that line's time", r.Backwards.Late, max(run.o.Reorder, 0))
	}
	for _, l := range run.o.Set.Limits() {
		r.warnOf(l, run, took, note)
	}
	if n := run.player.overflowed; n > 0 {
		note("%d decisions shared a counter with other keys, as in a service whose memory is full", n)
	}
}

func (r *Report) warnOf(l *rules.Limit, run *run, took bool, note func(string, ...any)) {
	var absent []string
	for _, name := range l.Key {
		if !run.fields[name] && slices.Contains(run.names, name) {
			absent = append(absent, name)
		}
	}
	if absent != nil {
		note("limit %s counts by %s, which no line has: say with --field %s=NAME which field has it", l.Name, strings.Join(absent, " and "), absent[0])
	}
	if l.Envoy {
		note("limit %s is in Envoy's format, whose descriptors are in no log: it met no request", l.Name)
	}
	if l.Base.Policy.Algorithm == limit.Concurrency && !took {
		note("limit %s counts requests in flight, and the log does not say how long they took: it is taken as never full", l.Name)
	}
	if l.OnExceed.MaxWait > 0 {
		note("limit %s lets requests wait: those that would have waited are counted as refused", l.Name)
	}
	if l.Sharing != rules.SharingExact {
		note("limit %s is shared by several instances: the figures are those of one that has all of it", l.Name)
	}
}
