package usage

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/stint-io/stint/store"
)

// Peer hands marks to another process, and returns a word that is another one after each start of that process.
type Peer func(ctx context.Context, marks []store.Mark) (start string, err error)

// Fan is a [store.Records] of this process whose marks of usage all peers have as well. Each of them keeps the
// marks of all, so any of them answers for all, and one that has lost its own gets them back. It is safe for
// concurrent use. Make it with [Fanning], and let Run keep peers up to date.
type Fan struct {
	store.Records
	keep  time.Duration
	peers []*peer
}

// peer is what is known of one.
type peer struct {
	send Peer

	mu     sync.Mutex // held while it is sent to
	start  string     // as it said last
	behind bool       // it may lack marks
}

// Fanning returns own with peers. keep is how long marks of usage are kept; 0 = [DefaultKeep].
func Fanning(own store.Records, keep time.Duration, peers ...Peer) *Fan {
	if keep <= 0 {
		keep = DefaultKeep
	}
	f := &Fan{Records: own, keep: keep}
	for _, send := range peers {
		f.peers = append(f.peers, &peer{send: send, behind: true})
	}
	return f
}

// Raise implements [store.Records]. Marks of usage count as taken once a majority of the members have them: until then the
// journal of their meter stays. A peer that does not take them gets them later.
func (f *Fan) Raise(ctx context.Context, table string, marks []store.Mark, keep time.Duration) error {
	if err := f.Records.Raise(ctx, table, marks, keep); err != nil || table != Table || len(f.peers) == 0 {
		return err
	}
	errs := make([]error, len(f.peers))
	var all sync.WaitGroup
	for i, p := range f.peers {
		all.Go(func() { errs[i] = p.take(ctx, marks) })
	}
	all.Wait()
	took := 1
	for _, err := range errs {
		if err == nil {
			took++
		}
	}
	if members := len(f.peers) + 1; took > members/2 {
		return nil
	}
	return fmt.Errorf("usage: %d of %d members took the report, want more than a half: %w: %w", took, len(f.peers)+1, store.ErrUnavailable, errors.Join(errs...))
}

// take sends marks to p.
func (p *peer) take(ctx context.Context, marks []store.Mark) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	start, err := p.send(ctx, marks)
	// One that began anew has only what came since.
	if err != nil || start != p.start {
		p.behind = true
	}
	if err == nil {
		p.start = start
	}
	return err
}

// Run brings peers that lack marks up to date, every so often until ctx ends.
func (f *Fan) Run(ctx context.Context, every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		var all sync.WaitGroup
		for _, p := range f.peers {
			all.Go(func() { _ = f.refresh(ctx, p) }) // it is tried again
		}
		all.Wait()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// refresh sends everything to a peer that may lack some of it, and asks the others whether they began anew.
func (f *Fan) refresh(ctx context.Context, p *peer) error {
	if err := p.take(ctx, nil); err != nil {
		return err
	}
	p.mu.Lock()
	behind := p.behind
	// What is raised from now on is sent to it anyway.
	p.behind = false
	p.mu.Unlock()
	if !behind {
		return nil
	}
	for after := ""; ; {
		marks, err := f.Marks(ctx, Table, "", after, batch)
		if err == nil && len(marks) > 0 {
			after = marks[len(marks)-1].Key
			err = p.take(ctx, marks)
		}
		if err != nil {
			p.mu.Lock()
			p.behind = true
			p.mu.Unlock()
			return err
		}
		if len(marks) < batch {
			return nil
		}
	}
}

// Told keeps what a peer has sent. Marks that are none of usage are refused.
func (f *Fan) Told(ctx context.Context, marks []store.Mark) error {
	for i := range marks {
		if _, _, _, _, ok := cutMark(marks[i].Key); !ok {
			return fmt.Errorf("usage: %.200q is no mark of usage", marks[i].Key)
		}
	}
	return f.Records.Raise(ctx, Table, marks, f.keep)
}
