package rules

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Error is one fault in a limit file, or one warning about it.
type Error struct {
	File    string // as given to Load or Parse
	Line    int    // from 1; 0 when the fault has no place in the file
	Column  int    // from 1, in characters; 0 when unknown
	Message string // what is wrong
	Hint    string // the way out; may be empty
	Excerpt string // the line with a caret below the column; may be empty
}

// Error returns the place and the message, then the excerpt and the hint on
// lines of their own.
func (e Error) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	if e.Line > 0 {
		fmt.Fprintf(&b, ":%d", e.Line)
		if e.Column > 0 {
			fmt.Fprintf(&b, ":%d", e.Column)
		}
	}
	if e.File != "" {
		b.WriteString(": ")
	}
	b.WriteString(e.Message)
	if e.Excerpt != "" {
		b.WriteString("\n" + e.Excerpt)
	}
	if e.Hint != "" {
		b.WriteString("\n  hint: " + e.Hint)
	}
	return b.String()
}

// Errors are all the faults found, in the order of the files. [Load], [Parse] and
// [Watch] return their errors as an Errors.
type Errors []Error

// Error returns all faults, one below the other.
func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i := range e {
		texts[i] = e[i].Error()
	}
	return strings.Join(texts, "\n")
}

// maxFaults bounds what one Load reports. Not larger: nobody reads more, and a
// hostile file could hold a fault per byte. Not smaller: a slip repeated in each
// of some dozens of limits should show in full.
const maxFaults = 100

// faults collects what is wrong.
type faults struct {
	list []Error
	seen map[Error]bool
	more int
}

func (f *faults) add(e Error) {
	// A fault in defaults: or behind a YAML alias is met once for every limit
	// that inherits it.
	if f.seen[e] {
		return
	}
	if len(f.list) >= maxFaults {
		f.more++
		return
	}
	if f.seen == nil {
		f.seen = make(map[Error]bool)
	}
	f.seen[e] = true
	f.list = append(f.list, e)
}

// err returns what was collected, or nil.
func (f *faults) err() error {
	if len(f.list) == 0 {
		return nil
	}
	// Within a file the faults come in the order of its lines; the files keep
	// the order in which they were first found at fault.
	rank := make(map[string]int)
	for _, e := range f.list {
		if _, ok := rank[e.File]; !ok {
			rank[e.File] = len(rank)
		}
	}
	list := slices.Clone(f.list)
	slices.SortStableFunc(list, func(a, b Error) int {
		return cmp.Or(rank[a.File]-rank[b.File], a.Line-b.Line, a.Column-b.Column)
	})
	if f.more > 0 {
		list = append(list, Error{Message: fmt.Sprintf("and %d more faults", f.more)})
	}
	return Errors(list)
}

// secrets are what may be a password: what stands before the @ of a URL, or of what
// was meant to be one, and parameters of that name.
var secrets = regexp.MustCompile(`(?i)(?:://|(?:redis|valkey)[a-z+]*:(?://)?)(\S*)@|password=([^&\s"']+)`)

// masked returns the line with stars in place of passwords, as many as there are
// characters, so that columns stay where they are.
func masked(line string) string {
	var b strings.Builder
	from := 0
	for _, m := range secrets.FindAllStringSubmatchIndex(line, -1) {
		start, end := m[2], m[3]
		if start < 0 {
			start, end = m[4], m[5]
		}
		b.WriteString(line[from:start])
		b.WriteString(strings.Repeat("*", utf8.RuneCountInString(line[start:end])))
		from = end
	}
	b.WriteString(line[from:])
	return b.String()
}

// excerpt returns the line with a caret below the column. A long line is cut
// around it.
func excerpt(line string, number, column int) string {
	const width = 100
	runes := []rune(strings.Map(func(r rune) rune {
		if r < ' ' || r == utf8.RuneError || r == 0x7f {
			return ' '
		}
		return r
	}, strings.TrimRight(line, "\r")))
	at := min(max(column-1, 0), len(runes))
	if at > width-20 {
		start := at - width/2
		runes, at = append([]rune("..."), runes[start:]...), at-start+3
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

// suggest returns the word nearest to the one written, if any is near enough to
// have been meant.
func suggest(written string, words []string) (string, bool) {
	best, least := "", 1+max(1, len(written)/3)
	if len(written) > 64 {
		return "", false
	}
	plain := func(s string) string {
		return strings.NewReplacer("_", "", "-", "", " ", "").Replace(strings.ToLower(s))
	}
	for _, w := range words {
		d := min(distance(written, w), distance(plain(written), plain(w))+1)
		if d < least {
			best, least = w, d
		}
	}
	return best, best != ""
}

// distance is Levenshtein's, with the swap of two neighbours as one step.
func distance(a, b string) int {
	previous2, previous, current := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range previous {
		previous[j] = j
	}
	for i := range len(a) {
		current[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			current[j+1] = min(previous[j+1]+1, current[j]+1, previous[j]+cost)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				current[j+1] = min(current[j+1], previous2[j-1]+1)
			}
		}
		previous2, previous, current = previous, current, previous2
	}
	return previous[len(b)]
}
