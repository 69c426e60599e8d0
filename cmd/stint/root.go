package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stint-io/stint/internal/cluster/clusterurl"
)

// next is the version of the next release while it is being made.
const next = "0.1.0-dev"

// released is the version of a release: scripts/release sets it by -ldflags -X, and nothing else
// does. "" = this is another build.
var released string

// The exit codes of every command.
const (
	exitOK    = 0
	exitNo    = 1 // the answer is no: faults in a file, a request refused, a service that failed
	exitUsage = 2 // the question is wrong, or could not be put
)

// exit is an error with an exit code.
type exit struct {
	code int
	err  error // nil when all was said
}

func (e *exit) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exit) Unwrap() error { return e.err }

// run is the whole command. It ends early on SIGINT or SIGTERM.
func run(args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// A second signal ends the process at once.
	defer context.AfterFunc(ctx, stop)()
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var e *exit
	if !errors.As(err, &e) {
		text, hint := usageFault(err, cmd)
		fmt.Fprintf(errOut, "stint: %s\nhint: %s\n", redacted(errors.New(text), args), hint)
		return exitUsage
	}
	if e.err != nil {
		fmt.Fprintf(errOut, "stint: %s\n", redacted(e.err, args))
	}
	return e.code
}

// redacted returns the text of an error without the passwords of URLs that stand among the arguments or in the
// environment, in whatever place: errors repeat what they do not understand.
func redacted(err error, args []string) string {
	text := err.Error()
	for _, e := range os.Environ() {
		if strings.HasPrefix(e, variablePrefix) {
			args = append(args[:len(args):len(args)], e)
		}
	}
	for _, arg := range args {
		_, value, _ := strings.Cut(arg, "=") // of --store=URL and STINT_STORE=URL
		for _, whole := range []string{arg, value} {
			for _, part := range append(strings.Split(whole, ","), whole) {
				if strings.HasPrefix(part, "http://") || strings.HasPrefix(part, "https://") {
					if !strings.Contains(part, "@") {
						continue
					}
				}
				shown := clusterurl.Redacted(part)
				if shown == part || part == "" {
					continue
				}
				quoted := strconv.Quote(part)
				text = strings.ReplaceAll(text, part, shown)
				text = strings.ReplaceAll(text, quoted[1:len(quoted)-1], shown)
			}
		}
	}
	return text
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "stint",
		Short: "exact rate limits, as a service and at the command line",
		Long: `stint limits rates exactly.

  stint serve                          start the service, no configuration needed
  stint proxy --upstream URL           put limits in front of a server
  stint init                           write a limit file to begin with
  stint check stint.yaml               look for faults in limit files
  stint test login_test.yaml           test limits with requests and expectations
  stint config push stint.yaml --to URL   put limits where several services read them
  stint take ip=192.0.2.7              ask a running service
  stint explain ip=192.0.2.7           ask which limits apply and how full they are
  stint key get LIMIT customer=acme    what a key has used; give back, grant, reset
  stint customer set acme --plan pro   give a customer a plan; stint plan ls lists them
  stint ban ls                         list who is banned; stint ban rm lifts a ban
  stint top                            limits and their top keys, as they change
  stint doctor --store redis://host    examine the store that many services share
  stint ready --wait 30s               ask whether a service should get requests
  stint state downgrade                convert the counts for the previous version
  stint simulate scenario.yaml         see how a fleet would share a limit
  stint replay --config new.yaml access.log   see what limits would have refused

Every flag can be set in the environment: --http is STINT_HTTP, --admin-token-file
is STINT_ADMIN_TOKEN_FILE.`,
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if err := fromEnvironment(cmd.Flags(), os.LookupEnv); err != nil || cmd.Name() == serveName || cmd.Name() == proxyName {
				return err // these have a log, and say it there
			}
			for _, u := range unknownVariables(cmd.Root(), os.Environ()) {
				fmt.Fprintf(cmd.ErrOrStderr(), "stint: %v\n", u)
			}
			return nil
		},
	}
	root.SetVersionTemplate(versionLine() + "\n")
	root.AddCommand(newServe(), newProxy(), newInit(), newCheck(), newConfig(), newTake(), newExplain(), newBan(), newTop(), newKey(), newPlan(), newCustomer(), newDoctor(), newSimulate(), newReplay(), newTest(), newReady(), newState(), newMan(), &cobra.Command{
		Use:   "version",
		Short: "print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), versionLine())
			return err
		},
	})
	return root
}

// version is that of the release, or of the module that go install was given, or else the next one.
func version() string {
	if released != "" {
		return released
	}
	if info, ok := debug.ReadBuildInfo(); ok {
		if v := moduleVersion(info.Main.Version); v != "" {
			return v
		}
	}
	return next
}

// moduleVersion returns the version of a module that was tagged, without its v; "" = it was not.
func moduleVersion(v string) string {
	tagged := regexp.MustCompile(`^v(\d+\.\d+\.\d+(-[a-z]+(\.\d+)?)?)$`).FindStringSubmatch(v)
	if tagged == nil {
		return ""
	}
	return tagged[1]
}

func versionLine() string {
	line := "stint " + version()
	if info, ok := debug.ReadBuildInfo(); ok && line == "stint "+next {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 12 {
				line += "+" + s.Value[:12]
			}
		}
	}
	return fmt.Sprintf("%s (%s, %s/%s)", line, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
