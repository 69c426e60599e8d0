package lending

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/lease/uplink"
	"github.com/stint-io/stint/limit"
)

// Parent says where a site has the capacity of its limits from.
type Parent struct {
	// Addresses are those of the parent, tried in turn.
	Addresses []string
	// Site is the name of the site, which no other site of the parent has.
	Site string
	// Expiry is what the site lends when its lease is over and no parent answers.
	Expiry agent.ExpiryMode
	// Connect opens a stream to the parent, that lives until ctx ends.
	Connect func(ctx context.Context, address string) (ParentStream, error)
}

// ParentStream carries the messages of a site. Send and Receive are called by one goroutine each.
type ParentStream interface {
	Send(r *lease.Report) error
	CloseSend() error
	Receive() (*lease.Grant, error)
	Close()
}

const (
	// The pauses between tries to reach the parent, of which a random part of a half is left
	// out: those of a client, for the same reasons.
	firstParentPause, longestParentPause = 50 * time.Millisecond, lease.DefaultRefresh
	// parentOutbox is how many reports may wait for a slow stream. What does not fit is lost, as
	// on a network: it is reported again.
	parentOutbox = 64
	// maxRedirects is how often in a row one parent may send the site to another.
	maxRedirects = 5
)

// linkOptions say what a link is of and where its events go. All are required.
type linkOptions struct {
	parent *Parent
	// translate says by which resource the parent knows one of the site, and of which attributes its
	// key is; false = the parent cannot be asked for it.
	translate func(lease.ResourceID) (lease.ResourceID, []string, bool)
	// lends says whether this service lends: of the members of a site one has its capacity.
	lends func() bool
	// post hands an event to the loop, which calls [parentLink.take] with it. It reports false when the loop
	// has ended, or ctx.
	post func(ctx context.Context, e lease.Event) bool
	// logger takes what operators should read.
	logger *slog.Logger
}

// parentLink is the connection of a site to its parent. It finds the parent that coordinates, keeps a stream to it,
// carries reports and grants, and knows why none come. What they say is up to internal/lease/uplink. take, leave and site
// are for the loop; the other methods are safe for concurrent use.
type parentLink struct {
	opts    linkOptions
	site    *uplink.Site
	reports atomic.Pointer[chan *lease.Report] // of the stream that is open
	problem atomic.Pointer[error]              // why no grant comes; nil = they come
	granted atomic.Bool                        // a grant has come
	leaving atomic.Bool                        // the stream that is open is the last
}

// nameOfProcess names this process in paths of coordinators: no other process has its name.
func nameOfProcess(site string) string {
	host, _ := os.Hostname() // "" where it cannot be read
	return fmt.Sprintf("%s/%08x", cmp.Or(site, host, "root"), rand.Uint32())
}

// newParentLink returns the link of a site whose coordinator is made of c. It connects in run.
func newParentLink(o linkOptions, c coordinator.Options, now limit.Time) *parentLink {
	c.Recovery = 0 // what a former server of the site has lent is counted by the parent
	l := &parentLink{opts: o}
	l.site = uplink.New(uplink.Options{
		Member: lease.Member{Instance: o.parent.Site, Session: newSession()}, Name: nameOfProcess(o.parent.Site), Expiry: o.parent.Expiry, Jitter: rand.Float64,
		Session: newSession, Send: l.send, Translate: o.translate,
	}, c, now)
	return l
}

// newSession draws the number of a session, which is never 0.
func newSession() uint64 { return max(1, rand.Uint64()) }

// send hands a report to the stream, if there is one and it takes it.
func (l *parentLink) send(r *lease.Report) {
	if reports := l.reports.Load(); reports != nil {
		select {
		case *reports <- r:
		default:
		}
	}
}

// run keeps a stream to the parent, while this service lends, until ctx ends.
func (l *parentLink) run(ctx context.Context) {
	p, pause, next, redirects := l.opts.parent, firstParentPause, 0, 0
	address := p.Addresses[0]
	for ctx.Err() == nil && l.awaitLending(ctx) {
		master, answered, err := l.hold(ctx, address)
		if answered {
			pause, redirects = firstParentPause, 0
		}
		if ctx.Err() != nil || l.leaving.Load() {
			return
		}
		if master != "" && redirects < maxRedirects {
			redirects++
			address = master
			continue
		}
		if !answered {
			next++
		}
		redirects = 0
		l.noteProblem(address, err)
		address = p.Addresses[next%len(p.Addresses)]
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause - time.Duration(rand.Int64N(int64(pause)/2))):
		}
		pause = min(2*pause, longestParentPause)
	}
}

