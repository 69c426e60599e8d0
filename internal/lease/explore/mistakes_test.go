package explore

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var (
	mistakesFlag  = flag.String("mistakes", "", "seed the mistakes that have this in their name, or all, and search for each")
	mistakeStates = flag.Int("mistake-states", 300_000, "how many states are searched for each at most")
)

// mistake is a rule that is broken on purpose, in a copy of the source.
type mistake struct {
	name string
	edit []edit
	// scenario is where it is searched for; "" = in all.
	scenario string
}

// edit replaces a text, which is in the file once.
type edit struct{ file, old, new string }

const (
	coordinatorFolder = "internal/lease/coordinator/"
	ledgerFolder      = "internal/lease/ledger/"
	agentFolder       = "internal/lease/agent/"
	exploreFolder     = "internal/lease/explore/"

	replicaFile  = exploreFolder + "replica_test.go"
	electionFile = exploreFolder + "election_test.go"
)

// mistakes are those of the shipped machines first, then those of the process around them, which is
// modelled here.
var mistakes = []mistake{
	{"a successor ignores recovery", []edit{{coordinatorFolder + "coordinator.go", "now.Add(recovery), holders, 0", "now, holders, 0"}}, "orphans"},
	{"recovery ends when one holder has claimed", []edit{{coordinatorFolder + "recovery.go", "return now < c.recoverUntil && c.expected.May(limit)", "return now < c.recoverUntil && c.expected.May(limit) && c.expected.Sessions() != 1"}}, "successor:"},
	{"recovery ends with a claim that was not accepted", []edit{{coordinatorFolder + "recovery.go", "if a := s.accounts[d.Handle]; a == nil || a.Lease != d.Lease && !a.resource.Claimed(d.Lease) {", "if s == nil {"}}, "orphans"},
	{"a report that has not every lease ends recovery", []edit{{coordinatorFolder + "step.go", "	if m.Complete {", "	if m.Complete || true {"}}, "orphans"},
	{"a holder is missing from the list", []edit{{coordinatorFolder + "state.go", "	for _, s := range c.sessions {\n		for _, a := range s.accounts {\n			if a.Lease != 0 ||", "	for _, s := range c.sessions {\n		for _, a := range s.accounts {\n			if s.Instance == \"anna\" && a.Lease != 0 ||"}, {coordinatorFolder + "state.go", "a.Held() != (lease.Capacity{}) {", "s.Instance == \"anna\" && a.Held() != (lease.Capacity{}) {"}}, "cold start"},
	{"holders of the term before are forgotten", []edit{{coordinatorFolder + "state.go", "	h := c.expected.Clone()", "	h := holding.Holders{}"}}, "third"},
	{"a claim of a wrong epoch is believed", []edit{{coordinatorFolder + "seal.go", "[]uint64{epoch, m.Session,", "[]uint64{0, m.Session,"}}, "replay"},
	{"a claim is believed twice", []edit{{ledgerFolder + "recovery.go", "if r.claimed[number] {", "if r.claimed[number] && false {"}, {coordinatorFolder + "recovery.go", "case !a.resource.Recovering || a.Lease != 0:", "case !a.resource.Recovering:"}, {coordinatorFolder + "recovery.go", "case a.Lease == 0 && a.Held() != (lease.Capacity{}), a.Lease != 0 && a.AckedGrant < a.Born:", "case a.Lease == 0 && a.Held() != (lease.Capacity{}):"}}, "anybody"},
	{"what is claimed stays frozen", []edit{{ledgerFolder + "recovery.go", "	r.Frozen = r.Frozen.Sub(h)\n", ""}}, "successor:"},
	{"an expired lease is freed without the drift margin", []edit{{coordinatorFolder + "step.go", "s.expires = now.Add(c.opts.Lease + c.opts.Lease/lease.DriftMargin)", "s.expires = now.Add(c.opts.Lease)"}}, "silent"},
	{"an expired lease is freed a second early", []edit{{coordinatorFolder + "expiry.go", "if now >= s.expires {", "if now >= s.expires.Add(-time.Second) {"}, {coordinatorFolder + "expiry.go", "	\"slices\"\n", "	\"slices\"\n	\"time\"\n"}}, "silent"},
	{"revoked capacity is lent before it is returned", []edit{{ledgerFolder + "round.go", "		a.caps = caps{capRate, capBurst, r.Pool.At}\n", "		a.CapRate, a.CapBurst = capRate, capBurst\n		if capRate < h.Rate {\n			r.Pool.Rate += h.Rate - capRate\n			a.Returned.Rate += h.Rate - capRate\n		}\n"}}, "newcomer:"},
	{"an agent takes a lower epoch", []edit{{agentFolder + "agent.go", "	if g.Epoch < a.epochs.current {", "	if g.Epoch == 0 {"}}, "late:"},
	{"an agent counts the lease from receipt", []edit{{agentFolder + "agent.go", "if end := limit.Time(g.Echo).Add(g.Lease); g.Echo > 0 && end > now {", "if end := now.Add(g.Lease); g.Echo > 0 && end > now {"}}, "silent"},
	{"an agent extends leases that are not claimed yet", []edit{{agentFolder + "agent.go", "			if r.lease.claiming && r.lease.number != 0 {", "			if r.lease.claiming && r.lease.number == 0 {"}}, "refused"},
	{"totals are taken for increments", []edit{{agentFolder + "grant.go", "		r.lease.granted = s.Granted\n	}\n	r.lease.claiming", "		r.lease.granted = r.lease.granted.Add(s.Granted)\n	}\n	r.lease.claiming"}}, "newcomer:"},
	{"an agent panics where a claim was refused", []edit{{agentFolder + "grant.go", "		r.lease.orphan, r.lease.token = true, nil\n", "		panic(r.lease.number)\n"}}, "two successors"},
	{"instances of a lower epoch are not sent above it", []edit{{coordinatorFolder + "step.go", "	if !c.Knows(m.Epoch) && m.Epoch <= MaxEpoch {", "	if m.Epoch > MaxEpoch {"}}, "forgotten"},
	{"a lease that was claimed a moment ago is not waited for", []edit{{coordinatorFolder + "level.go", "return a.Lease != 0 || a.Held() != (lease.Capacity{})", "return a.Lease != 0"}}, "elected, with"},
	{"a successor begins below the epoch to which its predecessor had risen", []edit{{coordinatorFolder + "recovery.go", "if e.Epoch <= e.Former {", "if e.Epoch == 0 {"}}, "forgets, resigned"},
	{"a successor lends what instances hold of a bucket that it knows", []edit{{coordinatorFolder + "parent.go", "(was.leased || !known)", "!known"}}, "known:"},
	{"a bound that falls is not waited for", []edit{{coordinatorFolder + "level.go", "		if t.as != toldHeld || level < t.tokens {", "		if t.as != toldHeld {"}}, "drained"},
	{"a grant waits for the levels of its own step alone", []edit{{coordinatorFolder + "level.go", "number = max(number, a.resource.told.must)", "if must := a.resource.told.must; must > c.number-uint64(len(c.levels)) {\n				number = max(number, must)\n			}"}}, "unconfirmed"},
	{"a replica that begins is told all that is not lent", []edit{{coordinatorFolder + "level.go", "			tokens = r.told.tokens\n", "			tokens += 0\n"}}, "bounded"},
	{"a replica begins in recovery", []edit{{coordinatorFolder + "level.go", "c.opts.Parent != nil || c.Recovering(now)", "c.opts.Parent != nil"}}, "recovering"},
	{"a bucket that is lent is told as one that fills", []edit{{coordinatorFolder + "level.go", "Held: as == toldHeld, Leased", "Held: false, Leased"}}, "unclaimed"},
	{"a bucket that was lent fills since the term began", []edit{{coordinatorFolder + "handover.go", "	if b.held {\n", "	if b.held && b.age < 0 {\n"}}, "unclaimed"},
	{"an ask is answered while the bucket may be lent by a former leader", []edit{{coordinatorFolder + "handover.go", "	if c.recovering(now, id.Limit) && (was.leased || c.used.of == nil) {", "	if c.recovering(now, id.Limit) && was.leased && c.used.of == nil {"}}, "waited for"},
	{"a lease begins with a full bucket where servers have asked", []edit{{coordinatorFolder + "unlent.go", "r.Begin(b.Tokens, b.At, now)", "r.Begin(b.Burst, now, now)"}}, "asked, then lent"},
	{"a bucket whose last lease has ended counts as full", []edit{{coordinatorFolder + "unlent.go", "	c.unlent.Put(pool.IDOf(r.ID), b)\n", "	b.Must = 0\n"}}, "left"},
	{"an answer waits for the levels of its own step alone", []edit{{coordinatorFolder + "ask.go", "		must = b.Must\n", "		if len(c.levels) > 0 {\n			must = b.Must\n		}\n"}}, "asked:"},
	{"replicas are not told what servers have asked for", []edit{{coordinatorFolder + "ask.go", "		c.tellUnlent(now, id, &b)\n", ""}}, "asked"},

	{"an answer is not kept back for the replica", []edit{{exploreFolder + "ask_test.go", "p.know(must)", "p.know(0)"}}, "asked:"},
	{"a process grants after its term", []edit{{exploreFolder + "actions_test.go", "u.clocks[i].at(w.now) >= p.until {", "u.clocks[i].at(w.now) >= p.until.Add(4*TTL) {"}}, "behind"},
	{"the epoch of a new term is that of the former", []edit{{electionFile, "max(p.epoch, w.latest, u.fleet.coordinators.factsOf(p.machine).epoch) + 1", "max(p.epoch, w.latest, u.fleet.coordinators.factsOf(p.machine).epoch+1)"}, {coordinatorFolder + "recovery.go", "if e.Epoch <= e.Former {", "if e.Epoch < e.Former {"}}, "late:"},
	{"a session that rejoins counts as in the record that is being replaced", []edit{{exploreFolder + "term_test.go", "		p.published = u.fleet.both(p.published, r.holders) // the record may be either\n", ""}}, "rejoined"},
	{"a grant is sent before the record has its session", []edit{{exploreFolder + "term_test.go", "u.fleet.lends(g.grant) &&", "g.grant == 0 &&"}}, "unrecorded"},
	{"a grant is not kept back for the replica", []edit{{exploreFolder + "term_test.go", "!p.know(g.must)", "!p.know(0)"}}, "unconfirmed"},
	{"a replica that is lost is not waited for", []edit{{replicaFile, "(id != p.stream.id || p.stream.confirmed < must)", "id == p.stream.id && p.stream.confirmed < must"}}, "replica lost"},
	{"a record that is being written does not count", []edit{{replicaFile, "{p.listed, p.writing.inSync}", "{p.listed, 0}"}}, "being written"},
	{"what a replica knows outlives that its leader has gone above a higher epoch", []edit{{exploreFolder + "term_test.go", "		p.stream = stream{} // what", "		// what"}}, "risen"},
	{"the replica of the term before the last counts", []edit{{coordinatorFolder + "record.go", "return s.Epoch == epoch && ", "return "}, {replicaFile, "known.epoch != former || ", ""}}, "twice"},
	{"the last record of a leader counts for all that follow", []edit{{electionFile, "case !p.from.clean || u.forgets", "case u.forgets"}}, "handed over"},

	{"a process that ends before it has taken over says that nothing is lent", []edit{{electionFile, "	w.endTerm(i)\n	u.store(w, i, r)", "	r.holders, r.used = 0, 0\n	w.endTerm(i)\n	u.store(w, i, r)"}}, "given up: "},
	{"a term that was given up before it led makes the one before it clean", []edit{{electionFile, "clean: r.unled.clean", "clean: r.resigned"}}, "given up, handed over"},
	{"a record that was lost counts as none", []edit{{electionFile, "p.seen != 0, p.epoch > 0", "p.seen != 0, p.epoch == 0"}}, "lost, cut off"},
	{"a record that was lost is taken at once", []edit{{electionFile, "waits = u.forgets || p.follows || p.outdated || !p.first", "waits = u.forgets"}}, "lost, going on"},
	{"what was lent under a record that was lost is not waited for", []edit{{electionFile, "	case p.from.lost || !r.published", "	case !r.published"}}, "lost, cut off"},
	{"an old record counts as the present one", []edit{{electionFile, "if p.outdated = r.epoch < p.epoch || r.epoch == p.epoch && r.write <= p.write; !p.outdated {", "{"}}, "gone back, cut off"},
	{"an earlier record of the present term counts as the present one", []edit{{electionFile, "p.outdated = r.epoch < p.epoch || r.epoch == p.epoch && r.write <= p.write;", "p.outdated = r.epoch < p.epoch;"}}, "gone back, within"},
	{"a successor does not say that the record was lost", []edit{{electionFile, "unled{}, p.from.lost\n", "unled{}, false\n"}}, "gone back, twice"},
	{"a process that begins anew does not know the epoch in its state folder", []edit{{electionFile, "known: folder, epoch: folder}", "known: folder}"}}, "begin anew"},
	{"a register that forgets is believed", []edit{{electionFile, "!p.from.watched && !mine", "!p.from.watched && !mine && false"}}, "forgets, resigned"},
	{"a resignation counts as watched by a process that began later", []edit{{electionFile, "p.follows = p.seen == r.epoch", "p.follows = p.seen <= r.epoch"}}, "forgets, resigned"},
	{"a resignation counts by a state folder of any epoch", []edit{{electionFile, "p.known == cmp.Or(r.risen, p.from.epoch)", "p.known <= cmp.Or(r.risen, p.from.epoch)"}}, "forgets, copied"},
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "..", filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSeededMistakes: what each mistake replaces is in the source, once; and with -mistakes, the search
// finds it.
func TestSeededMistakes(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, m := range mistakes {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			for _, e := range m.edit {
				if n := strings.Count(read(t, e.file), e.old); n != 1 {
					t.Errorf("%s has %q %d times", e.file, e.old, n)
				}
			}
			if *mistakesFlag == "all" || *mistakesFlag != "" && strings.Contains(m.name, *mistakesFlag) {
				seed(t, m)
			}
		})
	}
}

