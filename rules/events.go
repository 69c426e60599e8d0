package rules

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Events is the section events of limits files: where crossing events are sent. The zero value sends them nowhere;
// they are logged all the same.
type Events struct {
	// Webhook is the URL; "" = none.
	Webhook string
	// SecretFile is the path of the secrets by which messages are signed.
	SecretFile string
}

// The keys of the section, and the kinds of events in the order in which one request causes them.
var (
	eventsKeys = []string{"webhook", "secret_file"}
	eventWords = []string{"soft", "hard", "under", "saturated"}
)

// minEventWindow is how long a window is at least whose events are noted. Not shorter: a key that is always at its limit
// has events in each window.
const minEventWindow = time.Minute

// Events returns the section events of the files.
func (s *Set) Events() Events { return s.events }

// events reads the section.
func (b *builder) events(d *file, n *document.Node) {
	if !d.section(n, "events", "a map with webhook and secret_file", eventsKeys) {
		return
	}
	if b.eventsAt != nil {
		d.Fault(n, "write it in one file only", "another events is in line %d of another place", b.eventsAt.Line)
		return
	}
	b.eventsAt = n
	e := &b.set.events
	d.texts(n, map[string]*string{"webhook": &e.Webhook, "secret_file": &e.SecretFile})
	to, secret := n.Get("webhook"), n.Get("secret_file")
	switch {
	case to == nil && secret != nil:
		d.Fault(secret, "add webhook: https://...", "a secret signs what is sent, and nothing is sent")
	case to != nil && secret == nil:
		d.Fault(to, "add secret_file: the path of a file that has a line as echo whsec_$(head -c 32 /dev/urandom | base64) writes it", "without a secret nobody can tell that an event comes from here")
	}
	if to == nil || e.Webhook == "" {
		return
	}
	u, err := url.Parse(e.Webhook)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http":
		d.Fault(to, "write https://HOST/PATH", "webhook is no URL of a web server")
	case u.User != nil:
		d.Fault(to, "leave it out: what is sent is signed", "webhook has a user name or a password, which logs would show")
	case u.Scheme == "http" && !slices.Contains([]string{"localhost", "127.0.0.1", "::1"}, u.Hostname()):
		b.warn(d, to, "write https://", "the events go over an open connection: anyone on their way reads which customers use up what")
	}
}

// limitEvents reads which crossing events of a limit are noted. Where nothing is written they are for budgets with
// thresholds. Not for others: events tell the log which key it was.
func (b *builder) limitEvents(s *scope, l *Limit) {
	n, window := s.get("events"), l.eventWindow()
	if n == nil {
		if window >= time.Hour && !l.Envoy && (l.SoftPercent > 0 || l.HardPercent > 0) {
			l.Events = eventWords
		}
		return
	}
	if n.Kind == document.Text && n.Text == "none" {
		return
	}
	for _, item := range n.Each() {
		word, ok := s.str(item, "soft, hard, under or saturated")
		if !ok {
			continue
		}
		if !slices.Contains(eventWords, word) {
			hint := "write some of " + strings.Join(eventWords, ", ") + "; or events: none"
			if near, ok := document.Suggest(word, eventWords); ok {
				hint = "did you mean " + near + "?"
			}
			s.Fault(item, hint, "there is no event %q", word)
			continue
		}
		if !slices.Contains(l.Events, word) {
			l.Events = append(l.Events, word)
		}
	}
	if len(l.Events) > 0 && window < minEventWindow {
		l.Events = nil
		if s.limit.Get("events") != nil && !b.inHorizons {
			b.warn(s.file, n, "leave it out", "the limit has no events: it is decided elsewhere than where the counters are, or has no window of a minute or longer, so that it is crossed too often to be news")
		}
	}
}

// eventWindow is the longest window of the limit in a counter that all its requests meet; 0 = none.
func (l *Limit) eventWindow() (longest time.Duration) {
	if l.Sharing != SharingExact {
		return 0
	}
	see := func(p *limit.Policy) {
		if !p.Unlimited && p.Algorithm != limit.Concurrency {
			longest = max(longest, p.Window())
		}
	}
	see(&l.Base.Policy)
	for i := range l.Overrides {
		see(&l.Overrides[i].Policy)
	}
	return longest
}
