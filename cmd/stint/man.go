package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "write the manual pages",
		Long: `Write a manual page for stint and for each of its commands into a folder, which is made
when it is missing. They say what --help says. Packages of stint have them already. They
bear the date of SOURCE_DATE_EPOCH, in seconds since 1970, or none.`,
		Example: `  stint man ~/.local/share/man/man1`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return &exit{exitUsage, err}
			}
			date := ""
			if epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
				date = time.Unix(epoch, 0).UTC().Format(time.DateOnly)
			}
			return writePages(cmd.Root(), args[0], date)
		},
	}
}

// writePages writes the page of a command and of all below it.
func writePages(cmd *cobra.Command, folder, date string) error {
	cmd.InitDefaultHelpFlag()
	var page strings.Builder
	manPage(&page, cmd, date)
	if err := os.WriteFile(filepath.Join(folder, pageName(cmd)+".1"), []byte(page.String()), 0o644); err != nil {
		return &exit{exitNo, err}
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			if err := writePages(sub, folder, date); err != nil {
				return err
			}
		}
	}
	return nil
}

func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage writes one page in the macros of man(7).
func manPage(w io.Writer, cmd *cobra.Command, date string) {
	fmt.Fprintf(w, ".TH %s 1 %s %s\n", macroArgument(strings.ToUpper(pageName(cmd))), `"`+date+`"`, macroArgument("stint "+version()))
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", escaped(pageName(cmd)), escaped(cmd.Short))
	fmt.Fprintf(w, ".SH SYNOPSIS\n.B %s\n", escaped(cmd.CommandPath()))
	if cmd.Runnable() {
		fmt.Fprintln(w, line(strings.TrimSpace(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath()))))
	} else {
		fmt.Fprintln(w, "command [flags]")
	}
	fmt.Fprintln(w, ".SH DESCRIPTION")
	prose(w, cmd.Long, cmd.Short)
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintln(w, ".SH COMMANDS")
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(w, ".TP\n.BR %s (1)\n%s\n", escaped(pageName(sub)), line(sub.Short))
			}
		}
	}
	flags(w, "OPTIONS", cmd.NonInheritedFlags())
	flags(w, "OPTIONS OF EVERY COMMAND", cmd.InheritedFlags())
	if cmd.Example != "" {
		fmt.Fprint(w, ".SH EXAMPLES\n")
		prose(w, cmd.Example, "")
	}
	fmt.Fprintf(w, ".SH ENVIRONMENT\n%s\n", line("Every flag can be set in the environment: --admin-token-file is STINT_ADMIN_TOKEN_FILE. A flag on the command line wins."))
	fmt.Fprintf(w, ".SH EXIT STATUS\n.TP\n0\nyes, or done\n.TP\n1\n%s\n.TP\n2\n%s\n",
		line("no: a fault in a file, a request that is refused, a service that failed"), line("the question is wrong, or could not be put"))
	if cmd.HasParent() {
		fmt.Fprintf(w, ".SH SEE ALSO\n.BR %s (1)\n", escaped(pageName(cmd.Parent())))
	}
}

// prose writes paragraphs; lines that are indented stay as they are.
func prose(w io.Writer, text, otherwise string) {
	if text == "" {
		text = otherwise
	}
	verbatim, first, blank := false, true, false
	for l := range strings.SplitSeq(strings.Trim(text, "\n"), "\n") {
		if strings.TrimSpace(l) == "" {
			blank = true
			continue
		}
		indented := strings.HasPrefix(l, "  ") || strings.HasPrefix(l, "\t")
		switch {
		case indented && !verbatim:
			fmt.Fprint(w, ".RS 4\n.nf\n")
		case !indented && verbatim:
			fmt.Fprint(w, ".fi\n.RE\n.PP\n")
		case blank && indented:
			fmt.Fprintln(w)
		case blank && !first:
			fmt.Fprintln(w, ".PP")
		}
		verbatim, first, blank = indented, false, false
		fmt.Fprintln(w, line(strings.TrimSpace(l)))
	}
	if verbatim {
		fmt.Fprintln(w, ".fi\n.RE")
	}
}

func flags(w io.Writer, heading string, set *pflag.FlagSet) {
	if !set.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(w, ".SH %s\n", heading)
	set.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(w, ".TP\n.B %s", escaped(name))
		if kind != "" {
			fmt.Fprintf(w, " %s", escaped(kind))
		}
		fmt.Fprintf(w, "\n%s", line(usage))
		if d := f.DefValue; d != "" && d != "false" && d != "[]" && d != "0" && d != "0s" && !strings.Contains(usage, "(default") {
			fmt.Fprintf(w, "\n(default %s)", escaped(d))
		}
		fmt.Fprintln(w)
	})
}

// line escapes a line of text, and keeps its first character from being a macro.
func line(s string) string {
	s = escaped(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

func escaped(s string) string {
	return strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(s)
}

func macroArgument(s string) string { return `"` + strings.ReplaceAll(escaped(s), `"`, `\(dq`) + `"` }
