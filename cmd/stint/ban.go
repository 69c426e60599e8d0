package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/internal/answer"
)

// adminFlags say where the admin port of a service is.
type adminFlags struct{ clientFlags }

func (f *adminFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.addr, "admin", "http://127.0.0.1:8082", "where the admin port of the service is")
	cmd.Flags().StringVar(&f.tls.CA, "ca", "", "PEM file with the authorities of the service's certificate (default: those of the system)")
	cmd.Flags().StringVar(&f.tls.Cert, "cert", "", "PEM file with the certificate that is shown to the service")
	cmd.Flags().StringVar(&f.tls.Key, "key", "", "PEM file with its private key")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "file with the token of the admin port")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "how long to wait for an answer")
}

// maxAnswer bounds what a service may answer. Lists of many keys are long.
const maxAnswer = 16 << 20

// call asks the admin port and reads its JSON into to. fields are names and values of header fields; those without
// a value are not sent.
func (f *adminFlags) call(cmd *cobra.Command, method, path string, query url.Values, to any, fields ...string) error {
	body, err := f.fetch(cmd, method, path, query, fields...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, to); err != nil {
		return &exit{exitUsage, fmt.Errorf("the service's answer is not understood: %w\nhint: --admin is the address of the admin port", err)}
	}
	return nil
}

// fetch asks the admin port and returns what it answers.
func (f *adminFlags) fetch(cmd *cobra.Command, method, path string, query url.Values, fields ...string) ([]byte, error) {
	addr := f.url()
	asker, err := f.secure(addr)
	if err != nil {
		return nil, &exit{exitUsage, err}
	}
	req, err := http.NewRequestWithContext(cmd.Context(), method, addr+path+"?"+query.Encode(), nil)
	if err != nil {
		return nil, &exit{exitUsage, err}
	}
	if err := f.authorize(req); err != nil {
		return nil, &exit{exitUsage, err}
	}
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i+1] != "" {
			req.Header.Set(fields[i], fields[i+1])
		}
	}
	resp, err := asker.Do(req)
	if err != nil {
		return nil, &exit{exitUsage, fmt.Errorf("%w\nhint: is the service running, and is its admin port there? say where it is with --admin", err)}
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, &exit{exitUsage, fmt.Errorf("the service's answer broke off: %w", err)}
	}
	if resp.StatusCode != http.StatusOK {
		var p struct {
			Detail string `json:"detail"`
		}
		if json.Unmarshal(body, &p) != nil || p.Detail == "" {
			p.Detail = strings.TrimSpace(string(body[:min(len(body), 200)]))
		}
		code := exitUsage
		if resp.StatusCode == http.StatusNotFound {
			code = exitNo
		}
		return nil, &exit{code, fmt.Errorf("the service answered %s: %s%s", resp.Status, plain(p.Detail), hintOfAnswer(resp.StatusCode, p.Detail, "--admin"))}
	}
	return body, nil
}

func newBan() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ban",
		Short: "list and lift the bans of a running service",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBanList(), newBanLift())
	return cmd
}

// listedBan is a ban on the wire.
type listedBan struct {
	Limit    string            `json:"limit"`
	Override string            `json:"override,omitempty"`
	ID       string            `json:"id"`
	Key      map[string]string `json:"key"`
	Exact    bool              `json:"exact"`
	EndsIn   float64           `json:"ends_in"`
	Ends     time.Time         `json:"ends"`
}

