package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/internal/cluster/clusterurl"
	"github.com/stint-io/stint/internal/configstore"
	"github.com/stint-io/stint/rules"
)

// backendTime bounds a command that asks a backend.
const backendTime = 15 * time.Second

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "push limits to the services that read them from a backend",
		Long: `Push limits to all services that were started with --config URL, and look at
the versions that were pushed. The URL is that of etcd (etcd://host:2379/prefix,
etcds:// for TLS), Kubernetes (kubernetes://namespace/name) or Redis
(redis://host:6379). A URL with a password is better in STINT_TO.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPush(), newRollback(), newConfigDiff(), newHistory(), newShow(), newStatus())
	return cmd
}

// backend is the flag that all these commands have.
type backend struct{ url, flag string } // "" = --to

func (b *backend) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.url, "to", "", "URL of the backend that has the configuration, such as etcd://HOST:PORT[,HOST:PORT]/PREFIX")
}

// ask calls with the configuration's store, and makes its error one with an exit code.
func (b *backend) ask(cmd *cobra.Command, call func(context.Context, *configstore.Store) error) (err error) {
	if b.url == "" || b.url == "alone" {
		return &exit{exitUsage, errors.New("say where the configuration is with --to, such as --to etcd://127.0.0.1:2379/stint")}
	}
	register, err := clusterurl.Open(b.url)
	if err != nil {
		return &exit{exitUsage, fmt.Errorf("%s: %w", cmp.Or(b.flag, "--to"), err)}
	}
	defer func() { err = errors.Join(err, register.Close()) }()
	ctx, cancel := context.WithTimeout(cmd.Context(), backendTime)
	defer cancel()
	err = call(ctx, configstore.New(register))
	var said *exit
	if err == nil || errors.As(err, &said) {
		return err
	}
	var conflict *configstore.Conflict
	var kept *configstore.NotKept
	var large *configstore.TooLarge
	switch {
	case errors.As(err, &conflict), errors.As(err, &kept), errors.As(err, &large):
		return &exit{exitNo, err}
	case errors.Is(err, configstore.ErrNone):
		return &exit{exitNo, fmt.Errorf("%w at %s: push one, or correct the prefix at the end of the URL", err, clusterurl.Redacted(b.url))}
	case errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
		err = fmt.Errorf("the backend at %s did not answer within %v: %w", clusterurl.Redacted(b.url), backendTime, err)
	}
	return &exit{exitUsage, err}
}

// pushed is who pushes, why, and after which version.
type pushed struct {
	author, message string
	ifVersion       uint64
}

func (p *pushed) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&p.author, "author", "", "who pushes (default: USER@HOST)")
	cmd.Flags().StringVarP(&p.message, "message", "m", "", "why, in one line")
	cmd.Flags().Uint64Var(&p.ifVersion, "if-version", 0, "push only if this is the latest version; 0 = if there is none (default: whichever is the latest)")
}

// after is the version that must be the latest; nil = any.
func (p *pushed) after(cmd *cobra.Command) *uint64 {
	if !cmd.Flags().Changed("if-version") {
		return nil
	}
	return &p.ifVersion
}

func (p *pushed) who() string {
	if p.author != "" {
		return p.author
	}
	name := "unknown"
	if u, err := user.Current(); err == nil && u.Username != "" {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil || host == "" {
		return name
	}
	return name + "@" + host
}

// readLimits reads files and returns what is to be pushed, and its limits. What has a fault is said as
// check says it.
func readLimits(cmd *cobra.Command, how rules.Options, paths []string, empty bool) ([]configstore.File, *rules.Set, error) {
	for _, path := range paths {
		if _, err := os.Stat(path); err != nil {
			return nil, nil, &exit{exitUsage, err}
		}
	}
	files, err := rules.Read(paths...)
	var set *rules.Set
	if err == nil {
		set, err = compile(how, files, empty)
	}
	if err != nil {
		return nil, nil, checkText(cmd.OutOrStdout(), cmd.ErrOrStderr(), nil, nil, err)
	}
	for _, w := range warnings(set) {
		fmt.Fprintf(cmd.ErrOrStderr(), "warning: %v\n", w)
	}
	return stored(files), set, nil
}

// compile returns the limits of what is to be pushed, or why a push of it is refused.
func compile(how rules.Options, files []rules.File, empty bool) (*rules.Set, error) {
	set, err := how.Compile(files...)
	if err == nil {
		err = checkStore(set.Store())
	}
	if err == nil && len(set.Limits()) == 0 && !empty {
		err = errors.New("the configuration has no limits, so that nothing would be limited\nhint: services take it only if they run with --allow-empty; push it with --allow-empty")
	}
	return set, err
}

// stored are files as a version has them.
func stored(files []rules.File) []configstore.File {
	out := make([]configstore.File, len(files))
	for i, f := range files {
		out[i] = configstore.File{Name: f.Name, Text: string(f.Text)}
	}
	return out
}

func newPush() *cobra.Command {
	var b backend
	var p pushed
	var how rules.Options
	var empty bool
	cmd := &cobra.Command{
		Use:   "push FILE... --to URL",
		Short: "make files the configuration of all services that read it from the URL",
		Long: `Make limit files, and folders of them, the configuration of all services that
