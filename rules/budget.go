package rules

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

const day = 24 * time.Hour

// calendarWords are the periods that have windows of the calendar when they are written as a word,
// without a number: 24h is a length, and day is a day.
var calendarWords = []struct {
	period time.Duration
	words  []string
}{
	{time.Hour, []string{"h", "hour", "hours"}},
	{day, []string{"d", "day", "days"}},
	{7 * day, []string{"w", "week", "weeks"}},
	{30 * day, []string{"mo", "month", "months"}},
	{365 * day, []string{"y", "year", "years"}},
}

// inCalendar reports whether a rate is written by a word of the calendar.
func inCalendar(rate string) bool {
	_, word, _ := strings.Cut(rate, "/")
	word = strings.ToLower(strings.TrimSpace(word))
	for i := range calendarWords {
		if slices.Contains(calendarWords[i].words, word) {
			return true
		}
	}
	return false
}

// calendar reads where fixed windows begin. Windows of an hour or a day of UTC begin at multiples of
// their length since the epoch, and are left as such: they cost Redis nothing.
func (s *scope) calendar(p *limit.Policy, from func(string) *document.Node) {
	align, zone, rate := from("align"), from("timezone"), from("rate")
	calendar := p.Algorithm == limit.FixedWindow && rate != nil && inCalendar(rate.Text)
	if calendar && align == nil {
		p.Align = limit.AlignCalendar
	}
	choice(s.file, align, &p.Align, "epoch", "first_hit", "calendar")
	if p.Align == limit.AlignCalendar && !calendar {
		if rate != nil && !p.Unlimited {
			s.Fault(align, "write the rate by a word: 10M/month, 50k/day", "windows of the calendar are of an hour, day, week, month or year, and the rate is %s", rate.Text)
		}
		p.Align = limit.AlignEpoch
	}
	if zone == nil {
		if p.Align == limit.AlignCalendar && p.Rate.Period <= day {
			p.Align = limit.AlignEpoch
		}
		return
	}
	name, ok := s.str(zone, "a time zone such as Europe/Berlin")
	if !ok {
		return
	}
	if _, err := limit.LoadZone(name); err != nil || name == "" {
		s.Fault(zone, "name one of the IANA database, such as Europe/Berlin, America/New_York or UTC", "%q is not the name of a time zone", name)
		return
	}
	if p.Align != limit.AlignCalendar {
		if s.limit.Get("timezone") == zone && p.Algorithm == limit.FixedWindow && s.override == nil && !p.Unlimited {
			s.Fault(zone, "write the rate by a word: 10M/month, 50k/day, and leave out align", "a time zone has no meaning for windows of one length")
		}
		return
	}
	if name == "UTC" || name == "Etc/UTC" {
		name = ""
	}
	if p.Zone = name; name == "" && p.Rate.Period <= day {
		p.Align = limit.AlignEpoch
	}
}

// thresholds reads above which shares of the nominal count requests are warned, and refused.
func (b *builder) thresholds(s *scope, l *Limit) {
	soft, hard := s.get("soft"), s.get("hard")
	if hard != nil {
		if p, ok := s.share(hard, 100, 100_000); ok {
			l.HardPercent = p
			// What is above the count that the file names is not normal, or there would be a greater
			// one.
			l.SoftPercent = 100
		}
	}
	if soft == nil {
		return
	}
	if p, ok := s.share(soft, 0, max(100, l.HardPercent)); ok {
		l.SoftPercent = p
	}
}

// share reads a whole percentage from low to high.
func (s *scope) share(n *document.Node, low, high int) (int, bool) {
	digits, ok := strings.CutSuffix(strings.ReplaceAll(n.Text, " ", ""), "%")
	v, err := strconv.Atoi(digits)
	if n.Kind == document.Text && ok && err == nil && low <= v && v <= high && digits[0] != '+' {
		return v, true
	}
	s.Wants(n, "a whole percentage from "+strconv.Itoa(low)+"% to "+strconv.Itoa(high)+"%", percentHint(n, low))
	return 0, false
}

// chargedAfter reads when a limit is charged.
func (s *scope) chargedAfter(n *document.Node) (after bool) {
	s.either(n, &after, "before", "after")
	return after
}

// restrict makes the count of a policy the one above which requests are refused.
func (b *builder) restrict(s *scope, l *Limit, v *Variant) {
	p := &v.Policy
	v.Nominal = p.Quota()
	if l.HardPercent == 0 || p.Unlimited {
		return
	}
	p.Rate.Count = l.hard(p.Rate.Count)
	if err := p.Validate(); err != nil {
		s.Fault(s.get("hard"), "", "%d%% of the rate: %s", l.HardPercent, trimmed(err))
	}
}

// hard is the count above which requests are refused.
func (l *Limit) hard(nominal int64) int64 {
	return int64(min(fixed.Product(uint64(nominal), uint64(l.HardPercent)).Div(100), math.MaxInt64))
}

// Restricted returns the count above which requests are refused, for another nominal count than the file's.
func (l *Limit) Restricted(nominal int64) int64 {
	if l.HardPercent == 0 {
		return nominal
	}
	return min(l.hard(nominal), limit.MaxCount)
}

