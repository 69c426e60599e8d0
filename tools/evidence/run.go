package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// runner runs commands of rows, each of them once.
type runner struct {
	root    string
	timeout time.Duration
	outputs map[string]result
}

type result struct {
	output string
	load   string // of the machine, when it began
	err    error
}

func (r *runner) run(ctx context.Context, command string) result {
	if done, ok := r.outputs[command]; ok {
		return done
	}
	ctx, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var output bytes.Buffer
	done := result{load: load()}
	cmd := exec.CommandContext(ctx, "bash", "-c", "set -euo pipefail\n"+command)
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.root, &output, &output
	// A cached result is of another run.
	cmd.Env = append(os.Environ(), "GOFLAGS="+strings.TrimSpace(os.Getenv("GOFLAGS")+" -count=1"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	done.err = cmd.Run()
	if ctx.Err() != nil {
		done.err = fmt.Errorf("it did not end within %v", r.timeout)
	}
	done.output = output.String()
	r.outputs[command] = done
	return done
}

func load() string {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	return strings.Fields(string(text))[0]
}

// again runs the command of a row and returns the figure that it shows now. The command of a goal that is
// missed may fail for it, if it still shows the figure.
func (r *runner) again(ctx context.Context, row *row) (figure string, _ result, _ error) {
	done := r.run(ctx, row.Command)
	var exit *exec.ExitError
	missed := errors.As(done.err, &exit) && !*row.Met && row.takesFigure()
	if done.err != nil && !missed {
		return "", done, fmt.Errorf("%w\n%s", done.err, lastLines(done.output, 25))
	}
	figure, err := row.figureOf(done.output)
	if err != nil {
		return "", done, fmt.Errorf("%w\n%s", err, lastLines(done.output, 10))
	}
	return figure, done, nil
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// takesFigure reports whether the figure of a row is taken out of an output.
func (r *row) takesFigure() bool { return r.Pattern != "" || len(r.Cells) > 0 }

// figureOf takes the figure of a row out of the output of its command. A row with neither pattern nor
// cells has a command that fails if the claim does not hold.
func (r *row) figureOf(output string) (string, error) {
	var figures []string
	switch {
	case len(r.Cells) > 0:
		tables := markdownTables(output)
		for _, ref := range r.Cells {
			text, err := cell(tables, ref)
			if err != nil {
				return "", err
			}
			figures = append(figures, text)
		}
		if allEqual(figures) {
			figures = figures[:1]
		}
	case r.Pattern != "":
		for _, m := range regexp.MustCompile(r.Pattern).FindAllStringSubmatch(output, -1) {
			figures = append(figures, m[min(1, len(m)-1):]...)
		}
		if len(figures) == 0 {
			return "", fmt.Errorf("the output has nothing like the pattern %s", r.Pattern)
		}
	default:
		return r.Figure, nil
	}
	return strings.Join(strings.Fields(strings.Join(figures, ", ")), " "), nil
}

func allEqual(texts []string) bool {
	for _, text := range texts {
		if text != texts[0] {
			return false
		}
	}
	return true
}

// within reports whether a figure is another one but for noise, which is relative. Without noise both
// are the same text.
func within(noise float64, before, now string) error {
	if noise == 0 {
		if before != now {
			return errors.New("it has no noise")
		}
		return nil
	}
	was, is := numbers(before), numbers(now)
	if len(was) != len(is) {
		return fmt.Errorf("it has %d numbers in place of %d", len(is), len(was))
	}
	for i := range was {
		if off := math.Abs(is[i] - was[i]); off > noise*math.Max(math.Abs(was[i]), math.Abs(is[i])) {
			return fmt.Errorf("%v and %v differ by more than %.0f %%", was[i], is[i], 100*noise)
		}
	}
	return nil
}

// table is one Markdown table, under the heading that it has. A second table under the same heading is
// called "heading#2".
type table struct {
	title string
	head  []string
	rows  [][]string
}

func markdownTables(text string) []table {
	var tables []table
	heading, under, inTable := "", 0, false
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "### "):
			heading, under, inTable = strings.TrimPrefix(line, "### "), 0, false
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case !inTable:
			under++
			title := heading
			if under > 1 {
				title = fmt.Sprintf("%s#%d", heading, under)
			}
			tables = append(tables, table{title: title, head: tableCells(line)})
			inTable = true
		case !strings.HasPrefix(line, "|--"):
			last := &tables[len(tables)-1]
			last.rows = append(last.rows, tableCells(line))
		}
	}
	return tables
}

// tableCells returns the cells of a line. A bar within a cell is written as \|.
func tableCells(line string) []string {
	cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")
	for i := range cells {
		cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "\x00", "|")
	}
	return cells
}

// cell returns the number that the cell "table | row | column" begins with, or "never". A row is found by its
// first cell, or by its first cells with commas between them; "column#2" is the second column of a name.
func cell(tables []table, ref string) (string, error) {
	parts := tableCells(ref)
	if len(parts) != 3 {
		return "", fmt.Errorf("%q is no cell, want table | row | column", ref)
	}
	for _, t := range tables {
		if t.title != parts[0] {
			continue
		}
		column, err := t.column(parts[2])
		if err != nil {
			return "", err
		}
		for _, row := range t.rows {
			for n := 1; n <= len(row); n++ {
				if strings.Join(row[:n], ", ") == parts[1] && column < len(row) {
					return leadingFigure(row[column])
				}
			}
		}
		return "", fmt.Errorf("table %q has no row %q", parts[0], parts[1])
	}
	return "", fmt.Errorf("the output has no table %q", parts[0])
}

func (t table) column(name string) (int, error) {
	name, count, _ := strings.Cut(name, "#")
	nth, _ := strconv.Atoi(cmp.Or(count, "1"))
	for i, head := range t.head {
		if head == name {
			if nth--; nth == 0 {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("table %q has no column %q", t.title, name)
}

var leading = regexp.MustCompile(`^-?\d+(\.\d+)?(e[+-]?\d+)?|^never$`)

func leadingFigure(text string) (string, error) {
	if figure := leading.FindString(text); figure != "" {
		return figure, nil
	}
	return "", fmt.Errorf("the cell %q does not begin with a number", text)
}

// machine describes where a command ran.
func machine(load string) string {
	model := runtime.GOARCH
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`(?m)^model name\s*: (.+)$`).FindSubmatch(text); m != nil {
			model = string(m[1])
		}
	}
	return fmt.Sprintf("%d cores, %s, %s, load %s", runtime.NumCPU(), model, runtime.Version(), load)
}