were started with --config URL. What stint check refuses is not pushed. Each
push makes a version with a number above those before; the last 50 are kept. The
exit code is 0 when it was pushed, 1 when it was refused, and 2 when it could not
be.`,
		Example: `  stint config push stint.yaml --to etcd://127.0.0.1:2379/stint -m "more for orders"
  stint config push limits.d --to etcd://127.0.0.1:2379/stint --if-version 7`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			files, set, err := readLimits(cmd, how, args, empty)
			if err != nil {
				return err
			}
			return b.ask(cmd, func(ctx context.Context, s *configstore.Store) error {
				m, err := s.Push(ctx, configstore.Draft{
					Files: files, Limits: len(set.Limits()), Author: p.who(), Message: p.message, After: p.after(cmd),
				})
				return sayPushed(cmd.OutOrStdout(), m, err)
			})
		},
	}
	b.register(cmd)
	p.register(cmd)
	cmd.Flags().BoolVar(&empty, "allow-empty", false, "push a configuration without limits; services take it if they run with --allow-empty")
	cmd.Flags().BoolVar(&how.MergeDomains, "rls-merge-domains", false, "several files in Envoy's format may have one domain")
	return cmd
}

// sayPushed names the version that was made.
func sayPushed(out io.Writer, m configstore.Meta, err error) error {
	if errors.Is(err, configstore.ErrUnchanged) {
		_, err = fmt.Fprintf(out, "nothing to do: version %d has this content\n", m.Version)
		return err
	}
	if err != nil {
		return err
	}
	what := ""
	if m.From != 0 {
		what = fmt.Sprintf(", with the content of version %d", m.From)
	}
	_, err = fmt.Fprintf(out, "version %d: %d %s%s\n", m.Version, m.Limits, plural(m.Limits, "limit"), what)
	return err
}

func newRollback() *cobra.Command {
	var b backend
	var p pushed
	cmd := &cobra.Command{
		Use:     "rollback VERSION --to URL",
		Short:   "make a new version with the content of a former one",
		Example: `  stint config rollback 6 --to etcd://127.0.0.1:2379/stint -m "too low"`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			version, err := versionOf(args[0])
			if err != nil {
				return err
			}
			return b.ask(cmd, func(ctx context.Context, s *configstore.Store) error {
				m, err := s.Rollback(ctx, version, p.who(), p.message, p.after(cmd))
				return sayPushed(cmd.OutOrStdout(), m, err)
			})
		},
	}
	b.register(cmd)
	p.register(cmd)
	return cmd
}

func versionOf(text string) (uint64, error) {
	version, err := strconv.ParseUint(text, 10, 63)
	if err != nil || version == 0 {
		return 0, &exit{exitUsage, fmt.Errorf("%q is no version, want a number from 1 on, as stint config history shows it", text)}
	}
	return version, nil
}

func newHistory() *cobra.Command {
	var b backend
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "history --to URL",
		Short: "list the versions that are kept, the latest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.ask(cmd, func(ctx context.Context, s *configstore.Store) error {
				all, err := s.History(ctx)
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(cmd.OutOrStdout(), all)
				}
				return table(cmd.OutOrStdout(), "VERSION\tTIME\tAUTHOR\tLIMITS\tSHA256\tMESSAGE", func(row func(string, ...any)) {
					for i := range all {
						m := all[len(all)-1-i]
						message := m.Message
						if m.From != 0 {
							message = strings.TrimSpace(fmt.Sprintf("(version %d again) %s", m.From, message))
						}
						row("%d\t%s\t%s\t%d\t%.12s\t%s", m.Version, m.Time.Format(time.RFC3339), m.Author, m.Limits, m.SHA256, message)
					}
				})
			})
		},
	}
	b.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newShow() *cobra.Command {
	var b backend
	var name string
	cmd := &cobra.Command{
		Use:   "show [VERSION] --to URL",
		Short: "print the files of a version, the latest by default",
		Args:  cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return b.ask(cmd, func(ctx context.Context, s *configstore.Store) error {
				v, err := getVersion(ctx, s, args)
				if err != nil {
					return err
				}
				return showFiles(cmd.OutOrStdout(), &v, name)
			})
		},
	}
	b.register(cmd)
	cmd.Flags().StringVar(&name, "file", "", "print this file alone")
	return cmd
}

// getVersion returns the version that args name, or the latest.
func getVersion(ctx context.Context, s *configstore.Store, args []string) (configstore.Version, error) {
	if len(args) == 0 {
		return s.Latest(ctx)
	}
	version, err := versionOf(args[0])
	if err != nil {
		return configstore.Version{}, err
	}
	return s.Get(ctx, version)
}

// showFiles prints one file as it is, and several with their names in between.
func showFiles(out io.Writer, v *configstore.Version, name string) error {
	found := false
	for _, f := range v.Files {
		if name != "" && f.Name != name {
			continue
		}
		found = true
		text := f.Text
		if name == "" && len(v.Files) > 1 {
			text = "# file: " + f.Name + "\n" + strings.TrimSuffix(text, "\n") + "\n"
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
	}
	if !found {
		return &exit{exitNo, fmt.Errorf("version %d has no file %q", v.Version, name)}
	}
	return nil
}

func newStatus() *cobra.Command {
	var b backend
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status --to URL",
		Short: "show which version each service enforces",
		Long: `Show which version each service enforces that reads its configuration from the
URL. The exit code is 1 when one of them does not enforce the latest, and when there
is none. A service that has not reported for 30 s is shown as gone, and does not count.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return b.ask(cmd, func(ctx context.Context, s *configstore.Store) error {
				all, err := s.History(ctx)
				if err != nil {
					return err
				}
				members, err := s.Members(ctx)
				if err != nil {
					return err
				}
				err = showStatus(cmd.OutOrStdout(), all[len(all)-1], members, time.Now(), asJSON)
				if errors.Is(err, errNobodyReads) {
					err = &exit{exitNo, fmt.Errorf("%w: start one with --config %s, or compare the --config of those that run with this URL: the prefix at the end must be the same", err, clusterurl.Redacted(b.url))}
				}
				return err
			})
		},
	}
	b.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// table prints rows below a head.
func table(out io.Writer, head string, rows func(row func(string, ...any))) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, head)
	rows(func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) })
	return w.Flush()
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
