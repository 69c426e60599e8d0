package rules

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// This file knows the words of other rate limiters, and says what to write in their place.

// foreignKeys are keys of a limit elsewhere, by what is to be written here.
var foreignKeys = map[string][]string{
	"name the attributes as key: [user]": strings.Fields(`by group_by identifier key_by keys key_prefix scope scopes dimensions partition_key
		discriminator subject entity`),
	"write shadow: true": strings.Fields(`dry_run dryrun dry-run report_only log_only audit audit_mode test_mode monitor
		monitor_only simulate shadow_mode`),
	"leave the limit out, or write shadow: true: it counts and refuses nothing": strings.Fields("enabled disabled enable disable active inactive status"),
	"put it below match:, such as match: {path: /api/*}": strings.Fields(`path paths method methods host hosts route routes url urls uri endpoint endpoints
		domain domains`),
	`put it below match:, such as match: {"header:X-Tenant": acme}`: strings.Fields("header headers cookie cookies query"),
	"write it as when:, in CEL, or as match:": strings.Fields(`if condition conditions filter filters expression expr rule rules
		selector predicate`),
	"write it below on_exceed:, such as on_exceed: {reject: 429}": strings.Fields(`reject redirect tag on_limit action actions response status_code http_status code message body
		error_message throttle`),
	"write on_exceed: {ban: {for: 15m, after: 20/minute}}": strings.Fields("ban block block_duration blockduration ban_duration ban_time penalty penalty_time"),
	"write on_exceed: {queue: {max_wait: 2s}}":             strings.Fields("queue delay nodelay wait max_wait"),
	"write an override: overrides: [{when: {ip: 10.0.0.0/8}, unlimited: true}]": strings.Fields(`whitelist allowlist allow_list white_list exempt exempts exemptions
		except exclude excludes excluded skip bypass ignore allow trusted`),
	"the number of tokens at once is burst: 20": strings.Fields(`burst_size burstsize max_burst maxburst burst_capacity bucket_size
		bucketsize bucket_capacity capacity bucket`),
	"write it as algorithm:": strings.Fields("strategy type kind algo method_of mode_of limiter"),
	"write it as purpose: text, or as a comment that begins with #": strings.Fields("description desc comment comments note notes title summary"),
	"write it as name:": strings.Fields("id limit_name key_name label"),
	"write algorithm: concurrency and max_in_flight: 5":         strings.Fields("max_concurrent max_concurrency concurrent concurrency max_connections connections parallel max_parallel"),
	"the number is given by the caller, as cost of the request": strings.Fields("cost weight hits_addend hits increment"),
	"write it as on_store_failure: allow, reject or local":      strings.Fields("fail_open failopen failure_mode failure_mode_deny fail_closed on_error on_failure fallback"),
}

// countKeys and periodKeys are together what rate is here.
var (
	countKeys = strings.Fields(`limit max count requests requests_per_unit max_requests maxrequests num_requests points quota tokens permits
		replenish_rate replenishrate refill_rate fill_rate refill max_hits threshold average rps`)
	periodKeys = strings.Fields(`period window interval duration unit per ttl time time_window timewindow window_size windowms window_ms window_seconds
		rate_interval refill_interval refresh limit_refresh_period`)
)

// foreignHint is the hint for an unknown key of a map that has words as keys; "" = nothing is known of it.
func foreignHint(n *document.Node, key, value *document.Node, words []string) string {
	written := strings.ToLower(key.Text)
	if written == "match" && contains(words, "when") {
		return "in an override it is when: {ip: 10.0.0.0/8}"
	}
	if contains(words, "rate") {
		if hint := rateOf(n, written, value); hint != "" {
			return hint
		}
		for hint, names := range foreignKeys {
			if contains(names, written) {
				return hint
			}
		}
		if contains(rootKeys, written) {
			return fmt.Sprintf("%s: is for all limits: write it at the top of the file, beside limits:", written)
		}
		return ""
	}
	if contains(words, "limits") && contains(strings.Fields("redis backend storage cache db database"), written) {
		return "write store: redis://127.0.0.1:6379"
	}
	if contains(words, "limits") && contains(strings.Fields("jwt jwks oidc auth"), written) {
		return "write identity: {jwt: {jwks: https://issuer.example/keys}}"
	}
	if contains(words, "ban") && contains(words, "queue") && contains(append([]string{"message", "status_code", "code"}, rejectKeys...), written) {
		return "write it below reject:, such as {reject: {status: 429, body: 'slow down'}}"
	}
	if contains(words, "limits") && contains(limitKeys, written) {
		return fmt.Sprintf("%s: belongs to one limit: write it below limits:, or below defaults: for all of them", written)
	}
	return ""
}

