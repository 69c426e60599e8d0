package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/configstore"
)

// errNobodyReads says that no service reports what it enforces.
var errNobodyReads = errors.New("no service reads its configuration from here")

// showStatus prints which version each member enforces. The error says that one does not enforce the
// latest, or wraps errNobodyReads.
func showStatus(out io.Writer, latest configstore.Meta, members map[string]configstore.Report, now time.Time, asJSON bool) error {
	behind, live := 0, 0
	for _, r := range members {
		if r.Stale(now) {
			continue
		}
		live++
		if r.Version != latest.Version || r.SHA256 != latest.SHA256 {
			behind++
		}
	}
	var err error
	if asJSON {
		err = printJSON(out, struct {
			Latest  configstore.Meta              `json:"latest"`
			Members map[string]configstore.Report `json:"members"`
		}{latest, members})
	} else {
		fmt.Fprintf(out, "latest: version %d, %s, %s\n", latest.Version, latest.Author, latest.Time.Format(time.RFC3339))
		err = table(out, "MEMBER\tENFORCES\tREFUSES\tSEEN\tPROGRAM\tREASON", func(row func(string, ...any)) {
			for _, name := range slices.Sorted(maps.Keys(members)) {
				r := members[name]
				refuses, seen := "-", fmt.Sprintf("%v ago", max(0, now.Sub(r.Time)).Round(time.Second))
				if r.Refused != 0 {
					refuses = fmt.Sprint(r.Refused)
				}
				if r.Stale(now) {
					seen = "gone, " + seen
				}
				row("%s\t%d\t%s\t%s\t%s\t%s", name, r.Version, refuses, seen, cmp.Or(r.Program, "-"), r.Reason)
			}
		})
	}
	switch {
	case err != nil:
		return err
	case len(members) == 0:
		return errNobodyReads
	case live == 0:
		return fmt.Errorf("%w any more: the last report is older than 30 s", errNobodyReads)
	case behind > 0:
		return &exit{exitNo, fmt.Errorf("%d of %d %s not on version %d", behind, live, plural(live, "member"), latest.Version)}
	}
	return nil
}