func seed(t *testing.T, m mistake) {
	folder := t.TempDir()
	replaced, changed := map[string]string{}, map[string]string{}
	for i, e := range m.edit {
		path, err := filepath.Abs(filepath.Join("..", "..", "..", filepath.FromSlash(e.file)))
		if err != nil {
			t.Fatal(err)
		}
		if changed[path] == "" {
			changed[path] = read(t, e.file)
			replaced[path] = filepath.Join(folder, strconv.Itoa(i)+".go")
		}
		changed[path] = strings.Replace(changed[path], e.old, e.new, 1)
	}
	for path, text := range changed {
		if err := os.WriteFile(replaced[path], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, "overlay.json")
	if err = os.WriteFile(file, overlay, 0o600); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	out, err := exec.Command("go", "test", "-overlay", file, "-vet=off", "-count=1", "-timeout", "1h", "-run", "^TestExhaustive$", ".",
		"-args", "-states", strconv.Itoa(*mistakeStates), "-scenario", m.scenario, "-sample", "1000").CombinedOutput()
	found := strings.Index(string(out), "violation: ")
	if err == nil || found < 0 {
		t.Fatalf("not found: %v\n%s", err, out)
	}
	what, rest, _ := strings.Cut(string(out)[found:], "\n")
	t.Logf("after %v: %s, in %d events", time.Since(begun).Round(time.Second), what, strings.Count(rest, "bucket "))
	if testing.Verbose() {
		t.Log(rest)
	}
}