// rateOf is the hint for a count or a period that has a key of its own: the rate that they are together.
func rateOf(n *document.Node, written string, value *document.Node) string {
	isCount, isPeriod := contains(countKeys, written), contains(periodKeys, written)
	if !isCount && !isPeriod {
		return ""
	}
	count, period := "5", "minute"
	for _, f := range n.Fields {
		switch lower := strings.ToLower(f.Key.Text); {
		case contains(countKeys, lower) && f.Value.Kind == document.Int:
			count = f.Value.Text
		case contains(periodKeys, lower):
			if text, ok := periodOf(lower, f.Value); ok {
				period = text
			}
		}
	}
	if written == "per" {
		if _, ok := periodOf(written, value); !ok && value.Kind == document.Text && attributeLike(value.Text) {
			return fmt.Sprintf("write key: [%s]; the period is a part of the rate, as in rate: %s/%s", value.Text, count, period)
		}
	}
	return fmt.Sprintf("a rate has its period: write rate: %s/%s", count, period)
}

// periodOf is a value that names a period, as rate takes it.
func periodOf(key string, value *document.Node) (string, bool) {
	if value.Kind == document.Int {
		if strings.Contains(key, "ms") {
			return value.Text + "ms", true
		}
		return value.Text + "s", true
	}
	if value.Kind != document.Text {
		return "", false
	}
	text := strings.ToLower(value.Text)
	for _, one := range []string{text, strings.TrimSuffix(text, "s")} {
		if _, err := limit.ParseRate("1/" + one); err == nil {
			return one, true
		}
	}
	return "", false
}

// attributeLike reports whether text may be the name of an attribute.
func attributeLike(text string) bool {
	return text != "" && len(text) <= 64 && !strings.ContainsAny(text, " ,/[]{}'\"")
}

// foreignAlgorithms are names of algorithms elsewhere.
var foreignAlgorithms = map[string]string{
	"gcra": "write token_bucket, which is GCRA", "generic_cell_rate": "write token_bucket, which is GCRA", "cell_rate": "write token_bucket, which is GCRA",
	"sliding_window": "write sliding_window_log, which is exact, or sliding_window_counter, which takes less memory",
	"sliding":        "write sliding_window_log, which is exact, or sliding_window_counter, which takes less memory",
	"rolling_window": "write sliding_window_log, which is exact, or sliding_window_counter, which takes less memory",
	"moving_window":  "write sliding_window_log", "sliding_log": "write sliding_window_log", "sliding_counter": "write sliding_window_counter",
	"window": "write fixed_window", "fixed": "write fixed_window", "counter": "write fixed_window", "tumbling_window": "write fixed_window", "calendar": "write fixed_window",
	"token": "write token_bucket", "bucket": "write token_bucket", "tokens": "write token_bucket", "leaky": "write leaky_bucket", "leak": "write leaky_bucket",
	"semaphore": "write concurrency", "concurrent": "write concurrency", "in_flight": "write concurrency", "max_in_flight": "write concurrency",
}

// foreignAlgorithm is the hint for a name of an algorithm.
func foreignAlgorithm(name string) string {
	return foreignAlgorithms[strings.NewReplacer("-", "_", " ", "_").Replace(strings.ToLower(name))]
}

// foreignExceed is the hint for an on_exceed that is not a map.
func foreignExceed(n *document.Node) string {
	if _, err := strconv.Atoi(n.Text); err == nil {
		return fmt.Sprintf("write on_exceed: {reject: %s}", n.Text)
	}
	switch strings.ToLower(n.Text) {
	case "ban", "blacklist", "jail":
		return "write on_exceed: {ban: {for: 15m, after: 20/minute}}"
	case "queue", "wait", "delay", "nodelay", "pace", "shape", "hold":
		return "write on_exceed: {queue: {max_wait: 2s}}"
	case "redirect":
		return "write on_exceed: {redirect: /busy}"
	case "log", "shadow", "warn", "allow", "none", "monitor", "report":
		return "write shadow: true in place of on_exceed: the limit counts and refuses nothing"
	case "deny", "block", "drop", "error", "refuse":
		return "write on_exceed: {reject: 429}, or leave it out"
	}
	return "keys: " + strings.Join(exceedKeys, ", ")
}

// sameAttributes are names elsewhere of attributes that are provided here.
var sameAttributes = map[string][]string{
	"ip": strings.Fields(`client_ip clientip remote_addr remoteaddr remote_address remote_ip remoteip source_ip sourceip src_ip ip_address ipaddress address
		addr x_forwarded_for x-forwarded-for x-real-ip real_ip binary_remote_addr`),
	"path":                 strings.Fields("uri url endpoint route request_path request_uri"),
	"method":               strings.Fields("verb http_method request_method"),
	"host":                 strings.Fields("hostname vhost authority server_name"),
	"header:x-api-key":     strings.Fields("api_key apikey api-key x-api-key"),
	"header:user-agent":    strings.Fields("user_agent useragent user-agent ua"),
	"header:authorization": strings.Fields("authorization auth bearer"),
}

// sameAttribute is the attribute here that has another name elsewhere.
func sameAttribute(name string) (string, bool) {
	name = strings.ToLower(name)
	for here, names := range sameAttributes {
		if slices.Contains(names, name) {
			return here, true
		}
	}
	return "", false
}