// doubtBudget warns of a budget that is written as a bucket: it is full at the start and refills all the
// time, so that up to twice as much is admitted in one period, and a budget that is used up is not at
// its end.
func (b *builder) doubtBudget(s *scope, l *Limit, p limit.Policy) {
	rate := s.get("rate")
	if p.Algorithm != limit.TokenBucket || p.Unlimited || l.Sharing != SharingExact || rate == nil || p.Rate.Period < day || p.Burst < p.Rate.Count ||
		p.Rate.Count < 1 || !inCalendar(rate.Text) || p.Burst > math.MaxInt64/2 {
		return
	}
	count, word, _ := strings.Cut(rate.Text, "/")
	b.warn(s.file, rate, "for a budget write algorithm: fixed_window; to spread requests write a small burst",
		"a token_bucket of %s refills all the time: up to twice %s fit in one %s", rate.Text, strings.TrimSpace(count), strings.TrimSpace(word))
}

// CountsUsage reports whether it is kept what each key has used in which hour: where the file says so, or says nothing
// and the limit is a budget: a fixed window of an hour or longer whose key has no address. Addresses are as many as
// there are strangers, and each takes room for as long as usage is kept.
func (l *Limit) CountsUsage() bool {
	if l.Envoy {
		return false // keys have no names
	}
	if l.Usage != nil {
		return *l.Usage
	}
	for _, name := range l.Key {
		if name == "ip" || strings.HasSuffix(name, "_ip") {
			return false
		}
	}
	long := func(v *Variant) bool {
		return v.Policy.Algorithm == limit.FixedWindow && !v.Policy.Unlimited && v.Policy.Window() >= time.Hour
	}
	return long(&l.Base) || slices.ContainsFunc(l.Overrides, func(o Override) bool { return long(&o.Variant) })
}

// horizons compiles a limit of several rates as one limit for each, called after its period: a request
// is admitted by all of them, or takes from none.
func (b *builder) horizons(d *file, n, list, defaults *document.Node) {
	if list.Kind != document.List || len(list.Items) == 0 {
		d.Wants(list, "a list of rates", "write a dash before each: - rate: 10M/month")
		return
	}
	if rate := n.Get("rate"); rate != nil {
		d.Fault(rate, "make it one of the horizons", "a limit has either a rate or horizons")
		return
	}
	if o := n.Get("overrides"); o != nil {
		d.Fault(o, "write the limit as several with a rate each", "a limit with horizons has no overrides")
		return
	}
	b.inHorizons = true
	defer func() { b.inHorizons = false }()
	name := n.Get("name")
	shortest := time.Duration(math.MaxInt64)
	for _, item := range list.Items {
		if !d.section(item, "a horizon", "a horizon: a map with a rate", horizonKeys) {
			continue
		}
		rate := item.Get("rate")
		if rate == nil {
			d.Fault(item, "add rate: 10M/month", "a horizon has no rate")
			continue
		}
		if r, err := limit.ParseRate(rate.Text); err == nil {
			shortest = min(shortest, r.Period)
		}
		one := &document.Node{Kind: document.Map, Line: item.Line, Column: item.Column}
		one.Fields = append(one.Fields, item.Fields...)
		if item.Get("algorithm") == nil && n.Get("algorithm") == nil && item.Get("burst") == nil && inCalendar(rate.Text) {
			// What is long is a budget, what is short a rate.
			one.Fields = append(one.Fields, written("algorithm", limit.FixedWindow.String(), rate))
		}
		algorithm := one.Get("algorithm")
		if algorithm == nil {
			algorithm = n.Get("algorithm")
		}
		for _, f := range n.Fields {
			if key := f.Key.Text; key != "horizons" && key != "name" && one.Get(key) == nil && applies(key, algorithm) {
				one.Fields = append(one.Fields, f)
			}
		}
		if name != nil {
			_, period, _ := strings.Cut(rate.Text, "/")
			one.Fields = append(one.Fields, written("name", name.Text+"/"+strings.TrimSpace(period), item))
		}
		b.limit(&scope{file: d, limit: one, defaults: defaults})
	}
	if shortest > time.Minute && shortest < math.MaxInt64 {
		b.warn(d, list, "add a horizon for the moment, such as rate: 100/s", "the shortest horizon is %v: all of it may be used within a second", shortest)
	}
}

// written is an entry of a map as if it stood at a place of the file.
func written(key, value string, at *document.Node) document.Field {
	node := func(text string) *document.Node {
		return &document.Node{Kind: document.Text, Text: text, Line: at.Line, Column: at.Column}
	}
	return document.Field{Key: node(key), Value: node(value)}
}

// applies reports whether a key has a meaning with an algorithm, nil = the default.
func applies(key string, algorithm *document.Node) bool {
	a := limit.TokenBucket
	if algorithm != nil {
		var err error
		if a, err = limit.ParseAlgorithm(algorithm.Text); err != nil {
			return true // it is reported where it is read
		}
	}
	for _, k := range policyKeys {
		if k.key == key {
			return slices.Contains(k.of, a)
		}
	}
	return true
}
