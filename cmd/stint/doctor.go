package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/internal/configstore"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server"
	"github.com/stint-io/stint/store/redis"
)

// doctorTime bounds an examination: a cluster of many masters far away takes some
// seconds, a store that is not there one.
const doctorTime = time.Minute

func newDoctor() *cobra.Command {
	var store, cluster string
	var service adminFlags
	var files []string
	var asJSON, keys bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "examine the store and the cluster: reachable, set so that limits are kept, and led",
		Long: `Examine the store that serve would use with the same flags: whether it answers and
how fast, whether the user may do what is needed, and whether it keeps what is
counted. Nothing is written but keys and messages under the store's prefix that
begin with doctor:.

With --keys, ask a running service as well which of its limits have applied to no
request, for want of their keys.

With --cluster, examine the backend of a cluster as well: whether it answers, which
member leads and in which epoch, and which members there are. Nothing is written
there.

The exit code is 0 when nothing is bad, 1 when something is, and 2 when a URL is
wrong or a file has faults.`,
		Example: `  stint doctor --store redis://127.0.0.1:6379
  stint doctor --config stint.yaml --json
  stint doctor --keys
  stint doctor --cluster etcd://127.0.0.1:2379/stint`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			url, long, err := storeOf(cmd, store, files)
			if err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), doctorTime)
			defer cancel()
			report := doctorReport{Store: url, OK: true, Findings: []finding{}}
			if url != server.StoreMemory {
				o, err := redis.ParseURL(url)
				if err != nil {
					return &exit{exitUsage, err}
				}
				report.examine(ctx, o, long)
			}
			if cluster != "" {
				if err := report.examineCluster(ctx, cluster); err != nil {
					return err
				}
			}
			if keys {
				if err := report.examineKeys(cmd, &service); err != nil {
					return err
				}
			}
			for _, line := range exposed(cmd.Flags(), files, store, url, cluster) {
				report.Findings = append(report.Findings, finding{Check: "files", Level: "warning", Text: line})
			}
			if asJSON {
				return report.json(cmd.OutOrStdout())
			}
			return report.text(cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&store, "store", "", "the store to examine, such as redis://127.0.0.1:6379 (default: what the files say)")
	cmd.Flags().Var((*configPaths)(&files), "config", "limit file or folder of limit files that names the store, may be repeated; or the URL of a backend that has them")
	cmd.Flags().StringVar(&cluster, "cluster", "", "the backend of the cluster to examine, such as etcd://HOST:PORT[,HOST:PORT]/PREFIX")
	cmd.Flags().BoolVar(&keys, "keys", false, "examine the keys of limits at the service whose admin port is at --admin")
	service.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	return cmd
}

// storeOf is the store that serve would use, and which limits have windows that should outlive a restart.
func storeOf(cmd *cobra.Command, store string, paths []string) (url string, long []string, err error) {
	var set *rules.Set
	switch {
	case len(paths) == 0:
		return cmp.Or(store, server.StoreMemory), nil, nil
	case len(paths) == 1 && server.IsConfigURL(paths[0]):
		set, err = limitsAt(cmd, paths[0])
	default:
		if set, err = rules.Load(paths...); err != nil {
			err = &exit{exitUsage, err}
		}
	}
	if err != nil {
		return "", nil, err
	}
	for _, l := range set.Limits() {
		if p := l.Base.Policy; !p.Unlimited && p.Window() >= time.Hour && !l.Sharing.Local() {
			long = append(long, l.Name)
		}
	}
	return cmp.Or(store, set.Store(), server.StoreMemory), long, nil
}

// limitsAt are those of the latest version at the URL of a backend.
func limitsAt(cmd *cobra.Command, url string) (set *rules.Set, err error) {
	b := backend{url: url, flag: "--config"}
	err = b.ask(cmd, func(ctx context.Context, s *configstore.Store) error {
		v, err := s.Latest(ctx)
		if err != nil {
			return err
		}
		var files []rules.File
		for _, f := range v.Files {
			files = append(files, rules.File{Name: f.Name, Text: []byte(f.Text)})
		}
		set, err = rules.Options{MergeDomains: true}.Compile(files...)
		return err
	})
	return set, err
}

// doctorReport is what doctor prints with --json.
type doctorReport struct {
	Store    string    `json:"store"`
	Cluster  string    `json:"cluster,omitempty"`
	OK       bool      `json:"ok"`
	Findings []finding `json:"findings"`
}

