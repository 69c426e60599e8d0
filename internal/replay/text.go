package replay

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// clockForm is how times are written for people.
const clockForm = "2006-01-02 15:04:05"

// WriteText writes the report for people.
func (r *Report) WriteText(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests from %s to %s UTC (%s)\n", r.Requests, r.First.Format(clockForm), r.Last.Format(clockForm), strings.Join(r.Formats, ", "))
	fmt.Fprintf(&b, "%d admitted, %d refused (%s)\n", r.Admitted, r.Refused, percent(r.Refused, r.Requests))
	if r.Logged > 0 {
		fmt.Fprintf(&b, "%d were refused already when the log was written, by their status\n", r.Logged)
	}
	if a := r.Against; a != nil {
		fmt.Fprintf(&b, "the other configuration: %d admitted, %d refused (%s)\n", a.Admitted, a.Refused, percent(a.Refused, a.Requests))
		fmt.Fprintf(&b, "newly refused: %d, newly admitted: %d\n", a.NewlyRefused, a.NewlyAdmitted)
	}
	b.WriteString("\n")
	r.writeLimits(&b)
	for i := range r.Limits {
		l := &r.Limits[i]
		writeKeys(&b, l.Name+", refused most", l.Keys, l.KeysError)
		writeKeys(&b, l.Name+", newly refused", l.NewlyKeys, 0)
		writeBursts(&b, l)
	}
	if r.Bad > 0 {
		fmt.Fprintf(&b, "\n%d of %d lines could not be read:\n", r.Bad, r.Lines)
		for _, u := range r.Unread {
			fmt.Fprintf(&b, "  %s:%d: %s\n", u.Log, u.Line, u.Why)
		}
	}
	if n := r.Backwards; n.Lines > 0 {
		fmt.Fprintf(&b, "\n%d lines are earlier than one in front of them, by up to %v\n", n.Lines, n.Most)
	}
	for i, note := range r.Notes {
		if i == 0 {
			b.WriteString("\n")
		}
		b.WriteString("note: " + note + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeLimits writes a table with a row for each limit.
func (r *Report) writeLimits(b *strings.Builder) {
	table := [][]string{{"limit", "requests", "admitted", "refused", "share", "by others", "shadow", "first refused", "last refused"}}
	if r.Against != nil {
		table[0] = append(table[0], "before")
	}
	row := func(l *Limit, before string) {
		line := []string{
			l.Name, number(l.Asked), number(l.Admitted), number(l.Refused), percent(l.Refused, l.Asked), number(l.Others), number(l.Shadow), moment(l.First), moment(l.Last),
		}
		if r.Against != nil {
			line = append(line, before)
		}
		table = append(table, line)
	}
	old := map[string]*Limit{}
	if r.Against != nil {
		for i := range r.Against.Limits {
			old[r.Against.Limits[i].Name] = &r.Against.Limits[i]
		}
	}
	for i := range r.Limits {
		before := "no such limit"
		if l := old[r.Limits[i].Name]; l != nil {
			before = fmt.Sprintf("%d refused", l.Refused)
			delete(old, r.Limits[i].Name)
		}
		row(&r.Limits[i], before)
	}
	if r.Against != nil {
		for i := range r.Against.Limits {
			if l := &r.Against.Limits[i]; old[l.Name] != nil {
				table = append(table, []string{l.Name, "gone", "", "", "", "", "", "", "", fmt.Sprintf("%d refused", l.Refused)})
			}
		}
	}
	writeTable(b, table)
}

func number(n int64) string { return strconv.FormatInt(n, 10) }

func moment(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(clockForm)
}

// writeTable writes columns, the first to the left and others to the right.
func writeTable(b *strings.Builder, table [][]string) {
	widths := make([]int, len(table[0]))
	for _, line := range table {
		for i, text := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, line := range table {
		var row strings.Builder
		for i, text := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i == 0 {
				row.WriteString(text + pad)
			} else {
				row.WriteString("  " + pad + text)
			}
		}
		b.WriteString(strings.TrimRight(row.String(), " ") + "\n")
	}
}

func writeKeys(b *strings.Builder, title string, keys []Key, bound int64) {
	if len(keys) == 0 {
		return
	}
	if bound > 0 {
		title += fmt.Sprintf(" (counts may be too high by %d)", bound)
	}
	b.WriteString("\n" + title + ":\n")
	var table [][]string
	for _, k := range keys {
		table = append(table, []string{"  " + k.Key, number(k.Refused), k.First.Format(clockForm), k.Last.Format(clockForm)})
	}
	writeTable(b, table)
}

// writeBursts writes a table for each policy of the limit.
func writeBursts(b *strings.Builder, l *Limit) {
	for _, of := range l.Bursts {
		title := l.Name
		if of.Of != "" {
			title += ", " + of.Of
		}
		fmt.Fprintf(b, "\n%s, the burst with which so many of %d keys are refused nothing:\n", title, of.Keys)
		table := [][]string{{"  rate", "half", "9 in 10", "99 in 100", "all"}}
		for _, r := range of.Rates {
			table = append(table, []string{"  " + r.Rate, number(r.Half), number(r.Nine), number(r.Ninety), number(r.All)})
		}
		writeTable(b, table)
		if of.Left > 0 {
			fmt.Fprintf(b, "  without %d requests of further keys\n", of.Left)
		}
	}
}
