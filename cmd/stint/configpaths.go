package main

import (
	"strings"

	"github.com/stint-io/stint/internal/cluster/clusterurl"
	"github.com/stint-io/stint/server"
)

// configPaths is the flag --config: files and folders, with commas in between or repeated, or a URL, in
// which commas stand between hosts.
type configPaths []string

// String returns the entries without passwords.
func (c *configPaths) String() string {
	shown := make([]string, len(*c))
	for i, path := range *c {
		shown[i] = path
		if server.IsConfigURL(path) {
			shown[i] = clusterurl.Redacted(path)
		}
	}
	return strings.Join(shown, ", ")
}

// Set adds what one flag says. Spaces around a comma belong to no path.
func (c *configPaths) Set(value string) error {
	if server.IsConfigURL(value) {
		*c = append(*c, value)
		return nil
	}
	for path := range strings.SplitSeq(value, ",") {
		*c = append(*c, strings.TrimSpace(path))
	}
	return nil
}

// Type is shown in the help.
func (*configPaths) Type() string { return "strings" }
