package engine

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// lines are where requests wait whose callers ask for it, whatever their limits say of queues: one
// line for each bucket, first come first served. A request waits in the line of the bucket that
// refuses it for longest. When another one refuses it there, it goes on to the end of that line,
// so that nobody waits behind a request that waits for something else.
type lines struct {
	engine *Engine
	queue  *limit.Queue

	mu      sync.Mutex
	waiting map[string]int // by the name of the line
}

// lineAttribute is the first attribute of a request in a line: the line's name. The engine never
// sees it.
const lineAttribute = "\x00line"

func newLines(e *Engine) (*lines, error) {
	l := &lines{engine: e, waiting: map[string]int{}}
	var err error
	l.queue, err = limit.NewQueue(l, limit.QueueOptions{Attributes: []string{lineAttribute}})
	return l, err
}

// elsewhere ends the wait of a request that another bucket refuses for longer than that of its line.
type elsewhere struct{ d limit.Decision }

func (*elsewhere) Error() string { return "engine: another limit refuses" }

// Take implements [limit.Taker] for the first of a line.
func (l *lines) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	name := req.Attributes[0].Value
	req.Attributes = req.Attributes[1:]
	d, err := l.engine.take(ctx, req, nil)
	if err != nil || d.Allowed || l.engine.lineOf(req, &d) == name {
		return d, err
	}
	return limit.Decision{}, &elsewhere{d}
}

// Finish implements [limit.Finisher].
func (l *lines) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	req.Attributes = req.Attributes[1:]
	return l.engine.finish(ctx, req, permit, nil)
}

// finished lets the first in each line of a request ask: a permit may be free.
func (l *lines) finished(ctx context.Context, req limit.Request) {
	for _, name := range l.of(req) {
		_ = l.queue.Finish(ctx, inLine(req, name), 0) // permit 0 gives nothing back, so it cannot fail
	}
}

// of returns the names of the lines in which others wait for a bucket of req.
func (l *lines) of(req limit.Request) []string {
	l.mu.Lock()
	idle := len(l.waiting) == 0
	l.mu.Unlock()
	if idle {
		return nil
	}
	var names []string
	l.engine.eachBucket(req, func(name string) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.waiting[name] > 0 {
			names = append(names, name)
		}
		return true
	})
	return names
}

// wait waits in a line for at most d. moved says that the request was refused by another bucket.
func (l *lines) wait(ctx context.Context, req limit.Request, name string, d time.Duration) (answer limit.Decision, moved bool, err error) {
	l.mu.Lock()
	l.waiting[name]++
	l.mu.Unlock()
	answer, err = l.queue.WaitMax(ctx, inLine(req, name), d)
	l.mu.Lock()
	if l.waiting[name]--; l.waiting[name] == 0 {
		delete(l.waiting, name)
	}
	l.mu.Unlock()
	var other *elsewhere
	switch {
	case err == nil:
		answer.Delay = 0 // it was part of the wait
	case errors.As(err, &other):
		return other.d, true, nil
	case len(answer.Results) > 0 && (errors.Is(err, limit.ErrWaitTooLong) || errors.Is(err, limit.ErrExceedsQuota)):
		err = nil
	case errors.Is(err, limit.ErrWaitTooLong), errors.Is(err, limit.ErrExceedsQuota), errors.Is(err, limit.ErrQueueFull):
		// It was refused without having been tried, so it asks once itself.
		answer, err = l.engine.take(ctx, req, nil)
	}
	return answer, false, err
}

func inLine(req limit.Request, name string) limit.Request {
	req.Attributes = append([]limit.Attribute{{Name: lineAttribute, Value: name}}, req.Attributes...)
	return req
}

// maxMoves bounds how often a request goes from one line to another.
const maxMoves = 16

// TakeInLine is [Engine.TakeWithin], and lets the request wait for at most d at limits without
// on_exceed: queue as well: in line with other calls of TakeInLine for the same bucket. Calls that
// do not wait are not held up by a line.
func (e *Engine) TakeInLine(ctx context.Context, req limit.Request, d time.Duration) (limit.Decision, error) {
	if req.Peek || d <= 0 || req.Cost < 0 {
		return e.TakeWithin(ctx, req, d)
	}
	if repeated, err := e.identify(ctx, &req, true); err != nil {
		return limit.Decision{}, err
	} else if repeated {
		return e.take(ctx, req, nil)
	}
	s := e.live.Load()
	req.Attributes = s.derived.of(req.Attributes)
	end := time.Now().Add(d)
	var answer limit.Decision
	var name string
	if names := e.lines.of(req); len(names) > 0 {
		name = names[0]
		look := req
		look.Peek = true // overtakes nobody
		if seen, err := e.take(ctx, look, s); err != nil {
			return seen, err
		} else if !seen.Allowed {
			name = e.lineOf(req, &seen)
		}
	}
	if name == "" {
		var err error
		if answer, err = e.takeWithin(ctx, req, d, s); err != nil || answer.Allowed {
			return answer, err
		}
		name = e.lineOf(req, &answer)
	}
	for range maxMoves {
		left := time.Until(end)
		if name == "" || left <= 0 {
			break
		}
		var moved bool
		var err error
		if answer, moved, err = e.lines.wait(ctx, req, name, left); err != nil || !moved {
			return answer, err
		}
		name = e.lineOf(req, &answer)
	}
	return answer, nil
}

// lineOf returns the name of the line of the bucket that refuses req for longest; "" = no wait
// helps, or d does not say which it is.
func (e *Engine) lineOf(req limit.Request, d *limit.Decision) (name string) {
	var last *limit.Result
	for i := range d.Results {
		r := &d.Results[i]
		if r.Shadow || r.Allowed {
			continue
		}
		switch r.Reason {
		case limit.ReasonRate, limit.ReasonConcurrency, limit.ReasonTableFull:
		default:
			return ""
		}
		if last == nil || r.RetryAfter > last.RetryAfter {
			last = r
		}
	}
	if last == nil {
		return ""
	}
	e.eachBucket(req, func(of string) bool {
		if len(of) > len(last.Limit) && of[:len(last.Limit)] == last.Limit && of[len(last.Limit)] == 0 {
			name = of
		}
		return name == ""
	})
	return name
}

// eachBucket calls f with the name of the line of each bucket that req meets, until it returns
// false: the name of the limit, a zero byte and the key. Limits with on_exceed: queue have lines of
// their own.
func (e *Engine) eachBucket(req limit.Request, f func(name string) bool) {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(req)
	q.reset()
	q.matched, q.keys = e.live.Load().set.Match("", req.Attributes, q.matched, q.keys)
	for i := range q.matched {
		m := &q.matched[i]
		if m.Skip == rules.SkipNone && !m.Shadow && !m.Missing && m.Limit.OnExceed.MaxWait == 0 && !f(m.Limit.Name+"\x00"+string(m.Key)) {
			return
		}
	}
}