// finding is a redis.Finding on the wire, or one about a cluster.
type finding struct {
	Check  string `json:"check"`
	Level  string `json:"level"`
	Text   string `json:"text"`
	Advice string `json:"advice,omitempty"`

	ofCluster bool
}

func (r *doctorReport) examine(ctx context.Context, o redis.Options, long []string) {
	r.Store = o.String()
	for _, f := range redis.Diagnose(ctx, o, long...) {
		r.OK = r.OK && f.Level != redis.Bad
		r.Findings = append(r.Findings, finding{Check: f.Check, Level: f.Level.String(), Text: f.Text, Advice: f.Advice})
	}
}

// examineKeys asks a service which of its limits were meant for requests and have applied to none.
func (r *doctorReport) examineKeys(cmd *cobra.Command, service *adminFlags) error {
	text, err := service.fetch(cmd, http.MethodGet, "/metrics", nil)
	if err != nil {
		return err
	}
	skipped, applied := map[string]float64{}, map[string]bool{}
	for line := range strings.Lines(string(text)) {
		name, labels, ok := strings.Cut(line, "{limit=")
		if !ok {
			continue
		}
		quoted, err := strconv.QuotedPrefix(labels)
		if err != nil {
			continue
		}
		limit, err := strconv.Unquote(quoted)
		n, badNumber := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		switch {
		case err != nil || badNumber != nil || n == 0:
		case name == "stint_decisions_total":
			applied[limit] = true
		case name == "stint_unlimited_total" && strings.Contains(labels, `reason="missing_key"`):
			skipped[limit] = n
		}
	}
	found := false
	for _, limit := range slices.Sorted(maps.Keys(skipped)) {
		if !applied[limit] {
			found = true
			r.Findings = append(r.Findings, finding{Check: "keys", Level: redis.Warning.String(), Text: fmt.Sprintf("limit %q has applied to none of %.0f requests, for want of its key", plain(limit), skipped[limit]), Advice: "correct the key, have the caller send the attribute, or write missing: reject; /v1/explain shows what a request lacks"})
		}
	}
	if !found {
		r.Findings = append(r.Findings, finding{Check: "keys", Level: redis.Good.String(), Text: "no limit lacks its key for every request"})
	}
	return nil
}

// add adds a finding about the cluster.
func (r *doctorReport) add(level redis.Level, check, text, advice string) {
	r.OK = r.OK && level != redis.Bad
	r.Findings = append(r.Findings, finding{check, level.String(), text, advice, true})
}

func (r *doctorReport) json(out io.Writer) error {
	enc := json.NewEncoder(out)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if err := enc.Encode(r); err != nil {
		return err
	}
	return r.verdict()
}

func (r *doctorReport) text(out io.Writer) error {
	var b strings.Builder
	switch {
	case r.Store != server.StoreMemory:
		fmt.Fprintf(&b, "store %s\n", r.Store)
		r.write(&b, false)
	case r.Cluster == "" && len(r.Findings) == 0:
		fmt.Fprintln(&b, "store memory: nothing to examine, each process counts by itself\nhint: name a store that many share with --store redis://host:6379, or the backend of a cluster with --cluster etcd://host:2379/prefix")
	}
	if r.Store == server.StoreMemory {
		r.write(&b, false)
	}
	if r.Cluster != "" {
		fmt.Fprintf(&b, "cluster %s\n", r.Cluster)
		r.write(&b, true)
	}
	if _, err := io.WriteString(out, b.String()); err != nil {
		return err
	}
	return r.verdict()
}

// write writes the findings about the store, or those about the cluster.
func (r *doctorReport) write(b *strings.Builder, ofCluster bool) {
	marks := map[string]string{redis.Good.String(): "ok", redis.Warning.String(): "warn", redis.Bad.String(): "FAIL"}
	for _, f := range r.Findings {
		if f.ofCluster != ofCluster {
			continue
		}
		fmt.Fprintf(b, "%-4s  %-16s  %s\n", marks[f.Level], f.Check, f.Text)
		if f.Advice != "" {
			fmt.Fprintf(b, "%24s%s\n", "", f.Advice)
		}
	}
}

func (r *doctorReport) verdict() error {
	if !r.OK {
		return &exit{code: exitNo}
	}
	return nil
}
