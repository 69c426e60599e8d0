package main

import (
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
)

// readyPause is how long after an answer that is no yes the service is asked again.
const readyPause = 100 * time.Millisecond

func newReady() *cobra.Command {
	var f adminFlags
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "ready", SuggestFor: []string{"status", "health", "ping"},
		Short: "ask a running service whether it should get requests",
		Long: `Ask a running service whether it should get requests, as /readyz on its admin port
says. The exit code is 0 when it should, 1 when it should not yet, and 2 when it does
not answer. With --wait it is asked until it says yes, or the time is over: for
health checks of containers, and between the steps of a roll-out.`,
		Example: `  stint ready
  stint ready --wait 30s --admin https://stint.internal:8082 --ca ca.crt`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			deadline := time.After(wait)
			for {
				text, err := f.ready(cmd)
				if err == nil {
					_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
					return err
				}
				select {
				case <-time.After(readyPause):
				case <-deadline:
					return err
				case <-cmd.Context().Done():
					return err
				}
			}
		},
	}
	f.register(cmd)
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to ask again until the service is ready")
	return cmd
}

// ready asks once. Its error says that the service is not ready, or did not answer.
func (f *adminFlags) ready(cmd *cobra.Command) (string, error) {
	addr := f.url()
	asker, err := f.secure(addr)
	if err != nil {
		return "", &exit{exitUsage, err}
	}
	req, err := http.NewRequestWithContext(cmd.Context(), http.MethodGet, addr+"/readyz", nil)
	if err != nil {
		return "", &exit{exitUsage, err}
	}
	resp, err := asker.Do(req)
	if err != nil {
		return "", &exit{exitUsage, fmt.Errorf("%w\nhint: is the service running, and is its admin port there? say where it is with --admin", err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", &exit{exitUsage, fmt.Errorf("the service's answer broke off: %w", err)}
	}
	switch text := plain(oneLine(string(body))); resp.StatusCode {
	case http.StatusOK:
		return text, nil
	case http.StatusServiceUnavailable:
		return "", &exit{exitNo, fmt.Errorf("%s", text)}
	default:
		return "", &exit{exitUsage, fmt.Errorf("the service answered %s: %s\nhint: --admin is the address of the admin port", resp.Status, text)}
	}
}
