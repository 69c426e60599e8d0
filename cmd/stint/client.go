package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/remote"
	"github.com/stint-io/stint/limit"
)

type clientFlags struct {
	domain  string
	addr    string
	cost    int64
	counts  bool
	once    string // the idempotency key; "" = none
	asJSON  bool
	timeout time.Duration

	tls       client.TLSFiles
	tokenFile string
}

func (f *clientFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.addr, "addr", "http://127.0.0.1:8080", "where the service is")
	cmd.Flags().StringVar(&f.domain, "domain", "", "domain of limits in Envoy's format; the arguments are the entries of a descriptor in their order, and + begins another")
	cmd.Flags().Int64Var(&f.cost, "cost", 1, "what the request takes; 0 only looks")
	cmd.Flags().BoolVar(&f.asJSON, "json", false, "print the service's answer as it is")
	cmd.Flags().StringVar(&f.tls.CA, "ca", "", "PEM file with the authorities of the service's certificate (default: those of the system)")
	cmd.Flags().StringVar(&f.tls.Cert, "cert", "", "PEM file with the certificate that is shown to the service")
	cmd.Flags().StringVar(&f.tls.Key, "key", "", "PEM file with its private key")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "file with the token that is sent to the service")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 5*time.Second, "how long to wait for the answer")
}

func newTake() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "take NAME=VALUE...",
		Short: "ask a running service for a decision",
		Long: `Ask a running service whether a request with these attributes may go on, and take
its cost. The exit code is 0 when it may, 1 when it is refused, 2 when there is no
answer.

After no answer it is not known whether the cost was taken. A take with an
--idempotency-key can be called again: with the same key, attributes and cost it is
admitted, and charged once, within 10 minutes.`,
		Example: `  stint take ip=192.0.2.7
  stint take user=u1 path=/api/x --cost 5
  stint take --domain edge remote_address=192.0.2.7 path=/login + user=u1
  stint take user=u1 path=/v1/completions --cost 900 --count-refused
  stint take user=u1 --idempotency-key job-1742`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("idempotency-key") && !isKey(f.once) {
				return &exit{exitUsage, fmt.Errorf("%q of --idempotency-key: want 1 to %d printable ASCII characters without spaces around", f.once, limit.MaxIdempotencyKey)}
			}
			code, body, err := f.post(cmd, "/v1/take", args)
			if err != nil {
				return &exit{exitUsage, err}
			}
			if f.asJSON {
				return printRaw(cmd.OutOrStdout(), code, body)
			}
			err = printTake(cmd.OutOrStdout(), code, body)
			if f.domain == "" && err == nil {
				f.printDoubts(cmd, args)
			}
			return err
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&f.counts, "count-refused", false, "take the cost even if it is refused: it has been spent already")
	cmd.Flags().StringVar(&f.once, "idempotency-key", "", "names this take, so that it is charged once however often it is called; a new text for each take, such as a UUID")
	return cmd
}

// isKey reports whether a header field can have s, as it is, as an idempotency key.
func isKey(s string) bool {
	printable := !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' })
	return s != "" && len(s) <= limit.MaxIdempotencyKey && printable && strings.TrimSpace(s) == s
}

func newExplain() *cobra.Command {
	var f clientFlags
	cmd := &cobra.Command{
		Use:   "explain NAME=VALUE...",
		Short: "ask a running service which limits apply, why, and how full they are",
		Long: `Ask a running service which limits a request with these attributes meets. Nothing
is taken. The exit code is that of take.`,
		Example: `  stint explain ip=192.0.2.7 path=/login method=POST`,
		RunE: func(cmd *cobra.Command, args []string) error {
			code, body, err := f.post(cmd, "/v1/explain", args)
			if err != nil {
				return &exit{exitUsage, err}
			}
			if f.asJSON {
				return printRaw(cmd.OutOrStdout(), code, body)
			}
			return printExplain(cmd.OutOrStdout(), code, body, args)
		},
	}
	f.register(cmd)
	return cmd
}

// printDoubts prints which limits do not apply because an attribute seems to be misspelled.
func (f *clientFlags) printDoubts(cmd *cobra.Command, args []string) {
	code, body, err := f.post(cmd, "/v1/explain", args)
	var r reply
	if err != nil || code != http.StatusOK || json.Unmarshal(body, &r) != nil {
		return // the decision is there
	}
	for _, name := range slices.Sorted(maps.Keys(r.WhyNot)) {
		if why := r.WhyNot[name]; strings.Contains(why, "(it has ") {
			fmt.Fprintf(cmd.OutOrStdout(), "  %s does not apply: %s\n", name, why)
		}
	}
}

