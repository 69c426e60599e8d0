package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/server"
	"github.com/stint-io/stint/store/durable"
)

func newState() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "state",
		Short: "convert what a service keeps from one start to the next",
	}
	cmd.AddCommand(&cobra.Command{
		Use:   "downgrade [FILE]",
		Short: "convert the counts to the format of the previous version",
		Long: `Convert the counts of long windows to the format of the previous version, which cannot read
the current one. Stop the service first. The current version converts them again when it
starts. FILE is ` + server.CountsFile + ` in the default state directory if it is not given.`,
		Example: `  stint state downgrade
  stint state downgrade /var/lib/stint/` + server.CountsFile,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := filepath.Join(defaultStateDir(os.Getenv), server.CountsFile)
			if len(args) > 0 {
				name = args[0]
			}
			if err := durable.Downgrade(name); errors.Is(err, fs.ErrNotExist) {
				return &exit{exitUsage, fmt.Errorf("%w\nhint: name the file, which is %s in the state directory", err, server.CountsFile)}
			} else if err != nil {
				return &exit{exitNo, err}
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%s is in the format of the previous version\n", name)
			return err
		},
	})
	return cmd
}
