package main

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

// plan is a named set of limits, on the wire.
type plan struct {
	Name    string `json:"name"`
	Default bool   `json:"default,omitempty"`
	Limits  []struct {
		Name   string `json:"name"`
		Policy string `json:"policy"`
		Budget string `json:"budget,omitempty"`
	} `json:"limits"`
}

// assigned is a limit whose count plans hand out, on the wire.
type assigned struct {
	Limit     string   `json:"limit"`
	Count     int64    `json:"count"`
	Assigned  int64    `json:"assigned"`
	Customers int      `json:"customers"`
	Budgets   []string `json:"budgets"`
	Over      bool     `json:"over"`
}

func newPlan() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plan",
		Short: "show the plans of a running service",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPlanList())
	return cmd
}

func newPlanList() *cobra.Command {
	var f adminFlags
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "ls",
		Short: "list the plans, and the limits of each",
		Long: `List the plans of a service and the limits of each. BUDGET is the name by which a
customer may have another count: stint customer set acme --plan pro --count BUDGET=N.
Below are the limits that the plans hand out, and whether it is more than they have.`,
		Example: `  stint plan ls
  stint plan ls --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var reply struct {
				Plans    []plan     `json:"plans"`
				Assigned []assigned `json:"assigned,omitempty"`
			}
			if err := f.call(cmd, http.MethodGet, "/v1/admin/plans", url.Values{}, &reply); err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), reply)
			}
			return showPlans(cmd, reply.Plans, reply.Assigned)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showPlans(cmd *cobra.Command, plans []plan, divided []assigned) error {
	out := cmd.OutOrStdout()
	if len(plans) == 0 {
		_, err := fmt.Fprintln(out, "there are no plans: write plans: and customers: in the limits file")
		return err
	}
	err := table(out, "PLAN\tLIMIT\tPOLICY\tBUDGET", func(row func(string, ...any)) {
		for _, p := range plans {
			name := plain(p.Name)
			if p.Default {
				name += " (default)"
			}
			for _, l := range p.Limits {
				budget := "-"
				if l.Budget != "" {
					budget = plain(l.Budget)
				}
				row("%s\t%s\t%s\t%s", name, plain(l.Name), l.Policy, budget)
			}
		}
	})
	for _, a := range divided {
		if err != nil {
			return err
		}
		says := "it fits"
		if a.Over {
			says = "over-subscribed"
		}
		_, err = fmt.Fprintf(out, "%s: %d of %d handed out to %d %s: %s\n", plain(a.Limit), a.Assigned, a.Count, a.Customers, plural(a.Customers, "customer"), says)
	}
	return err
}