// post asks the service. Its error means that there is no decision.
func (f *clientFlags) post(cmd *cobra.Command, path string, args []string) (int, []byte, error) {
	question, err := f.question(args)
	if err != nil {
		return 0, nil, err
	}
	if f.cost < 0 {
		return 0, nil, fmt.Errorf("the cost is %d, want at least 0", f.cost)
	}
	question["cost"] = f.cost
	if f.counts {
		question["count_refused"] = true
	}
	text, err := json.Marshal(question)
	if err != nil {
		return 0, nil, err
	}
	addr := f.url()
	asker, err := f.secure(addr)
	if err != nil {
		return 0, nil, err
	}
	to, err := url.Parse(addr)
	if err != nil {
		return 0, nil, fmt.Errorf("--addr: %w", err)
	}
	token, err := f.token(to)
	if err != nil {
		return 0, nil, err
	}
	service, err := remote.New(remote.Options{URL: addr, HTTP: asker, Token: token})
	if err != nil {
		return 0, nil, fmt.Errorf("--addr: %w", err)
	}
	key := ""
	if path == "/v1/take" {
		key = f.once
	}
	code, body, err := service.Call(cmd.Context(), path, text, key)
	var fault *remote.Fault
	switch {
	case errors.As(err, &fault):
		return 0, nil, fmt.Errorf("the service answered %s: %s%s", fault.Text, strconv.QuoteToGraphic(fault.Detail), hintOfAnswer(fault.Status, fault.Detail, "--addr"))
	case err != nil:
		return 0, nil, fmt.Errorf("%w\nhint: %s", err, hintOf(err, strings.HasPrefix(addr, "https:")))
	}
	return code, body, nil
}

// hintOfAnswer says what to do about an answer that is a fault, in a line of its own; "" = the answer says it.
// flag is the one with the address.
func hintOfAnswer(status int, detail, flag string) string {
	switch {
	case strings.HasPrefix(detail, "Client sent an HTTP request to an HTTPS server"): // net/http says so
		return "\nhint: write https:// in " + flag
	case status == http.StatusUnauthorized:
		return "\nhint: give a token with --token-file, or over TLS a certificate with --cert and --key"
	}
	return ""
}

// hintOf says what to do about a service that could not be asked.
func hintOf(err error, secured bool) string {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), !secured:
		return "is the service running? start one with stint serve, or say where it is with --addr"
	case errors.As(err, &unknown), errors.As(err, &invalid):
		return "this end does not believe the certificate of the service: say with --ca which authority has signed it"
	case errors.As(err, &alert):
		return "the service does not believe the certificate of this end: show one that it asks for, and that has not expired, with --cert and --key"
	default:
		return "is it the service that listens there? TLS failed, or the connection broke: check --addr, --ca, --cert and --key"
	}
}

// question turns the arguments into what the service is asked about.
func (f *clientFlags) question(args []string) (map[string]any, error) {
	type entry struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	type descriptor struct {
		Entries []entry `json:"entries"`
	}
	attributes := make(map[string]string, len(args))
	descriptors := []descriptor{{}}
	for _, a := range args {
		last := &descriptors[len(descriptors)-1]
		if a == "+" && f.domain != "" {
			if len(last.Entries) == 0 {
				return nil, errors.New("there is no entry before a +, write a descriptor there such as user=u1")
			}
			descriptors = append(descriptors, descriptor{})
			continue
		}
		name, value, ok := strings.Cut(a, "=")
		if !ok || name == "" {
			example := "ip=192.0.2.7"
			before, after, colon := strings.Cut(a, ":")
			_, notAddress := netip.ParseAddr(a)
			switch {
			case notAddress == nil:
				example = "ip=" + a
			case colon && slices.Contains([]string{"header", "cookie", "query", "claim"}, before):
				example = a + "=VALUE"
			case colon && after != "" && strings.Trim(strings.ToLower(before), "abcdefghijklmnopqrstuvwxyz0123456789_-") == "":
				example = before + "=" + after
			case strings.HasPrefix(a, "/"):
				example = "path=" + a
			case a != "" && strings.ToUpper(a) == a && strings.ToLower(a) != a:
				example = "method=" + a
			}
			if example == "ip=192.0.2.7" && f.domain == "" {
				return nil, fmt.Errorf("%q is not an attribute, write it as %s; the attributes choose the limits, so name none", a, example)
			}
			return nil, fmt.Errorf("%q is not an attribute, write it as %s", a, example)
		}
		if _, twice := attributes[name]; twice && f.domain == "" {
			return nil, fmt.Errorf("the attribute %q is given twice", name)
		}
		attributes[name] = value
		last.Entries = append(last.Entries, entry{name, value})
	}
	if f.domain == "" {
		return map[string]any{"attributes": attributes}, nil
	}
	if len(descriptors[len(descriptors)-1].Entries) == 0 {
		return nil, errors.New("a domain is asked about descriptors, name the entries of one such as user=u1")
	}
	return map[string]any{"domain": f.domain, "descriptors": descriptors}, nil
}

