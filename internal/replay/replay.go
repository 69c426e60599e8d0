// Package replay decides the requests of access logs by the limits of a configuration, at the times of
// the log: what would have been refused, and by which limits and keys.
//
// It uses the engine and the memory store of the service, with the log's time in place of the clock, so
// that its decisions are those that the service makes of the same requests at the same times. Requests
// are decided one after the other in order of time, since one may meet several limits with different
// keys; lines are read and parsed beside that. It writes no counter anywhere and connects to nothing.
package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/accesslog"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// DefaultReorder is how much earlier than the lines before it a line may be and still be decided in its
// order: 10 s. Not shorter: servers write most lines when the answer has been sent, and that long answers
// take. Not longer: the lines of that time are in memory.
const DefaultReorder = 10 * time.Second

// maxPending bounds the lines that wait to be put in order, whatever the reorder time. Not larger: they
// take some 300 bytes each. Not smaller: the reorder time should hold for 20,000 lines per second.
const maxPending = 1 << 18

// maxShown bounds the lines that could not be read which a report shows.
const maxShown = 5

// Log is an access log.
type Log struct {
	Name string
	Open func() (io.ReadCloser, error)
}

// Options say what to replay.
type Options struct {
	// Set has the limits; Against, if it is not nil, those to compare with.
	Set, Against *rules.Set
	// Logs are read at the same time and merged by time.
	Logs []Log
	// Format is as [accesslog.ParseFormat] takes it; "" = that of the first line.
	Format string
	// Fields and Cost are those of [accesslog.Want].
	Fields map[string]string
	Cost   string
	// Reorder is as [DefaultReorder]; 0 = that, and below 0 = lines are decided as they come.
	Reorder time.Duration
	// Bunched leaves requests of which only the second is known at the beginning of that second.
	// Otherwise they are spread evenly over it.
	Bunched bool
	// Statuses are those of lines that were refused already; nil = 429.
	Statuses []int
	// MaxBytes bounds the counters, as in the service; 0 = its default.
	MaxBytes int64

	// Bursts asks which bursts the token buckets of Set would have needed: [Limit.Bursts].
	Bursts bool

	// OnDecision, if it is not nil, gets each line with the decision of Set. Both are valid during the
	// call only.
	OnDecision func(line *accesslog.Line, d *limit.Decision)
	// OnProgress, if it is not nil, is called now and then with the number of lines that are decided.
	OnProgress func(lines int64)
}

// ErrNoLines is wrapped by the error of logs of which no line could be read.
var ErrNoLines = errors.New("no line could be read")

// run is a replay in progress.
type run struct {
	o       *Options
	names   []string // of the attributes
	player  *player
	against *player // nil = none
	report  *Report

	pending []accesslog.Line
	sorted  int        // how many of pending are in order
	newest  limit.Time // of all lines so far
	decided limit.Time // the time of the latest line that was decided
	start   bool
	fields  map[string]bool // attributes that some line had
}

// Run replays the logs. When ctx ends it returns its error.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Reorder == 0 {
		o.Reorder = DefaultReorder
	}
	if o.Statuses == nil {
		o.Statuses = []int{429}
	}
	r := &run{o: &o, report: newReport(&o), newest: minTime, decided: minTime, fields: map[string]bool{}}
	var err error
	if r.player, err = newPlayer(o.Set, o.MaxBytes); err != nil {
		return nil, err
	}
	if o.Bursts {
		r.player.fits = &fits{of: map[int]*bursts{}}
	}
	r.names = r.player.engine.Attributes()
	if o.Against != nil {
		if r.against, err = newPlayer(o.Against, o.MaxBytes); err != nil {
			return nil, err
		}
		r.names = slices.Concat(r.names, r.against.engine.Attributes())
		slices.Sort(r.names)
		r.names = slices.Compact(r.names)
		r.player.comparing, r.against.comparing = true, true
	}
	if slices.Contains(r.names, "path") {
		r.names = append(slices.Clone(r.names), identify.PathCleaned, identify.PathSent)
	}
	ctx, cancel := context.WithCancel(ctx)
	var readers sync.WaitGroup
	defer readers.Wait()
	defer cancel()
	streams := make([]*stream, len(o.Logs))
	for i := range o.Logs {
		streams[i] = newStream(&o, &o.Logs[i], r.names)
		readers.Go(func() { streams[i].run(ctx) })
	}
	if err := r.merge(ctx, streams); err != nil {
		return nil, err
	}
	return r.conclude(streams)
}

const minTime = limit.Time(-1 << 62)

// merge decides the lines of all streams in the order of their times.
func (r *run) merge(ctx context.Context, streams []*stream) error {
	for _, s := range streams {
		if err := s.fill(ctx); err != nil {
			return err
		}
	}
	for {
		first, second := -1, limit.Time(1<<62)
		for i, s := range streams {
			if len(s.lines) == 0 {
				continue
			}
			if at := s.lines[0].At; first < 0 || at < streams[first].lines[0].At {
				if first >= 0 {
					second = min(second, streams[first].lines[0].At)
				}
				first = i
			} else {
				second = min(second, at)
			}
		}
		if first < 0 {
			return r.flush(ctx, true)
		}
		s, n := streams[first], 1
		for n < len(s.lines) && s.lines[n].At <= second {
			n++
		}
		r.add(s.lines[:n])
		if s.lines = s.lines[n:]; len(s.lines) == 0 {
			if err := s.fill(ctx); err != nil {
				return err
			}
		}
		if len(r.pending) >= 2*r.sorted+4096 || len(r.pending) >= maxPending {
			if err := r.flush(ctx, false); err != nil {
				return err
			}
		}
	}
}

