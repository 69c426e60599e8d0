package document

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxFaults bounds what [Faults] keep. Not larger: a reader reads no more, and a
// hostile file could hold a fault per byte. Not smaller: a slip repeated in each
// of some dozens of limits should show in full.
const MaxFaults = 100

// Fault is one thing that is wrong with a file. Its fields are those of the errors
// that packages show for it.
type Fault struct {
	File    string // the name of its document
	Line    int    // from 1; 0 when the fault has no place in the file
	Column  int    // from 1, in characters; 0 when unknown
	Message string // what is wrong
	Hint    string // the way out; may be empty
	Excerpt string // the line with a caret below the column; may be empty
}

// Text returns the place and the message, then the excerpt and the hint on lines of their
// own.
func (f Fault) Text() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
		if f.Column > 0 {
			fmt.Fprintf(&b, ":%d", f.Column)
		}
	}
	if f.File != "" {
		b.WriteString(": ")
	}
	b.WriteString(f.Message)
	if f.Excerpt != "" {
		b.WriteString("\n" + f.Excerpt)
	}
	if f.Hint != "" {
		b.WriteString("\n  hint: " + f.Hint)
	}
	return b.String()
}

// Faults collect what is wrong with one document or several. The zero value is empty
// and ready. They are not safe for concurrent use.
type Faults struct {
	list []kept
	seen map[Fault]bool
	more int
}

// kept is a fault, and what returns its excerpt when all of its document was read: what comes later in the line may have to
// be concealed in it.
type kept struct {
	Fault
	excerpt func() string
}

// Add records a fault, unless the same is there.
func (f *Faults) Add(e Fault) { f.add(e, func() string { return e.Excerpt }) }

// add records a fault with the excerpt that the function returns, which is called by Sorted.
func (f *Faults) add(e Fault, excerpt func() string) {
	e.Message = userinfo.ReplaceAllString(e.Message, "://...@")
	// A value that others inherit, or that stands behind an alias, is met once for
	// each of them.
	e.Excerpt = ""
	if f.seen[e] {
		return
	}
	if len(f.list) >= MaxFaults {
		f.more++
		return
	}
	if f.seen == nil {
		f.seen = make(map[Fault]bool)
	}
	f.seen[e] = true
	f.list = append(f.list, kept{e, excerpt})
}

// Count returns how many faults were added, those beyond [MaxFaults] included. It grows
// with every fault that is new.
func (f *Faults) Count() int { return len(f.list) + f.more }

// Sorted returns the faults in the order of lines; the files keep the order in which
// they were first found at fault. The last one says how many there are beyond
// [MaxFaults], if any.
func (f *Faults) Sorted() []Fault {
	rank := make(map[string]int)
	for _, e := range f.list {
		if _, ok := rank[e.File]; !ok {
			rank[e.File] = len(rank)
		}
	}
	var list []Fault
	for _, e := range f.list {
		e.Fault.Excerpt = e.excerpt()
		list = append(list, e.Fault)
	}
	slices.SortStableFunc(list, func(a, b Fault) int {
		return cmp.Or(rank[a.File]-rank[b.File], a.Line-b.Line, a.Column-b.Column)
	})
	if f.more > 0 {
		list = append(list, Fault{Message: fmt.Sprintf("and %d more faults", f.more)})
	}
	return list
}

// secrets are what may be a password: all that stands behind the name of a value that has one, such as a store, what
// stands before an @, what follows the scheme of a store, and parameters of that name.
var secrets = regexp.MustCompile(`(?i)` +
	`(?:^|[\s{,"'])(?:store|cluster|url|dsn|redis|valkey|etcd|\w*(?:password|passwd|secret|token))["']?\s*[:=]\s*(\S.*)$` +
	`|(?:redis|valkey|etcd)[a-z+]*:(?://)?(\S*)` +
	`|\w[\w+.-]*://([^\s"']*)@` +
	`|([^\s"'=,({\[]+)@` +
	`|passw[a-z]*=([^&\s"']+)`)

// otherURL is a URL of a scheme and what follows it. Of one that is not of the web a part may be a password, also
// where it is broken.
var otherURL = regexp.MustCompile(`(?i)\b([a-z][\w+.-]*):/{1,2}([^\s"']+)`)

// userinfo is the user and the password of a URL.
var userinfo = regexp.MustCompile(`://[^\s"']*@`)

// masked returns the line with stars in place of passwords, as many as there are
// characters, so that columns stay where they are.
func masked(line string) string {
	for _, m := range slices.Backward(otherURL.FindAllStringSubmatchIndex(line, -1)) {
		if scheme := strings.ToLower(line[m[2]:m[3]]); scheme != "http" && scheme != "https" {
			line = line[:m[4]] + strings.Repeat("*", utf8.RuneCountInString(line[m[4]:m[5]])) + line[m[5]:]
		}
	}
	var b strings.Builder
	from := 0
	for _, m := range secrets.FindAllStringSubmatchIndex(line, -1) {
		var start, end int
		for i := 2; i < len(m); i += 2 {
			if m[i] >= 0 {
				start, end = m[i], m[i+1]
			}
		}
		if value := strings.Trim(line[start:end], ` "'}],`); start == m[2] && len(value) < 20 && strings.Trim(strings.ToLower(value), "abcdefghijklmnopqrstuvwxyz") == "" {
			continue // a word, such as memory misspelled
		}
		b.WriteString(line[from:start])
		b.WriteString(strings.Repeat("*", utf8.RuneCountInString(line[start:end])))
		from = end
	}
	b.WriteString(line[from:])
	return b.String()
}

// shown returns the characters of a line as excerpts have them: no passwords, and blanks in place of control characters.
func shown(line string) []rune {
	runes := []rune(strings.TrimRight(masked(line), "\r"))
	for i, r := range runes {
		if r < ' ' || r == utf8.RuneError || r == 0x7f {
			runes[i] = ' '
		}
	}
	return runes
}

// excerpt returns the characters of a line with a caret below the column. A long line is cut
// around it, and only that part is copied: a line of thousands of limits may have a hundred faults.
func excerpt(runes []rune, number, column int) string {
	const width = 100
	at := min(max(column-1, 0), len(runes))
	if at > width-20 {
		start := at - width/2
		runes, at = append([]rune("..."), runes[start:min(start+width, len(runes))]...), at-start+3
	}
	if len(runes) > width {
		runes = append(runes[:width:width], []rune("...")...)
	}
	gutter := strconv.Itoa(number)
	text := fmt.Sprintf("  %s | %s", gutter, strings.TrimRight(string(runes), " "))
	if column > 0 {
		text += fmt.Sprintf("\n  %s | %s^", strings.Repeat(" ", len(gutter)), strings.Repeat(" ", at))
	}
	return text
}