func printRaw(out io.Writer, code int, body []byte) error {
	if _, err := out.Write(append(bytes.TrimRight(body, "\n"), '\n')); err != nil {
		return err
	}
	var d struct{ Allowed bool }
	if code != http.StatusOK || json.Unmarshal(body, &d) != nil || !d.Allowed {
		return &exit{code: exitNo}
	}
	return nil
}

// standing is what take and explain print of one limit.
type standing struct {
	Name       string   `json:"name"`
	Allowed    bool     `json:"allowed"`
	Reason     string   `json:"reason"`
	Unlimited  bool     `json:"unlimited"`
	Quota      int64    `json:"quota"`
	Remaining  int64    `json:"remaining"`
	RetryAfter *float64 `json:"retry_after"`
	ResetAfter *float64 `json:"reset_after"`
	Soft       bool     `json:"soft"`
	Shadow     bool     `json:"shadow"`
	Failed     bool     `json:"store_failed"`
	File       string   `json:"file"`
	Line       int      `json:"line"`
	Why        string   `json:"why"`
	Algorithm  string   `json:"algorithm"`
	Rate       string   `json:"rate"`
	Tagged     bool     `json:"tagged"`
	OnExceed   string   `json:"on_exceed"`
	Uncarried  []string `json:"uncarried"`
	Share      string   `json:"share"`

	Key map[string]string `json:"key"`
}

type reply struct {
	Allowed   bool              `json:"allowed"`
	Repeated  bool              `json:"repeated"`
	Limits    []standing        `json:"limits"`
	Unmatched []string          `json:"unmatched"`
	Count     int               `json:"unmatched_count"`
	WhyNot    map[string]string `json:"why_not"`
	Unlimited []struct {
		Name   string `json:"name"`
		Reason string `json:"reason"`
	} `json:"unlimited"`
	Estimate *struct {
		Cost     int64  `json:"cost"`
		From     string `json:"from"`
		Settled  int64  `json:"settled"`
		Declared int64  `json:"declared"`
	} `json:"estimate"`

	Descriptors []struct {
		Entries []string `json:"entries"`
		Rule    string   `json:"rule"`
		Applies bool     `json:"applies"`
		Why     string   `json:"why"`
	} `json:"descriptors"`
}

func printTake(out io.Writer, code int, body []byte) error {
	if code != http.StatusOK {
		var p struct {
			Detail   string   `json:"detail"`
			Policies []string `json:"violated-policies"`
			Repeated bool     `json:"repeated"`
		}
		if err := json.Unmarshal(body, &p); err != nil {
			return &exit{exitUsage, fmt.Errorf("the service's answer is not understood: %w", err)}
		}
		fmt.Fprintf(out, "refused by %s: %s%s\n", strings.Join(p.Policies, ", "), p.Detail, repeated(p.Repeated))
		return &exit{code: exitNo}
	}
	var r reply
	if err := json.Unmarshal(body, &r); err != nil {
		return &exit{exitUsage, fmt.Errorf("the service's answer is not understood: %w", err)}
	}
	fmt.Fprintln(out, "allowed"+repeated(r.Repeated))
	for i := range r.Limits {
		fmt.Fprintf(out, "  %s: %s\n", r.Limits[i].Name, r.Limits[i].text())
	}
	if len(r.Limits) == 0 {
		fmt.Fprintln(out, "  no limit applies; ask stint explain why")
	}
	return nil
}

// repeated is what take prints of a decision whose idempotency key the service knows.
func repeated(known bool) string {
	if !known {
		return ""
	}
	return " (repeated: charged before, and not again)"
}