func (r *run) add(lines []accesslog.Line) {
	for i := range lines {
		at := lines[i].At
		if at < r.newest {
			r.report.Backwards.Lines++
			r.report.Backwards.Most = max(r.report.Backwards.Most, time.Duration(r.newest-at))
		}
		r.newest = max(r.newest, at)
	}
	r.pending = append(r.pending, lines...)
}

// flush decides the pending lines that no later line can precede, or all.
func (r *run) flush(ctx context.Context, all bool) error {
	byTime := func(a, b accesslog.Line) int { return cmp.Compare(a.At, b.At) }
	ordered := r.o.Reorder < 0
	if !ordered && !slices.IsSortedFunc(r.pending, byTime) {
		slices.SortStableFunc(r.pending, byTime)
	}
	ready := len(r.pending)
	switch {
	case all:
	case ordered:
		// The last second may go on.
		last := r.pending[ready-1].At
		for ready > 0 && r.pending[ready-1].Coarse && r.pending[ready-1].At == last {
			ready--
		}
	default:
		horizon := r.newest - limit.Time(r.o.Reorder)
		horizon -= horizon % limit.Time(time.Second)
		ready, _ = slices.BinarySearchFunc(r.pending, horizon, func(l accesslog.Line, at limit.Time) int { return cmp.Compare(l.At, at) })
	}
	if len(r.pending)-ready >= maxPending/2 {
		ready = max(ready, len(r.pending)/2)
	}
	err := r.decide(ctx, r.pending[:ready])
	left := copy(r.pending, r.pending[ready:])
	clear(r.pending[left:])
	r.pending, r.sorted = r.pending[:left], left
	return err
}

// decide decides lines in their order.
func (r *run) decide(ctx context.Context, lines []accesslog.Line) error {
	if len(lines) == 0 {
		return ctx.Err()
	}
	if !r.start {
		r.start = true
		for _, p := range []*player{r.player, r.against} {
			if err := p.begin(lines[0].At); err != nil {
				return err
			}
		}
		r.report.First = stamp(lines[0].At)
	}
	for i := range lines {
		if lines[i].At < r.decided {
			r.report.Backwards.Late++
		}
		r.decided = max(r.decided, lines[i].At)
		if slices.Contains(r.o.Statuses, lines[i].Status) {
			r.report.Logged++
		}
	}
	if !r.o.Bunched {
		spread(lines)
	}
	r.report.Requests += int64(len(lines))
	r.report.Last = stamp(r.decided)
	for from := 0; from < len(lines); from += 4096 {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.play(lines[from:min(from+4096, len(lines))]); err != nil {
			return err
		}
		if r.o.OnProgress != nil {
			r.o.OnProgress(r.report.Requests - int64(len(lines)-from))
		}
	}
	return nil
}

// play has both configurations decide, each on a processor of its own.
func (r *run) play(lines []accesslog.Line) error {
	if r.against == nil {
		return r.player.play(r.names, lines, r.o.OnDecision)
	}
	var other sync.WaitGroup
	var errAgainst error
	other.Go(func() { errAgainst = r.against.play(r.names, lines, nil) })
	err := r.player.play(r.names, lines, r.o.OnDecision)
	other.Wait()
	if err = errors.Join(err, errAgainst); err == nil {
		r.report.Against.compare(r.player, r.against)
	}
	return err
}

// spread gives the requests of one second, of which the log does not say more, times within it, at equal
// distances and in the order of the log.
func spread(lines []accesslog.Line) {
	for from := 0; from < len(lines); {
		n := 1
		if !lines[from].Coarse {
			from++
			continue
		}
		second := lines[from].At
		for from+n < len(lines) && lines[from+n].At == second && lines[from+n].Coarse {
			n++
		}
		for k := range n {
			lines[from+k].At = second + limit.Time(int64(k)*int64(time.Second)/int64(n))
		}
		from += n
	}
}

// conclude makes the report.
func (r *run) conclude(streams []*stream) (*Report, error) {
	for _, s := range streams {
		for _, name := range r.names {
			if s.parser != nil && s.parser.Has(name) {
				r.fields[name] = true
			}
		}
		r.report.read(s)
	}
	if r.report.Requests == 0 {
		what := "the logs are empty"
		if len(r.report.Unread) > 0 {
			u := r.report.Unread[0]
			what = fmt.Sprintf("%s:%d: %s", u.Log, u.Line, u.Why)
		}
		return nil, fmt.Errorf("replay: %w: %s", ErrNoLines, what)
	}
	if err := r.player.end(); err != nil {
		return nil, err
	}
	r.player.fill(&r.report.Result)
	if r.against != nil {
		if err := r.against.end(); err != nil {
			return nil, err
		}
		r.against.fill(&r.report.Against.Result)
	}
	r.report.warn(r, streams)
	return r.report, nil
}
