package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/spf13/cobra"
)

// firstFile is what stint init writes.
const firstFile = `# Limits of stint. Look for faults with:  stint check stint.yaml
# Start with:  stint serve stint.yaml      A change of this file is loaded at once.

# Where counters are kept. memory: in this process; one Redis serves many processes.
store: memory
# store: redis://127.0.0.1:6379

limits:
  # Each client address may send 10 requests a second, and 20 at once.
  - name: per-client
    key: [ip]
    rate: 10/s
    burst: 20

  # Five attempts to log in a minute. A client that goes on is refused for a quarter of an hour.
  - name: login
    match: {method: POST, path: /login}
    key: [ip]
    rate: 5/minute
    algorithm: sliding_window_log # at most 5 in any minute; without it 5 at once, then one each 12 s
    on_exceed: {ban: {for: 15m, after: 20/minute}}

  # A thousand requests an hour to the API, but for health checks and the office: there is no
  # list of exceptions apart from overrides.
  - name: api
    match: {path: /api/*}
    key: [ip]
    rate: 1000/hour
    overrides:
      - {when: {path: /api/health}, unlimited: true}
      - {when: {ip: 192.0.2.0/24}, unlimited: true}

  # A new limit counts and refuses nothing while it is a shadow: stint top and the dashboard
  # show what it would have refused.
  - name: exports
    match: {path: /export*}
    key: [ip]
    rate: 20/day
    algorithm: fixed_window
    shadow: true
`

func newInit() *cobra.Command {
	return &cobra.Command{
		Use:   "init [FILE]",
		Short: "write a limit file to begin with",
		Long: `Write a limit file with comments to begin with: stint.yaml, or FILE, or - for standard
output. A file that is there stays as it is.`,
		Example: `  stint init
  stint init limits/api.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := "stint.yaml"
			if len(args) > 0 {
				name = args[0]
			}
			out := cmd.OutOrStdout()
			if name == "-" {
				_, err := io.WriteString(out, firstFile)
				return err
			}
			f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if errors.Is(err, fs.ErrExist) {
				return &exit{exitNo, fmt.Errorf("%s is there already, and stays as it is\nhint: name another file, or - for standard output", name)}
			}
			if err != nil {
				return &exit{exitUsage, err}
			}
			if _, err = io.WriteString(f, firstFile); err == nil {
				err = f.Close()
			}
			if err != nil {
				return &exit{exitUsage, fmt.Errorf("cannot write %s: %w", name, err)}
			}
			_, err = fmt.Fprintf(out, "%s is written\nstart with:\n  stint serve %s\n", name, name)
			return err
		},
	}
}