func (s *standing) text() string {
	if s.Unlimited {
		return "unlimited"
	}
	text := fmt.Sprintf("%d of %d left", s.Remaining, s.Quota)
	if s.Failed {
		// The figures are not how the limit stands.
		text = "the store or the coordinator did not answer; decided by on_store_failure"
		if !s.Allowed && s.Reason != "store_failure" {
			text += ", refused: " + s.Reason
		}
		if s.Shadow {
			text += ", shadow"
		}
		return text
	}
	if s.ResetAfter != nil && *s.ResetAfter > 0 {
		text += ", resets in " + duration(*s.ResetAfter)
	}
	if !s.Allowed {
		text += ", refused: " + s.Reason
	}
	if s.Soft {
		text += ", above the soft threshold"
	}
	if s.Tagged {
		text += ", let through with a tag"
	} else if s.Shadow {
		text += ", shadow"
	}
	return text
}

// foundPairs are the attributes of a key that the service has found by itself, and that args do not give.
func foundPairs(key map[string]string, args []string) []string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(key)) {
		if !slices.ContainsFunc(args, func(a string) bool {
			return len(a) > len(name) && a[len(name)] == '=' && strings.EqualFold(a[:len(name)], name)
		}) {
			pairs = append(pairs, name+"="+key[name])
		}
	}
	return pairs
}

func printExplain(out io.Writer, code int, body []byte, args []string) error {
	var r reply
	if err := json.Unmarshal(body, &r); err != nil || code != http.StatusOK {
		return &exit{exitUsage, errors.Join(errors.New("the service's answer is not understood"), err)}
	}
	verdict := "would be allowed"
	if !r.Allowed {
		verdict = "would be refused"
	}
	fmt.Fprintln(out, verdict)
	if len(r.Limits) == 0 && r.Count == 0 && len(r.Descriptors) == 0 {
		fmt.Fprintln(out, "  no limit of stint's format is in force; rules in Envoy's format are asked about with --domain and --entry")
	}
	for i := range r.Limits {
		l := &r.Limits[i]
		fmt.Fprintf(out, "  %s (%s:%d)\n    %s\n    %s\n", l.Name, l.File, l.Line, strings.TrimSpace(l.Algorithm+" "+l.Rate), l.Why)
		if !l.Allowed && l.RetryAfter != nil {
			fmt.Fprintf(out, "    retry after %s\n", duration(*l.RetryAfter))
		}
		if pairs := foundPairs(l.Key, args); len(pairs) > 0 {
			fmt.Fprintf(out, "    found: %s\n", strings.Join(pairs, ", "))
		}
		if l.Share != "" {
			fmt.Fprintf(out, "    %s\n", l.Share)
		}
		if l.OnExceed != "" {
			fmt.Fprintf(out, "    over the limit: %s\n", l.OnExceed)
		}
		for _, text := range l.Uncarried {
			fmt.Fprintf(out, "    %s\n", text)
		}
	}
	if e := r.Estimate; e != nil {
		from := map[string]string{
			"own":   fmt.Sprintf("learned from %s of its own", plural(int(e.Settled), "request")),
			"model": fmt.Sprintf("learned from %s of its model", plural(int(e.Settled), "request")),
			"start": "nothing is learned yet",
		}[e.From]
		if e.Declared > 0 {
			from += fmt.Sprintf(", of %d declared", e.Declared)
		}
		fmt.Fprintf(out, "a reservation without a cost would take %d: %s\n", e.Cost, from)
	}
	for _, d := range r.Descriptors {
		if !d.Applies {
			fmt.Fprintf(out, "descriptor %s: no limit, %s\n", strings.Join(d.Entries, " "), strings.TrimSpace(d.Rule+" "+d.Why))
		}
	}
	for _, h := range r.Unlimited {
		if h.Name == "" {
			fmt.Fprintf(out, "without any limit: %s\n", h.Reason)
			continue
		}
		fmt.Fprintf(out, "without %s: %s\n", h.Name, h.Reason)
	}
	if r.Count > 0 {
		fmt.Fprintln(out, "does not apply:")
		for _, name := range r.Unmatched {
			if why := r.WhyNot[name]; why != "" {
				name += ": " + why
			}
			fmt.Fprintln(out, "  "+name)
		}
		if more := r.Count - len(r.Unmatched); more > 0 {
			fmt.Fprintf(out, "  and %d more\n", more)
		}
	}
	if !r.Allowed {
		return &exit{code: exitNo}
	}
	return nil
}

func duration(seconds float64) string {
	return time.Duration(seconds * float64(time.Second)).Round(time.Millisecond).String()
}
