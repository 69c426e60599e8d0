package envoyenv

import (
	"net/url"
	"strings"
)

// xds is the URL of the server that the configuration comes from. always says that the service is ready
// without one.
func (r *reader) xds(always bool) string {
	place := r.text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000")
	place = strings.TrimPrefix(strings.TrimPrefix(place, "dns:///"), "dns:")
	q := url.Values{}
	set := func(name, value string) {
		if value != "" {
			q.Set(name, value)
		}
	}
	scheme := "xds"
	cert, key, ca, name := r.text("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", ""), r.text("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", ""), r.text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ""), r.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "")
	if r.truth("CONFIG_GRPC_XDS_SERVER_USE_TLS", false) {
		scheme = "xdss"
		set("cert", cert)
		set("key", key)
		set("ca", ca)
		set("server_name", name)
		if (cert == "") != (key == "") {
			r.bad("a certificate for the configuration server needs its key: set both CONFIG_GRPC_XDS_CLIENT_TLS_CERT and CONFIG_GRPC_XDS_CLIENT_TLS_KEY")
		}
	}
	// The image waits XDS_CLIENT_BACKOFF_... after a stream has ended, up to a minute. Its factor of 0.5 makes the
	// waits shorter, not longer.
	set("backoff", r.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"))
	set("backoff_max", r.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL"))
	r.refused("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "each wait is twice the one before, half of it random")
	if !r.truth("XDS_CLIENT_BACKOFF_JITTER", true) {
		r.note("XDS_CLIENT_BACKOFF_JITTER=false is not honoured: half of each wait is random, so that many instances do not come back at once")
	}
	r.duration("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL")
	r.refused("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "a connection that fails is tried again after XDS_CLIENT_BACKOFF_INITIAL_INTERVAL")
	if r.number("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES") > 0 {
		set("max_bytes", r.text("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", ""))
	}
	for pair := range strings.SplitSeq(r.text("CONFIG_GRPC_XDS_NODE_METADATA", ""), ",") {
		if strings.Contains(pair, "=") {
			q.Add("metadata", pair)
		}
	}
	for _, pair := range r.pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS") {
		q.Add("header_password", pair[0]+":"+pair[1]) // is not shown, as a token may be in it
	}
	if always {
		q.Set("start", "empty")
	}
	text := scheme + "://" + place + "/" + url.PathEscape(r.text("CONFIG_GRPC_XDS_NODE_ID", "default"))
	if len(q) > 0 {
		text += "?" + q.Encode()
	}
	return text
}

// escape is how a user, a password or a parameter stands in a URL of Redis.
func escape(s string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; strings.IndexByte("/?#%&@: ", c) >= 0 || c < ' ' {
			b.Write([]byte{'%', hex[c>>4], hex[c&15]})
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// store says where the counters are.
func (r *reader) store() {
	place := r.text("REDIS_URL", "")
	socket := strings.ToLower(r.text("REDIS_SOCKET_TYPE", ""))
	switch backend := r.text("BACKEND_TYPE", "redis"); strings.ToLower(backend) {
	case "redis":
	case "memcache":
		r.bad("BACKEND_TYPE is memcache, which there is not: set BACKEND_TYPE=redis with REDIS_URL, or leave REDIS_URL out for counters in this process")
	default:
		r.bad("BACKEND_TYPE is %q, want redis", backend)
	}
	if socket != "" && socket != "tcp" && socket != "unix" {
		r.bad("REDIS_SOCKET_TYPE is %q, want tcp", socket)
	}
	u := r.redis()
	switch {
	case place == "":
		r.note("REDIS_URL is not set: counters are in this process, and several instances do not share them")
		return
	case socket == "unix" || strings.HasPrefix(place, "/"):
		r.bad("REDIS_URL is a Unix socket, and Redis is reached by TCP only: set REDIS_SOCKET_TYPE=tcp and REDIS_URL=host:port")
		return
	}
	r.flag("store", u, "REDIS_...")
}

// redis is the URL of the store.
func (r *reader) redis() string {
	kind := strings.ToLower(r.text("REDIS_TYPE", "single"))
	tls := r.truth("REDIS_TLS", false)
	list := strings.Split(r.values["REDIS_URL"], ",")
	path, scheme := "", ""
	switch kind {
	case "single":
	case "cluster":
		scheme = "+cluster"
	case "sentinel":
		scheme, path = "+sentinel", "/"+escape(list[0])
		if list = list[1:]; len(list) == 0 && r.values["REDIS_URL"] != "" {
			r.bad("REDIS_URL names no sentinel, want the name of the master and then the sentinels: mymaster,host:26379,host:26379")
		}
	default:
		r.bad("REDIS_TYPE is %q, want SINGLE, SENTINEL or CLUSTER", kind)
	}
	user := ""
	if auth := r.text("REDIS_AUTH", ""); auth != "" {
		name, password, both := strings.Cut(auth, ":")
		if !both {
			name, password = "", auth
		}
		user = escape(name) + ":" + escape(password) + "@"
	}
	var hosts []string
	for _, one := range list {
		one = strings.TrimSpace(one)
		if s, rest, ok := strings.Cut(one, "://"); ok {
			tls = tls || s == "rediss"
			one = rest
		}
		if at := strings.LastIndexByte(one, '@'); at >= 0 {
			if kind != "sentinel" && user == "" {
				user = one[:at+1] // is escaped already, as it is part of a URL
			}
			one = one[at+1:]
		}
		host, below, _ := strings.Cut(one, "/")
		if kind == "single" && below != "" {
			path = "/" + below
		}
		hosts = append(hosts, host)
	}
	q := r.parameters(tls)
	name := "redis"
	if tls {
		name = "rediss"
	}
	text := name + scheme + "://" + user + strings.Join(hosts, ",") + path
	if len(q) > 0 {
		text += "?" + strings.Join(q, "&")
	}
	return text
}

// parameters are those of the URL of the store.
func (r *reader) parameters(tls bool) (q []string) {
	set := func(name, value string) {
		if value != "" {
			q = append(q, name+"="+escape(value))
		}
	}
	set("prefix", r.text("CACHE_KEY_PREFIX", ""))
	set("timeout", r.duration("REDIS_TIMEOUT"))
	if auth := r.text("REDIS_SENTINEL_AUTH", ""); auth != "" {
		name, password, both := strings.Cut(auth, ":")
		if !both {
			name, password = "", auth
		}
		set("sentinel_username", name)
		set("sentinel_password", password)
	}
	cert, key, ca := r.text("REDIS_TLS_CLIENT_CERT", ""), r.text("REDIS_TLS_CLIENT_KEY", ""), r.text("REDIS_TLS_CACERT", "")
	if tls {
		set("cert", cert)
		set("key", key)
		set("ca", ca)
	}
	if r.truth("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", false) {
		r.note("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION is not honoured: a certificate is taken for the host that it names, or none is looked at; give the name in it as server_name= in STINT_STORE, or insecure_skip_verify=true")
	}
	return q
}
