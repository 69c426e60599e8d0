package rules

import (
	"cmp"
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
	"leave it out: a prefix is a part of the store, as in store: redis://127.0.0.1:6379?prefix=app:": strings.Fields("key_prefix prefix namespace"),
	"name the attributes as key: [user]": strings.Fields(`by group_by identifier key_by keys scope scopes dimensions partition_key
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
	"write on_exceed: {queue: {max_wait: 2s}}":             strings.Fields("queue delay wait max_wait timeout_duration"),
	"write an override: overrides: [{when: {ip: 10.0.0.0/8}, unlimited: true}]": strings.Fields(`whitelist allowlist allow_list white_list exempt exempts exemptions
		except exclude excludes excluded skip bypass ignore allow trusted`),
	"the number of tokens at once is burst: 20": strings.Fields(`burst_size burstsize max_burst maxburst burst_capacity bucket_size
		bucketsize bucket_capacity capacity bucket`),
	"write it as algorithm:": strings.Fields("strategy type kind algo method_of mode_of limiter"),
	"write it as purpose: text, or as a comment that begins with #": strings.Fields("description desc comment comments note notes title summary"),
	"write it as name:": strings.Fields("id limit_name key_name label"),
	"write algorithm: concurrency and max_in_flight: 5":           strings.Fields("max_concurrent max_concurrency concurrent concurrency max_connections connections parallel max_parallel"),
	"leave it out: nothing waits without on_exceed: {queue: ...}": {"nodelay"},
	"leave it out: a request counts before its outcome is known":  strings.Fields("skip_successful_requests skip_failed_requests count_only_failures"),
	"the number is given by the caller, as cost of the request":   strings.Fields("cost weight hits_addend hits increment"),
	"write it as on_store_failure: allow, reject or local":        strings.Fields("fail_open failopen failure_mode failure_mode_deny fail_closed on_error on_failure fallback"),
}

// countKeys and periodKeys are together what rate is here.
var (
	countKeys = strings.Fields(`limit max count requests requests_per_unit max_requests num_requests points quota tokens permits
		limit_for_period replenish_rate refill_rate fill_rate refill max_hits threshold average rps`)
	periodKeys = strings.Fields(`period window interval duration unit per every ttl time time_window timewindow window_size window_ms window_seconds
		rate_interval refill_interval refresh limit_refresh_period`)
)

// Words that occur in longer names elsewhere, such as window in slidingWindowMs. A name is read as the first of these groups
// of which it has a word.
var (
	fillWords   = strings.Fields("refill fill replenish average avg sustained")
	countWords  = strings.Fields("limit max count requests request hits tokens permits points quota calls rps rpm rph qps tps")
	periodWords = strings.Fields("period window interval duration")
	burstWords  = strings.Fields("burst capacity")
	wordHints   = []struct {
		words []string
		hint  string
	}{
		{strings.Fields("zone zones shared dict"), "leave it out: memory for keys is taken as it is needed"},
		{strings.Fields("headers retry"), "leave it out: RateLimit, RateLimit-Policy and Retry-After are always sent"},
		{strings.Fields("redis"), "leave it out, and write store: redis://127.0.0.1:6379 at the top of the file"},
		{strings.Fields("concurrent concurrency parallel connections conn inflight"), "write algorithm: concurrency and max_in_flight: 5"},
		{strings.Fields("message response status body code handler"), "write it below on_exceed:, such as on_exceed: {reject: {status: 429, body: 'slow down'}}"},
		{strings.Fields("fail failure fault error"), "write it as on_store_failure: allow, reject or local"},
		{strings.Fields("whitelist allowlist exempt exclude excluded bypass"), "write an override: overrides: [{when: {ip: 10.0.0.0/8}, unlimited: true}]"},
		{strings.Fields("blacklist denylist"), "write a limit that admits nothing: {name: deny, match: {ip: 203.0.113.0/24}, rate: 0/s}"},
		{strings.Fields("ban block jail penalty"), "write on_exceed: {ban: {for: 15m, after: 20/minute}}"},
		{strings.Fields("delay wait queue queueing"), "write on_exceed: {queue: {max_wait: 2s}}"},
		{strings.Fields("key keys by identifier criterion aggregate generator consumer"), "name the attributes as key: [ip]"},
	}
)

// unitWords are names of units, alone and in names such as requests_per_minute.
var unitWords = map[string]string{
	"second": "second", "seconds": "second", "sec": "second", "secs": "second",
	"minute": "minute", "minutes": "minute", "mins": "minute", "hour": "hour", "hours": "hour", "hourly": "hour",
	"day": "day", "days": "day", "daily": "day", "week": "week", "weekly": "week", "month": "month", "monthly": "month", "year": "year",
	"ms": "ms", "millis": "ms", "milliseconds": "ms",
}

// rateWords are names of rates with their unit.
var rateWords = map[string]string{"rps": "second", "qps": "second", "tps": "second", "rpm": "minute", "rph": "hour"}

// snake returns a name as its words in lower case with underscores: maxRequests and max-requests are max_requests.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		switch {
		case r == '-' || r == '.' || r == ' ':
			r = '_'
		case 'A' <= r && r <= 'Z':
			if i > 0 && 'a' <= name[i-1] && name[i-1] <= 'z' {
				b.WriteByte('_')
			}
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// isOne reports whether a name is one of names, with or without underscores.
func isOne(names []string, name string) bool {
	joined := strings.ReplaceAll(name, "_", "")
	return slices.ContainsFunc(names, func(one string) bool { return strings.ReplaceAll(snake(one), "_", "") == joined })
}

// hasWord reports whether a word of name is one of words.
func hasWord(words []string, name string) bool {
	return slices.ContainsFunc(strings.Split(name, "_"), func(w string) bool { return contains(words, w) })
}

// foreignHint is the hint for an unknown key of a map that has words as keys; "" = nothing is known of it.
func foreignHint(n *document.Node, key, value *document.Node, words []string) string {
	written := snake(key.Text)
	if written == "match" && contains(words, "when") {
		return "in an override it is when: {ip: 10.0.0.0/8}"
	}
	if contains(words, "rate") {
		return foreignLimitKey(n, written, value, words)
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
	if contains(words, "limits") && contains(strings.Fields("include includes import imports extends files"), written) {
		return "leave it out, and name several files or a folder: stint serve limits/"
	}
	if contains(words, "limits") && contains(limitKeys, written) {
		return fmt.Sprintf("%s: belongs to one limit: write it below limits:, or below defaults: for all of them", written)
	}
	return ""
}

// foreignLimitKey is foreignHint for a key of a limit.
func foreignLimitKey(n *document.Node, written string, value *document.Node, words []string) string {
	if hint := rateOf(n, written, value); hint != "" {
		return hint
	}
	if hint := foreignKey(written); hint != "" {
		if attribute, ok := attributeOf(value); ok && strings.Contains(hint, "as key: [") {
			return fmt.Sprintf("name the attributes as key: [%s]", attribute)
		}
		return hint
	}
	if contains(rootKeys, written) {
		return fmt.Sprintf("%s: is for all limits: write it at the top of the file, beside limits:", written)
	}
	if _, near := document.Suggest(written, words); near {
		return ""
	}
	if hasWord(burstWords, written) {
		return "the number of tokens at once is burst: 20"
	}
	for _, known := range wordHints {
		if hasWord(known.words, written) {
			return known.hint
		}
	}
	if r := foreignRate(value, 0); r != "" {
		return "write it in the limit itself: " + r
	}
	return ""
}

// attributeOf is the attribute that a value names in the words of another limiter.
func attributeOf(value *document.Node) (string, bool) {
	if value.Kind != document.Text || !attributeLike(value.Text) {
		return "", false
	}
	if here, ok := sameAttribute(strings.TrimPrefix(value.Text, "$")); ok {
		return here, true
	}
	return value.Text, true
}

// amounts are the counts and periods that a map of another limiter has.
type amounts struct{ fill, count, burst, unit, period string }

func amountsOf(n *document.Node) (a amounts, horizons []string) {
	if n == nil {
		return a, nil
	}
	for _, f := range n.Fields {
		name := snake(f.Key.Text)
		number := f.Value.Kind == document.Int
		switch unit, alone := unitWords[name]; {
		case alone && number && unit != "ms" && !strings.HasSuffix(name, "s"):
			a.count, a.unit = f.Value.Text, unit
			horizons = append(horizons, "{rate: "+f.Value.Text+"/"+unit+"}")
		case isPeriod(name):
			if text, ok := periodOf(name, f.Value); ok {
				a.period = text
			}
		case !number:
		case hasWord(burstWords, name):
			a.burst = f.Value.Text
		case hasWord(fillWords, name):
			a.fill = f.Value.Text
			a.unitIn(name)
		case isCount(name):
			a.count = f.Value.Text
			a.unitIn(name)
		}
	}
	if a.fill != "" { // then the count is what fits in
		a.count, a.burst = a.fill, cmp.Or(a.burst, a.count)
	}
	a.period = cmp.Or(a.unit, a.period)
	return a, horizons
}

// rate is the count and the period, or what may be meant where the period is not known.
func (a *amounts) rate() string {
	switch {
	case a.period != "":
		return a.count + "/" + a.period
	case a.fill != "":
		return a.count + "/s"
	}
	return a.count + "/minute"
}

// unitIn takes the period from a name such as requests_per_minute.
func (a *amounts) unitIn(name string) {
	for word := range strings.SplitSeq(name, "_") {
		if unit := cmp.Or(rateWords[word], unitWords[word]); unit != "" && unit != "ms" {
			a.unit = unit
		}
	}
}

func isCount(name string) bool {
	return isOne(countKeys, name) || hasWord(countWords, name) || hasWord(fillWords, name)
}

func isPeriod(name string) bool {
	if isOne(periodKeys, name) {
		return true
	}
	return !isOne(countKeys, name) && foreignKey(name) == "" && (hasWord(periodWords, name) || unitWords[name] != "" && strings.HasSuffix(name, "s"))
}

// foreignKey is the hint of foreignKeys for a name; "" = there is none.
func foreignKey(name string) string {
	for hint, names := range foreignKeys {
		if isOne(names, name) {
			return hint
		}
	}
	return ""
}

// foreignRate is the rate that a map of another limiter states, as it is written here; "" = it states none.
func foreignRate(n *document.Node, depth int) string {
	if n == nil || n.Kind != document.Map && n.Kind != document.List || depth > 6 {
		return ""
	}
	a, horizons := amountsOf(n)
	if len(horizons) > 1 {
		return "horizons: [" + strings.Join(horizons, ", ") + "]"
	}
	if a.count != "" {
		text := "rate: " + a.rate()
		if a.burst != "" && a.burst != a.count {
			text += ", burst: " + a.burst
		}
		return text
	}
	for _, f := range n.Fields {
		if text := foreignRate(f.Value, depth+1); text != "" {
			return text
		}
	}
	for _, item := range n.Items {
		if text := foreignRate(item, depth+1); text != "" {
			return text
		}
	}
	return ""
}

// rateOf is the hint for a count or a period that has a key of its own: the rate that they are together.
func rateOf(n *document.Node, written string, value *document.Node) string {
	exact := isOne(countKeys, written) || isOne(periodKeys, written)
	if !exact && foreignKey(written) != "" {
		return ""
	}
	unit, alone := unitWords[written]
	switch scalar := value.Kind == document.Int || value.Kind == document.Text; {
	case exact:
	case alone && value.Kind == document.Int && unit != "ms":
	case scalar && isPeriod(written):
	case value.Kind == document.Int && isCount(written) && !hasWord(burstWords, written):
	default:
		return ""
	}
	if algorithm := n.Get("algorithm"); algorithm != nil && (algorithm.Text == "concurrency" || foreignAlgorithm(algorithm.Text) == "write concurrency") && value.Kind == document.Int {
		return fmt.Sprintf("write max_in_flight: %s", value.Text)
	}
	a, horizons := amountsOf(n)
	if len(horizons) > 1 {
		return "several rates are horizons: [" + strings.Join(horizons, ", ") + "]"
	}
	if a.count == "" && isPeriod(written) && written != "per" {
		a.count = "5"
		return "the period is a part of the rate, as in rate: " + a.rate()
	}
	a.count = cmp.Or(a.count, "5")
	if written == "per" {
		if _, ok := periodOf(written, value); !ok && value.Kind == document.Text && attributeLike(value.Text) {
			return fmt.Sprintf("write key: [%s]; the period is a part of the rate, as in rate: %s", value.Text, a.rate())
		}
	}
	if v, err := strconv.ParseInt(value.Text, 10, 64); err == nil && v >= 1000 && v%1000 == 0 && isPeriod(written) && unitOf(written) == "" {
		return fmt.Sprintf("a rate has its period: write rate: %s/%ds if it is in milliseconds", a.count, v/1000)
	}
	if a.period == "" && a.fill == "" {
		return fmt.Sprintf("a rate has its period: write rate: %s/minute, or the period that is meant", a.count)
	}
	return "a rate has its period: write rate: " + a.rate()
}

// unitOf is the unit that the name of a period has in it.
func unitOf(name string) string {
	if strings.HasSuffix(name, "ms") {
		return "ms"
	}
	for word := range strings.SplitSeq(name, "_") {
		if unit := unitWords[word]; unit != "" {
			return unit
		}
	}
	return ""
}

// periodOf is a value that names a period, as rate takes it.
func periodOf(name string, value *document.Node) (string, bool) {
	if value.Kind == document.Int {
		v, err := strconv.ParseInt(value.Text, 10, 64)
		unit := unitOf(name)
		switch {
		case err != nil:
			return "", false
		case unit == "" && v >= 1000 && v%1000 == 0: // as many seconds are rarely meant
			unit = "ms"
		}
		if unit == "ms" && v > 0 && v%1000 == 0 {
			v, unit = v/1000, "s"
		}
		units := map[string]string{"": "s", "second": "s", "minute": "m", "hour": "h", "day": "d"}
		return strconv.FormatInt(v, 10) + cmp.Or(units[unit], unit), true
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

// foreignWords are values of enumerations elsewhere. Of several that are meant the one that the enumeration has counts.
var foreignWords = map[string][]string{
	"allow":  strings.Fields("open fail_open failopen pass accept admit permit ignore continue"),
	"reject": strings.Fields("closed close fail_closed failclosed deny refuse block drop fail error"),
	"local":  strings.Fields("memory in_memory fallback"),
	"exact":  strings.Fields("distributed shared global central centralized redis strict cluster store"),
	"all":    strings.Fields("shared common single global together"),
	"skip":   strings.Fields("ignore allow pass none"),
}

// foreignWord is the hint for a value that is none of words.
func foreignWord(value string, words []string) string {
	value = snake(value)
	for _, w := range words {
		if isOne(foreignWords[w], value) {
			return "write " + w
		}
	}
	return ""
}

// foreignPattern is the hint for a pattern that is a map with its kind, such as {prefix: /api}.
func foreignPattern(attribute, kind, text string) string {
	switch kind {
	case "prefix", "prefix_match", "starts_with":
		return fmt.Sprintf("write %s: %s*", attribute, text)
	case "suffix", "suffix_match", "ends_with":
		return fmt.Sprintf("write %s: \"*%s\"", attribute, text)
	case "contains":
		return fmt.Sprintf("write %s: \"*%s*\"", attribute, text)
	case "exact", "exact_match", "equals", "value":
		return fmt.Sprintf("write %s: %s", attribute, text)
	case "regex", "regexp", "safe_regex", "pattern", "matches":
		return "in place of match, write when: " + strconv.Quote(attribute+".matches('"+strings.ReplaceAll(text, "'", "")+"')")
	}
	return ""
}
