package main

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// customer is what was set for a customer, on the wire.
type customer struct {
	Name   string    `json:"customer"`
	Plan   string    `json:"plan"`
	Until  time.Time `json:"until,omitzero"`
	Then   string    `json:"then,omitempty"`
	Counts map[string]struct {
		N       int64     `json:"count,omitempty"`
		Percent int64     `json:"percent,omitempty"`
		Until   time.Time `json:"until,omitzero"`
	} `json:"counts,omitempty"`
	Who        string    `json:"who"`
	At         time.Time `json:"at"`
	Before     string    `json:"before,omitempty"`
	BeforeFrom string    `json:"before_from,omitempty"`
}

// found is what a customer has now, on the wire.
type found struct {
	Customer string    `json:"customer"`
	Plan     string    `json:"plan"`
	From     string    `json:"from"`
	Set      *customer `json:"set,omitempty"`
}

const customersPath = "/v1/admin/customers"

func newCustomer() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "customer",
		Short: "show and change which plan a customer of a running service has",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCustomerSet(), newCustomerGet(), newCustomerList(), newCustomerRemove())
	return cmd
}

func newCustomerSet() *cobra.Command {
	var f adminFlags
	var plan, until, then string
	var counts []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "set NAME --plan PLAN",
		Short: "give a customer a plan, until a time if wanted, with other counts if wanted",
		Long: `Give a customer a plan, in place of all that was set before. All services that share
the store know it within two seconds. What the customer has used stays used.

--count gives a budget of the plan another count, as a number or as a percentage of
the plan's, and until a time behind an @. Times are dates, which begin at midnight
UTC, or such as 2026-12-31T18:00:00+01:00. After --until the customer has the plan
that --then names, or what the files say; the other counts end as well.

GET /v1/admin/audit lists each change and who made it.`,
		Example: `  stint customer set acme --plan pro
  stint customer set acme --plan pro --count messages=200%@2027-01-01
  stint customer set acme --plan trial --until 2027-02-01 --then free`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if plan == "" {
				return &exit{exitUsage, errors.New("say which plan, as in stint customer set acme --plan pro\nhint: stint plan ls has the plans, and stint customer get the one that a customer has")}
			}
			query := url.Values{"customer": {args[0]}, "plan": {plan}, "count": counts}
			for name, value := range map[string]string{"until": until, "then": then} {
				if value != "" {
					query.Set(name, value)
				}
			}
			var reply customer
			if err := f.call(cmd, http.MethodPut, customersPath, query, &reply); err != nil {
				return err
			}
			if reply.BeforeFrom == "default" {
				fmt.Fprintf(cmd.ErrOrStderr(), "hint: nobody has known customer %s: it had the default plan, %s; if the name is mistyped, take it back with stint customer rm\n", plain(reply.Name), plain(reply.Before))
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), reply)
			}
			return showCustomers(cmd, []customer{reply})
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&plan, "plan", "", "the plan that the customer is to have")
	cmd.Flags().StringVar(&until, "until", "", "when the plan ends (default: never)")
	cmd.Flags().StringVar(&then, "then", "", "the plan after that (default: what the files say)")
	cmd.Flags().StringArrayVar(&counts, "count", nil, "another count of a budget: BUDGET=N or BUDGET=N%, and @TIME where it ends; may be repeated")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newCustomerGet() *cobra.Command {
	var f adminFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "get NAME",
		Short: "show which plan a customer has now, and why",
		Long: `Show which plan a customer has now, and where that is from: it was set while the
service ran, it stands in files, or it is the default one.`,
		Example: `  stint customer get acme
  stint customer get acme --json`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var reply found
			if err := f.call(cmd, http.MethodGet, customersPath, url.Values{"customer": {args[0]}}, &reply); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), reply)
			}
			from := map[string]string{"set": "it was set", "files": "the files say so", "default": "the default: neither set nor in files"}[reply.From]
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s has plan %s (%s)\n", plain(reply.Customer), plain(reply.Plan), from); err != nil || reply.Set == nil {
				return err
			}
			return showCustomers(cmd, []customer{*reply.Set})
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newCustomerList() *cobra.Command {
	var f adminFlags
	var asJSON bool
	most := 1000
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the customers that were set",
		Long: `List the customers that were set while the service ran, by name. Those that stand
in files only are not listed.`,
		Example: `  stint customer ls
  stint customer ls --max 10 --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if most < 1 {
				return &exit{exitUsage, fmt.Errorf("--max is %d, want at least 1", most)}
			}
			list, more, err := f.customers(cmd, most)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), struct {
					Customers []customer `json:"customers"`
					More      bool       `json:"more"`
				}{list, more})
			}
			if len(list) == 0 {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "no customer was set: all have what the files say")
				return err
			}
			if err = showCustomers(cmd, list); err == nil && more {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), "and more: list them with --max")
			}
			return err
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&most, "max", most, "how many to list at most")
	return cmd
}

// customers reads pages until it has most customers, or all.
func (f *adminFlags) customers(cmd *cobra.Command, most int) (list []customer, more bool, err error) {
	const page = 1000
	list = []customer{}
	query := url.Values{}
	for {
		query.Set("max", strconv.Itoa(min(page, most-len(list))))
		var reply struct {
			Customers []customer `json:"customers"`
			Next      string     `json:"next"`
		}
		if err := f.call(cmd, http.MethodGet, customersPath, query, &reply); err != nil {
			return nil, false, err
		}
		list = append(list, reply.Customers...)
		if reply.Next == "" || len(list) >= most {
			return list, reply.Next != "", nil
		}
		query.Set("after", reply.Next)
	}
}

func newCustomerRemove() *cobra.Command {
	var f adminFlags
	cmd := &cobra.Command{
		Use:   "rm NAME",
		Short: "take back what was set: the customer has what the files say",
		Long: `Take back what was set for a customer: it has the plan that the files say, or the
default one. The exit code is 1 when nothing was set.`,
		Example: `  stint customer rm acme`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"customer": {args[0]}}
			if err := f.call(cmd, http.MethodDelete, customersPath, query, &struct{}{}); err != nil {
				return err
			}
			var now found
			if err := f.call(cmd, http.MethodGet, customersPath, query, &now); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "taken back: %s has plan %s\n", plain(now.Customer), plain(now.Plan))
			return err
		},
	}
	f.register(cmd)
	return cmd
}

func showCustomers(cmd *cobra.Command, list []customer) error {
	return table(cmd.OutOrStdout(), "CUSTOMER\tPLAN\tUNTIL\tTHEN\tCOUNTS\tBY\tAT", func(row func(string, ...any)) {
		for _, c := range list {
			until, then := "-", "-"
			if !c.Until.IsZero() {
				if until, then = c.Until.Format(time.RFC3339), "(files)"; c.Then != "" {
					then = plain(c.Then)
				}
			}
			row("%s\t%s\t%s\t%s\t%s\t%s\t%s", plain(c.Name), plain(c.Plan), until, then, c.countsText(), plain(c.Who), c.At.Format(time.RFC3339))
		}
	})
}

// countsText writes the other counts as --count takes them.
func (c *customer) countsText() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(c.Counts)) {
		n := c.Counts[name]
		text := fmt.Sprintf("%s=%d", plain(name), n.N)
		if n.N == 0 {
			text = fmt.Sprintf("%s=%d%%", plain(name), n.Percent)
		}
		if !n.Until.IsZero() {
			text += "@" + n.Until.Format(time.RFC3339)
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, " ")
}