func newBanList() *cobra.Command {
	var f adminFlags
	var asJSON bool
	most := 1000
	cmd := &cobra.Command{
		Use:   "ls [LIMIT]",
		Short: "list the keys that are banned, of one limit or of all",
		Long: `List the keys that are banned, of one limit or of all. With a shared store these
are the bans of all services that use it. The exit code is 0 also when there is none.`,
		Example: `  stint ban ls
  stint ban ls login-per-ip --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if most < 1 {
				return &exit{exitUsage, fmt.Errorf("--max is %d, want at least 1", most)}
			}
			list, more, err := f.list(cmd, args, most)
			if err != nil {
				return err
			}
			if asJSON {
				text, err := json.MarshalIndent(struct {
					Bans []listedBan `json:"bans"`
					More bool        `json:"more"`
				}{list, more}, "", "  ")
				if err == nil {
					_, err = cmd.OutOrStdout().Write(append(answer.Printable(text), '\n'))
				}
				return err
			}
			return showBans(cmd.OutOrStdout(), list, more)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().IntVar(&most, "max", most, "how many to list at most")
	return cmd
}

// list reads pages until it has most bans, or all.
func (f *adminFlags) list(cmd *cobra.Command, args []string, most int) (list []listedBan, more bool, err error) {
	const page = 1000
	list = []listedBan{}
	query := url.Values{}
	if len(args) > 0 {
		query.Set("limit", args[0])
	}
	for {
		query.Set("max", strconv.Itoa(min(page, most-len(list))))
		var reply struct {
			Bans []listedBan `json:"bans"`
			Next string      `json:"next"`
		}
		if err := f.call(cmd, http.MethodGet, "/v1/bans", query, &reply); err != nil {
			return nil, false, err
		}
		list = append(list, reply.Bans...)
		if reply.Next == "" || len(list) >= most {
			return list, reply.Next != "", nil
		}
		query.Set("after", reply.Next)
	}
}

func showBans(out io.Writer, list []listedBan, more bool) error {
	if len(list) == 0 {
		_, err := fmt.Fprintln(out, "nobody is banned")
		return err
	}
	// IDs are for bans that cannot be named by their key.
	ids := slices.ContainsFunc(list, func(b listedBan) bool { return !b.Exact })
	head := "LIMIT\tKEY\tENDS IN"
	if ids {
		head += "\tID"
	}
	err := table(out, head, func(row func(string, ...any)) {
		for _, b := range list {
			limit := plain(b.Limit)
			if b.Override != "" {
				limit += " (" + plain(b.Override) + ")"
			}
			text := fmt.Sprintf("%s\t%s\t%s", limit, b.keyText(), time.Duration(b.EndsIn*float64(time.Second)).Truncate(time.Second))
			if ids {
				text += "\t" + plain(b.ID)
			}
			row("%s", text)
		}
	})
	if err == nil && more {
		_, err = fmt.Fprintf(out, "and more: list them with --max, or those of one limit\n")
	}
	return err
}

// keyText writes the key as stint ban rm takes it.
func (b *listedBan) keyText() string {
	if b.Key == nil {
		return "(unknown: lift it by its ID)"
	}
	if len(b.Key) == 0 {
		return "(all)"
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(b.Key)) {
		parts = append(parts, plain(name)+"="+plain(b.Key[name]))
	}
	text := strings.Join(parts, " ")
	if !b.Exact {
		text += " (a hash: lift it by its ID)"
	}
	return text
}

// plain returns a text that clients chose as a terminal may show it: quoted and escaped where it has
// anything but printable ASCII without spaces.
func plain(text string) string {
	odd := func(r rune) bool { return r > unicode.MaxASCII || r < ' ' || r == 0x7f }
	if strings.ContainsFunc(text, odd) || text == "" {
		return strconv.QuoteToASCII(text)
	}
	return text
}

func newBanLift() *cobra.Command {
	var f adminFlags
	var id string
	var all bool
	cmd := &cobra.Command{
		Use:   "rm [LIMIT [NAME=VALUE...]]",
		Short: "lift bans: that of one key, all of a limit, or all",
		Long: `Lift the ban of a key, which is given as stint ban ls shows it, or by its ID. The key
is admitted again as far as the limit itself has room for it, and its attempts count
anew. With a shared store it is lifted for all services that use it. The exit code is
1 when there was no such ban.`,
		Example: `  stint ban rm login-per-ip ip=192.0.2.7
  stint ban rm api user=u1 path=/x
  stint ban rm api --id =%02u1
  stint ban rm login-per-ip --all
  stint ban rm --all`,
		RunE: func(cmd *cobra.Command, args []string) error {
			query, err := liftQuery(args, id, all)
			if err != nil {
				return &exit{exitUsage, err}
			}
			total := 0
			for {
				var reply struct {
					Lifted int  `json:"lifted"`
					More   bool `json:"more"`
				}
				if err := f.call(cmd, http.MethodDelete, "/v1/bans", query, &reply); err != nil {
					return err
				}
				if total += reply.Lifted; !reply.More {
					break
				}
			}
			fmt.Fprintf(cmd.OutOrStdout(), "lifted %d %s\n", total, plural(total, "ban"))
			if total == 0 && !all {
				return &exit{code: exitNo}
			}
			return nil
		},
	}
	f.register(cmd)
	cmd.Flags().StringVar(&id, "id", "", "the ID of the ban, instead of its key")
	cmd.Flags().BoolVar(&all, "all", false, "all bans of the limit, or of all limits where none is named")
	return cmd
}

// liftQuery turns arguments into what the service is asked to lift.
func liftQuery(args []string, id string, all bool) (url.Values, error) {
	query := url.Values{}
	if len(args) == 0 {
		if !all || id != "" {
			return nil, errors.New("say of which limit, as in stint ban rm login-per-ip ip=192.0.2.7; --all alone lifts every ban")
		}
		return url.Values{"all": {"true"}}, nil
	}
	query.Set("limit", args[0])
	for _, text := range args[1:] {
		if name, _, ok := strings.Cut(text, "="); !ok || name == "" {
			return nil, fmt.Errorf("%q is no part of a key, write it as ip=192.0.2.7", text)
		}
		query.Add("key", text)
	}
	if id != "" {
		query.Set("id", id)
	}
	if all {
		query.Set("all", "true")
	}
	if given := len(args) - 1; given > 0 && (id != "" || all) || id != "" && all {
		return nil, errors.New("a key, --id and --all exclude each other")
	}
	return query, nil
}