// awaitLending waits until this service lends.
func (l *parentLink) awaitLending(ctx context.Context) bool {
	for !l.opts.lends() {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(firstParentPause):
		}
	}
	return true
}

var errNoMaster = errors.New("it does not coordinate the limits, and names no other that does")

// hold opens one stream and passes on what comes, until it ends.
func (l *parentLink) hold(ctx context.Context, address string) (master string, answered bool, err error) {
	life, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := l.opts.parent.Connect(life, address)
	if err != nil {
		return "", false, err
	}
	defer stream.Close()
	reports := make(chan *lease.Report, parentOutbox)
	l.reports.Store(&reports)
	var writing sync.WaitGroup
	writing.Go(func() { writeReports(life, cancel, stream, reports) })
	defer writing.Wait()
	defer cancel()
	defer l.reports.Store(nil)
	if !l.opts.post(life, uplink.Connected{}) {
		return "", false, life.Err()
	}
	for l.opts.lends() {
		g, err := stream.Receive()
		switch {
		case err != nil:
			return "", answered, err
		case g.NotMaster:
			return g.Master, answered, errNoMaster
		case g.Status == lease.StatusDuplicate:
			return "", false, l.duplicateSite()
		}
		own := *g
		l.opts.post(life, uplink.FromParent{Grant: &own})
		answered = true
	}
	return "", answered, nil
}

// writeReports sends reports until ctx ends.
func writeReports(ctx context.Context, cancel context.CancelFunc, stream ParentStream, reports <-chan *lease.Report) {
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-reports:
			if stream.Send(r) != nil {
				cancel() // Receive says why
				return
			}
		}
	}
}

func (l *parentLink) duplicateSite() error {
	return fmt.Errorf("another server reports to the parent as site %q: give each site a name of its own with --site", l.opts.parent.Site)
}

// noteProblem logs why no grants come, once for each reason.
func (l *parentLink) noteProblem(address string, err error) {
	if err == nil {
		return
	}
	if status.Code(err) == codes.AlreadyExists {
		err = l.duplicateSite()
	}
	former := l.problem.Swap(&err)
	if former == nil || (*former).Error() != err.Error() {
		l.opts.logger.Warn("no capacity comes from the parent: the site lends what it holds until its lease is over", slog.String("parent", address), slog.Any("error", err))
	}
}

// take has the loop step an event of the link by step, and takes note of what came.
func (l *parentLink) take(e lease.Event, step func()) {
	if g, ok := e.(uplink.FromParent); ok {
		g.Grant.To = l.site.Member()
	}
	step()
	if _, ok := e.(uplink.FromParent); !ok {
		return
	}
	if cycle := l.site.Cycle(); cycle != nil {
		err := fmt.Errorf("the parents are a cycle, so there is nothing to lend: this site is above itself (%s): give one of them no --parent", strings.Join(cycle, ", below "))
		if former := l.problem.Swap(&err); former == nil || (*former).Error() != err.Error() {
			l.opts.logger.Error("the parents are a cycle", slog.Any("path", cycle))
		}
		return
	}
	l.granted.Store(true)
	if l.problem.Swap(nil) != nil {
		l.opts.logger.Info("the parent lends to this site again")
	}
}

// leaveWithin is how long a site that ends tries to tell its parent.
const leaveWithin = 500 * time.Millisecond

// leave gives everything back to the parent, and waits for reporting, which has ended when run has. The
// parent ends the stream then. It is called when no instance holds anything of it.
func (l *parentLink) leave(now limit.Time, reporting *sync.WaitGroup) {
	if l.reports.Load() == nil {
		return
	}
	l.leaving.Store(true)
	l.site.Leave(now)
	ended := make(chan struct{})
	go func() { // ends with the link, which its owner waits for
		reporting.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(leaveWithin):
	}
}

// err says why no capacity comes from the parent; nil = it comes.
func (l *parentLink) err() error {
	switch {
	case l.problem.Load() != nil:
		return *l.problem.Load()
	case !l.granted.Load() && l.opts.lends():
		return errors.New("the parent has not answered yet")
	}
	return nil
}

// supplied says whether the site has capacity to lend, under a lease or as its mode at expiry says.
func (l *parentLink) supplied(now limit.Time) bool {
	return l.granted.Load() && (now < limit.Time(l.site.Ends()) || l.opts.parent.Expiry != agent.Pessimistic)
}
