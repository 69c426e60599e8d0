package admin

import "github.com/prometheus/client_golang/prometheus"

// Identity is what is known of the files and the URL by which clients are identified.
type Identity struct {
	Tokens    map[string]uint64 // by result; nil = no token is believed
	KeysGood  bool
	Databases map[string]bool // whether the last reading was successful
}

type identityDescs struct{ tokens, keys, databases *prometheus.Desc }

func newIdentityDescs(desc func(name, help string, labels ...string) *prometheus.Desc) identityDescs {
	return identityDescs{
		tokens:    desc("jwt_tokens_total", "Tokens of requests by what became of them: verified, or why they have no claims.", "result"),
		keys:      desc("jwks_last_refresh_successful", "1 if the last reading of the keys was successful, 0 if the former ones stay in use."),
		databases: desc("geoip_last_reload_successful", "1 if the last reading of the database was successful, 0 if the former content stays in use.", "database"),
	}
}

func (d *identityDescs) describe(ch chan<- *prometheus.Desc) {
	ch <- d.tokens
	ch <- d.keys
	ch <- d.databases
}

func (d *identityDescs) collect(to metrics, f *Identity) {
	for result, n := range f.Tokens {
		to.count(d.tokens, n, result)
	}
	if f.Tokens != nil {
		to.truth(d.keys, f.KeysGood)
	}
	for name, good := range f.Databases {
		to.truth(d.databases, good, name)
	}
}
