package main

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// counter is how a key stands, on the wire.
type counter struct {
	Limit      string  `json:"limit"`
	Override   string  `json:"override,omitempty"`
	Quota      int64   `json:"quota"`
	Used       int64   `json:"used"`
	Remaining  int64   `json:"remaining"`
	Granted    int64   `json:"granted,omitempty"`
	ResetAfter float64 `json:"reset_after"`
	Changed    int64   `json:"changed,omitempty"`
	Members    []struct {
		Member    string `json:"member"`
		Used      int64  `json:"used"`
		Remaining int64  `json:"remaining"`
		Changed   int64  `json:"changed,omitempty"`
	} `json:"members,omitempty"`
	Unreached []string `json:"unreached,omitempty"`
	Repeated  bool     `json:"repeated,omitempty"`
}

func newKey() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "key",
		Short: "show and change what one key has used of a limit of a running service",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeyGet())
	const once = `

With --request-id it is done once: the same call again answers what it answered the
first time. Repeat a call that was cut off with the same ID. Who changed what is
listed by GET /v1/admin/audit.`
	for _, c := range []keyChange{
		{
			name: "reset", short: "make a key as if it had never been seen",
			long:    "Drop what a key has used of a limit, what it was granted, and its ban." + once,
			example: "  stint key reset month customer=acme",
		},
		{
			name: "refund", short: "give back a part of what a key has used", amount: true,
			long:    "Give back an amount to a key: at most what it has used." + once,
			example: "  stint key refund month customer=acme 500 --request-id ticket-4711",
		},
		{
			name: "grant", short: "let a key use more until its window ends", amount: true,
			long: `Let a key use an amount more until the window ends that is open, at most as much
again as its quota. It is for fixed windows of the calendar or the clock.` + once,
			example: "  stint key grant month customer=acme 100000 --request-id ticket-4711",
		},
	} {
		cmd.AddCommand(c.command())
	}
	return cmd
}

func newKeyGet() *cobra.Command {
	var f adminFlags
	var override string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "get LIMIT [NAME=VALUE...]",
		Short: "show what a key has used of a limit, and what is left",
		Long: `Show what a key has used of a limit, and what is left: by the limit's own counter,
and by those of its overrides.`,
		Example: `  stint key get month customer=acme
  stint key get month customer=acme --json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := keyQuery(args, override)
			if err != nil {
				return &exit{exitUsage, err}
			}
			var reply struct {
				Counters []counter `json:"counters"`
			}
			if err := f.call(cmd, http.MethodGet, "/v1/admin/keys", query, &reply); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), reply)
			}
			return showCounters(cmd, reply.Counters)
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&override, "override", "", "the condition of the override whose counter is meant, as it is shown")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showCounters(cmd *cobra.Command, list []counter) error {
	return table(cmd.OutOrStdout(), "LIMIT\tUSED\tQUOTA\tREMAINING\tGRANTED\tRESET IN", func(row func(string, ...any)) {
		for _, c := range list {
			name := plain(c.Limit)
			if c.Override != "" {
				name += " (" + plain(c.Override) + ")"
			}
			row("%s\t%d\t%d\t%d\t%d\t%s", name, c.Used, c.Quota, c.Remaining, c.Granted, time.Duration(c.ResetAfter*float64(time.Second)).Truncate(time.Second))
		}
	})
}

// keyQuery turns arguments into which key is meant.
func keyQuery(args []string, override string) (url.Values, error) {
	query := url.Values{"limit": {args[0]}}
	for _, text := range args[1:] {
		if name, _, ok := strings.Cut(text, "="); !ok || name == "" {
			if strings.Contains(args[0], "=") {
				return nil, fmt.Errorf("the limit goes first: write %s %s", text, args[0])
			}
			return nil, fmt.Errorf("%q is no part of a key, write it as customer=acme", text)
		}
		query.Add("key", text)
	}
	if override != "" {
		query.Set("override", override)
	}
	return query, nil
}

// keyChange is a command that changes what a key has used.
type keyChange struct {
	name, short, long, example string
	amount                     bool
}

func (c keyChange) command() *cobra.Command {
	var f adminFlags
	var override, id string
	var asJSON bool
	use, least := c.name+" LIMIT [NAME=VALUE...]", 1
	if c.amount {
		use, least = use+" AMOUNT", 2
	}
	cmd := &cobra.Command{
		Use: use, Short: c.short, Long: c.long, Example: c.example, Args: cobra.MinimumNArgs(least),
		RunE: func(cmd *cobra.Command, args []string) error {
			amount := ""
			if c.amount {
				amount, args = args[len(args)-1], args[:len(args)-1]
			}
			query, err := keyQuery(args, override)
			if n, wrong := strconv.ParseInt(amount, 10, 64); err == nil && c.amount {
				if err = wrong; err != nil || n < 1 {
					err = errors.New("the last argument is the amount, a whole number of at least 1, as in stint key " + c.name + " month customer=acme 500")
				}
				query.Set("amount", amount)
			}
			if err != nil {
				return &exit{exitUsage, err}
			}
			var reply counter
			if err := f.call(cmd, http.MethodPost, "/v1/admin/keys/"+c.name, query, &reply, "Idempotency-Key", id); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), reply)
			}
			if reply.Repeated {
				fmt.Fprintln(cmd.OutOrStdout(), "it was done before by a call with this request ID, which answered:")
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s %d\n", map[string]string{"reset": "dropped", "refund": "gave back", "grant": "granted"}[c.name], reply.Changed)
			for _, m := range reply.Members {
				fmt.Fprintf(cmd.OutOrStdout(), "of this at member %s: %d\n", plain(m.Member), m.Changed)
			}
			for _, m := range reply.Unreached {
				fmt.Fprintf(cmd.OutOrStdout(), "warning: member %s did not answer, and has what it had counted: look at it, and ask again with another request ID\n", plain(m))
			}
			return showCounters(cmd, []counter{reply})
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&override, "override", "", "the condition of the override whose counter is meant, as stint key get shows it")
	cmd.Flags().StringVar(&id, "request-id", "", "do it once for this ID, however often it is asked for within a week")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
