package main

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// flagsElsewhere are flags of other programs and commands, by what is to be written here: the first that there is.
var flagsElsewhere = map[string]string{
	"port": "--http 127.0.0.1:8080", "p": "--http 127.0.0.1:8080", "listen": "--http 127.0.0.1:8080", "addr": "--http 127.0.0.1:8080|--admin http://127.0.0.1:8082", "address": "--http 127.0.0.1:8080|--addr http://127.0.0.1:8080|--admin http://127.0.0.1:8082",
	"url": "--addr http://127.0.0.1:8080|--admin http://127.0.0.1:8082", "admin": "--addr http://127.0.0.1:8080", "http": "--addr http://127.0.0.1:8080|--admin http://127.0.0.1:8082", "server": "--addr http://127.0.0.1:8080|--admin http://127.0.0.1:8082",
	"bind": "--http 127.0.0.1:8080", "host": "--http 127.0.0.1:8080", "l": "--http 127.0.0.1:8080", "http-port": "--http 127.0.0.1:8080", "grpc-port": "--grpc 127.0.0.1:8081",
	"admin-port": "--admin 127.0.0.1:8082", "metrics": "--admin 127.0.0.1:8082", "metrics-port": "--admin 127.0.0.1:8082", "metrics-addr": "--admin 127.0.0.1:8082",
	"file": "--config FILE", "limits": "--config FILE", "rules": "--config FILE", "f": "--config FILE", "config-file": "--config FILE", "conf": "--config FILE",
	"redis": "--store redis://127.0.0.1:6379", "redis-url": "--store redis://127.0.0.1:6379", "redis-addr": "--store redis://127.0.0.1:6379", "backend": "--store redis://127.0.0.1:6379",
	"verbose": "--log-level debug", "v": "--log-level debug", "debug": "--log-level debug", "log-format": "--log json",
	"data-dir": "--state-dir DIR", "data": "--state-dir DIR", "cert": "--tls-cert FILE", "key": "--tls-key FILE", "tls": "--tls-cert FILE and --tls-key FILE",
	"target": "--upstream URL", "backend-url": "--upstream URL", "token": "--token-file FILE",
}

var (
	unknownFlag = regexp.MustCompile(`^unknown (?:flag: --([\w-]+)|shorthand flag: '(.)')`)
	badValue    = regexp.MustCompile(`(?s)^invalid argument (".*") for "([^"]*)" flag: (.*)$`)
)

// usageFault says in plain words what is wrong with a command line, and what to do.
func usageFault(err error, cmd *cobra.Command) (text, hint string) {
	text = err.Error()
	hint = fmt.Sprintf("see %s --help", cmd.CommandPath())
	if m := unknownFlag.FindStringSubmatch(text); m != nil {
		for here := range strings.SplitSeq(flagsElsewhere[m[1]+m[2]], "|") {
			name, _, _ := strings.Cut(strings.TrimPrefix(here, "--"), " ")
			if here != "" && cmd.Flags().Lookup(name) != nil {
				return text, "write " + here + "; " + hint
			}
		}
		if example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); example != "" && (strings.HasPrefix(flagsElsewhere[m[1]+m[2]], "--config") || m[1] == "config") {
			return text, fmt.Sprintf("name the file without a flag, as in %s; %s", example, hint)
		}
		if name := cmd.Name(); (name == "take" || name == "explain") && m[1] != "" {
			return text, fmt.Sprintf("an attribute has no dashes: write %s=VALUE; %s", m[1], hint)
		}
		return text, hint
	}
	if m := badValue.FindStringSubmatch(text); m != nil {
		value, flag, why := m[1], m[2], m[3]
		_, flag, long := strings.Cut(flag, "--")
		if !long {
			return text, hint
		}
		switch number := strings.Trim(value, `"`); {
		case strings.HasPrefix(why, "time: missing unit"):
			return fmt.Sprintf("%s of --%s has no unit", value, flag), fmt.Sprintf("write --%s %ss", flag, number)
		case strings.HasPrefix(why, "time: "):
			return fmt.Sprintf("%s of --%s is no duration", value, flag), "write it as 500ms, 30s or 5m"
		case strings.HasPrefix(why, "strconv.ParseInt"), strings.HasPrefix(why, "strconv.ParseUint"), strings.HasPrefix(why, "strconv.Atoi"):
			return fmt.Sprintf("%s of --%s is no whole number in its range", value, flag), "write a whole number, such as 1"
		case strings.HasPrefix(why, "strconv.ParseFloat"):
			return fmt.Sprintf("%s of --%s is no number", value, flag), "write a number, such as 0.8"
		case strings.HasPrefix(why, "strconv.ParseBool"):
			return fmt.Sprintf("%s of --%s is neither true nor false", value, flag), fmt.Sprintf("write --%s, or --%s=false", flag, flag)
		}
		return fmt.Sprintf("%s of --%s: %s", value, flag, why), hint
	}
	if example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); example != "" && (strings.HasPrefix(text, "accepts ") || strings.HasPrefix(text, "requires ")) {
		return text, "as in " + example + "; " + hint
	}
	return text, hint
}
