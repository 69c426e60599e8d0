package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// Sequences of ANSI terminals.
const (
	cursorHome = "\x1b[H"
	eraseLine  = "\x1b[K"
	eraseBelow = "\x1b[J"
	otherPage  = "\x1b[?1049h\x1b[?25l" // a page of its own, without a cursor
	firstPage  = "\x1b[?25h\x1b[?1049l"
)

// topAnswer is the answer of GET /v1/top.
type topAnswer struct {
	Limits []struct {
		Limit   string   `json:"limit"`
		Shadow  bool     `json:"shadow"`
		Used    *float64 `json:"used_percent"`
		Allowed float64  `json:"allowed_per_second"`
		Refused float64  `json:"refused_per_second"`
		Over    float64  `json:"let_through_per_second"`
		Top     []topKey `json:"top_keys"`
		Most    []topKey `json:"refused_most"`
	} `json:"limits"`
	Total     int     `json:"limits_total"`
	TopError  float64 `json:"top_keys_error"`
	MostError float64 `json:"refused_most_error"`
	One       int     `json:"one_in"`
}

type topKey struct {
	Key  string  `json:"key"`
	Rate float64 `json:"per_second"`
	Sure bool    `json:"sure"`
}

func newTop() *cobra.Command {
	var f adminFlags
	var once bool
	var sort, find string
	limits, every := 0, 2*time.Second
	cmd := &cobra.Command{
		Use:   "top",
		Short: "show limits and their top keys, as they change",
		Long: `Show what each limit of a running service admits and refuses in a second, which key it
meets most and which it refuses most, and draw it again and again. With --once, or where
the output is no terminal, it is printed once. The dashboard at /ui of the admin port
shows the same.`,
		Example: `  stint top
  stint top --once --sort allowed --limits 10`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 100*time.Millisecond || every > time.Hour {
				return &exit{exitUsage, fmt.Errorf("--every is %v, want 100ms to 1h", every)}
			}
			drawn := terminal(cmd.OutOrStdout())
			most := cmp.Or(limits, 50)
			if !once && drawn && limits == 0 {
				most = rows()
			}
			query := url.Values{"limits": {strconv.Itoa(most)}, "keys": {"1"}, "sort": {sort}}
			if find != "" {
				query.Set("find", find)
			}
			ask := func() (text string, err error) {
				var a topAnswer
				if err := f.call(cmd, "GET", "/v1/top", query, &a); err != nil {
					return "", err
				}
				return a.text(), nil
			}
			if once || !drawn {
				text, err := ask()
				if err != nil {
					return err
				}
				_, err = io.WriteString(cmd.OutOrStdout(), text)
				return err
			}
			return redraw(cmd.Context(), cmd.OutOrStdout(), every, ask)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "print once and end")
	cmd.Flags().StringVar(&sort, "sort", "refused", "which limits come first: refused, allowed or name")
	cmd.Flags().StringVar(&find, "find", "", "only limits whose name has this")
	cmd.Flags().IntVar(&limits, "limits", 0, "how many limits (default: 50, or as many as a terminal of $LINES lines has room for)")
	cmd.Flags().DurationVar(&every, "every", every, "how often to draw")
	return cmd
}

// redraw draws until ctx ends, or the first answer does not come. A later one that does not come is shown as such.
func redraw(ctx context.Context, out io.Writer, every time.Duration, ask func() (string, error)) error {
	text, err := ask()
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, otherPage); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(out, firstPage) }() // nobody sees that it fails
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		if _, err := io.WriteString(out, frame(text)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
		}
		if next, err := ask(); err == nil {
			text = next
		} else if !errors.Is(err, context.Canceled) {
			before, _, _ := strings.Cut(text, "\n! ")
			text = strings.TrimRight(before, "\n") + "\n! " + plain(strings.SplitN(err.Error(), "\n", 2)[0]) + "\n"
		}
	}
}

// frame writes a page over the one before, without a flash.
func frame(text string) string {
	return cursorHome + strings.ReplaceAll(text, "\n", eraseLine+"\r\n") + eraseBelow
}

// text is the table.
func (a *topAnswer) text() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "LIMIT\tUSED\tALLOWED/S\tREFUSED/S\tTOP KEY\tREFUSED MOST")
	for i := range a.Limits {
		l := &a.Limits[i]
		used := "-"
		if l.Used != nil {
			used = fmt.Sprintf("%.0f%%", *l.Used)
		}
		refused := fmt.Sprintf("%.1f", l.Refused)
		if l.Shadow || l.Over > 0 {
			refused += fmt.Sprintf(" (%.1f let through)", l.Over)
		}
		fmt.Fprintf(w, "%s\t%s\t%.1f\t%s\t%s\t%s\n", cell(l.Limit, 32), used, l.Allowed, refused, keyCell(l.Top), keyCell(l.Most))
	}
	// A strings.Builder never fails.
	_ = w.Flush()
	fmt.Fprintf(&b, "\n%d of %d limits; keys of the latest minute, too high by at most %.2f/s (refused: %.2f/s); ? = not surely the first\n", len(a.Limits), a.Total, a.TopError, a.MostError)
	if a.One > 1 {
		fmt.Fprintf(&b, "one request in %d is counted for the keys, for as many\n", a.One)
	}
	return b.String()
}

func keyCell(list []topKey) string {
	if len(list) == 0 {
		return "-"
	}
	sure := ""
	if !list[0].Sure {
		sure = "?"
	}
	return fmt.Sprintf("%s %.1f/s%s", cell(list[0].Key, 36), list[0].Rate, sure)
}

// cell is text of others for a column: nothing in it moves the cursor.
func cell(text string, most int) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, text)
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-3]) + "..."
	}
	return text
}

// terminal says whether out is one.
func terminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb" && info.Name() != "null"
}

// rows is how many limits a terminal has room for, by the variable that shells set; 19 where they do not.
func rows() int {
	if lines, err := strconv.Atoi(os.Getenv("LINES")); err == nil && lines > 6 {
		return min(lines-4, 1000)
	}
	return 19
}
