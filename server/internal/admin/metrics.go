package admin

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/banlist"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/internal/waitqueue"
	"github.com/stint-io/stint/limit"
)

// Figures are what the service looks like at one moment.
type Figures struct {
	Version string

	Limits         int     // configured
	ReloadOK       bool    // the last reload took effect
	ReloadTime     float64 // of the last that did, Unix seconds
	ReloadErrors   uint64
	ReloadAttempts uint64

	StoreKeys, StoreBytes, StoreMaxBytes int64            // of this process
	StoreOverflows                       map[string]int64 // Takes, by the IDs of counters

	Shared      *SharedStore // nil when the counters are in this process only
	CountsFile  *CountsFile  // nil when they end with it
	NotReturned uint64       // what the store did not take back

	RLSOK, RLSOverLimit, RLSErrors uint64
	RLSShadowed                    uint64 // of RLSOK, those over a limit

	Leases *Leases // nil when no limit is shared by leases

	Bans      []banlist.Tally
	Queues    []waitqueue.Tally
	Shares    []engine.ShareTally
	Unlimited []uint64          // by engine.Unlimited
	Repeated  uint64            // takes
	Purposes  map[string]string // of the limits that have one

	Security Security

	Identity Identity

	Cluster *Cluster // nil when this server is the only one

	Config *Config // nil when the configuration is in files
}

// SharedStore is what a store outside of this process looks like.
type SharedStore struct {
	Up            bool // the last exchange went well
	Calls         uint64
	Called        uint64 // requests that those calls decided
	Failures      uint64 // calls that failed
	Timeouts      uint64
	LocalRefusals uint64  // without a call, from what an earlier one said
	RoundTrip     float64 // seconds, smoothed
	BreakersOpen  int
	Instances     int // that were seen to share the store

	// BatchSizes counts the calls that decided 1, 2, 3 to 4, 5 to 8 requests and
	// so on; the last those above 256.
	BatchSizes [10]uint64
}

// Collector turns the engine's tallies and the service's figures into metrics. A
// series has a limit's name in its labels and never a key: the number of series
// is that of the limits, whatever clients send.
type Collector struct {
	tallies func() iter.Seq[tally.Tally]
	figures func() Figures

	decisions, soft, unlimited, despite     *prometheus.Desc
	build, limits                           *prometheus.Desc
	reloadOK, reloadTime, reloads, loadErrs *prometheus.Desc
	keys, bytes, maxBytes, overflowed       *prometheus.Desc
	rls, rlsShadowed, nearLimit, repeated   *prometheus.Desc
	shared                                  sharedDescs
	leases                                  leaseDescs
	security                                securityDescs
	cluster                                 clusterDescs
	config                                  configDescs
	exceed                                  exceedDescs
	identity                                identityDescs
	file                                    fileDescs
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector that reads from both functions at each scrape.
func NewCollector(tallies func() iter.Seq[tally.Tally], figures func() Figures) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("stint_"+name, help, labels, nil)
	}
	return &Collector{
		tallies: tallies, figures: figures,
		decisions:   desc("decisions_total", "What each limit answered: allowed, refused, tagged when it lets requests over it through with a mark, or shadow_refused when it is not enforced, with the reason.", "limit", "outcome", "reason"),
		soft:        desc("soft_exceeded_total", "Requests admitted above the soft threshold of a limit.", "limit"),
		unlimited:   desc("unlimited_total", "Requests that were admitted without the limit: missing_key, condition_failed, store_failed, or no_coordinator. Without a limit's name: no_match, unknown_domain, or no_service.", "limit", "reason"),
		repeated:    desc("repeated_takes_total", "Takes that repeated an admitted one by its idempotency key, and were charged nothing. They are in no other count."),
		despite:     desc("condition_errors_total", "Requests to which the limit applied because its condition could not be evaluated.", "limit"),
		build:       desc("build_info", "Always 1; the label has the version.", "version"),
		limits:      desc("config_limits", "Limits in the configuration in force."),
		reloadOK:    desc("config_last_reload_successful", "1 if the last attempt to load the configuration took effect, 0 if the one before stays in force."),
		reloadTime:  desc("config_last_reload_success_timestamp_seconds", "When the configuration in force was loaded."),
		reloads:     desc("config_reloads_total", "Attempts to load the configuration, the first included."),
		loadErrs:    desc("config_load_errors_total", "Attempts to load the configuration that failed."),
		keys:        desc("store_keys", "Keys with a state of their own."),
		bytes:       desc("store_bytes", "Bytes that the tables of counters occupy."),
		maxBytes:    desc("store_max_bytes", "The byte budget of the tables of counters."),
		overflowed:  desc("store_overflow_takes_total", "Takes of each limit decided on its overflow bucket because its room was full of live keys.", "limit"),
		rls:         desc("rls_responses_total", "Answers of Envoy's rate limit service by overall code.", "code"),
		rlsShadowed: desc("rls_shadowed_total", "Answers OK of Envoy's rate limit service that would have been OVER_LIMIT without --rls-shadow."),
		nearLimit:   desc("rls_near_limit_hits_total", "Hits that a rule in Envoy's format admitted near its limit, above --rls-near-limit of it.", "limit"),
		shared:      newSharedDescs(desc),
		leases:      newLeaseDescs(desc),
		security:    newSecurityDescs(desc),
		cluster:     newClusterDescs(desc),
		config:      newConfigDescs(desc),
		exceed:      newExceedDescs(desc),
		identity:    newIdentityDescs(desc),
		file:        newFileDescs(desc),
	}
}

func newSharedDescs(desc func(name, help string, labels ...string) *prometheus.Desc) sharedDescs {
	return sharedDescs{
		up:          desc("store_up", "1 if the store answers, 0 if it does not."),
		calls:       desc("store_calls_total", "Calls of the store. One may decide many requests."),
		failures:    desc("store_call_failures_total", "Calls of the store that failed."),
		timeouts:    desc("store_timeouts_total", "Calls of the store, and requests that waited for one, that took too long."),
		local:       desc("store_local_refusals_total", "Requests refused without a call, as the store had said until when."),
		batch:       desc("store_batch_size", "How many requests a call decided."),
		breakers:    desc("store_breaker_open", "Circuit breakers that are open: what they guard is not asked until it answers a probe."),
		instances:   desc("store_instances", "Processes seen to share the store, this one included."),
		roundTrip:   desc("store_round_trip_seconds", "How long a call takes, smoothed."),
		notReturned: desc("store_not_returned_total", "Times that the store did not answer when something was to be given back."),
	}
}

func newLeaseDescs(desc func(name, help string, labels ...string) *prometheus.Desc) leaseDescs {
	return leaseDescs{
		streams:    desc("lease_streams", "Streams that instances hold to be lent parts of limits."),
		instances:  desc("lease_instances", "Instances whose leases are counted, with a stream or without."),
		resources:  desc("lease_resources", "Keys of leased limits that are in use."),
		unlent:     desc("lease_asked_keys", "Keys of leased limits of which nobody has a lease, and whose buckets are not full."),
		asks:       desc("lease_asks_total", "Requests that were decided at the coordinator, without a lease."),
		recovering: desc("lease_recovering", "1 while leases of a former coordinator may be in use, so that little is lent."),
		reports:    desc("lease_reports_total", "Reports that instances sent."),
		grants:     desc("lease_grants_total", "Grants that were sent to instances."),
		refused:    desc("lease_refused_total", "Answers about a key that lent nothing, by status.", "status"),
		rejected:   desc("lease_streams_refused_total", "Streams refused because there were too many."),
		expired:    desc("lease_expired_total", "Instances whose leases ran out without a word."),
		failures:   desc("lease_failures_total", "Times that the coordinator failed, at one key or as a whole; each is in the log."),
		capacity:   desc("lease_capacity", "What a limit allows to all keys in use: tokens per second, or permits.", "limit"),
		lent:       desc("lease_lent", "What instances hold of it.", "limit"),
		demand:     desc("lease_demand", "Demand of all instances for it.", "limit"),
		free:       desc("lease_free", "What can be lent of it.", "limit"),
		saturated:  desc("lease_saturated", "1 while more is wanted of a key than the limit allows: constantly 1 means that the limit is too low.", "limit"),
		seconds:    desc("lease_saturated_seconds_total", "For how long it was saturated.", "limit"),
		usage:      desc("lease_decided_total", "What instances of other processes decided by their leases, as sums of costs: allowed or refused.", "limit", "outcome"),
		reject:     desc("suppression_reject_fraction", "What instances refuse of what they are asked, 0 to 1, of a limit that is shared by suppression: that of the key with the largest.", "limit"),
	}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.decisions, c.soft, c.unlimited, c.despite, c.build, c.limits, c.reloadOK, c.reloadTime, c.reloads, c.loadErrs,
		c.keys, c.bytes, c.maxBytes, c.overflowed, c.rls, c.rlsShadowed, c.nearLimit, c.repeated,
	} {
		ch <- d
	}
	c.shared.describe(ch)
	c.file.describe(ch)
	c.leases.describe(ch)
	c.security.describe(ch)
	c.cluster.describe(ch)
	c.config.describe(ch)
	c.exceed.describe(ch)
	c.identity.describe(ch)
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	to, f := metrics(ch), c.figures()
	to.gauge(c.build, 1, f.Version)
	to.gauge(c.limits, float64(f.Limits))
	to.truth(c.reloadOK, f.ReloadOK)
	to.gauge(c.reloadTime, f.ReloadTime)
	to.count(c.reloads, f.ReloadAttempts)
	to.count(c.loadErrs, f.ReloadErrors)
	to.gauge(c.keys, float64(f.StoreKeys))
	to.gauge(c.bytes, float64(f.StoreBytes))
	to.gauge(c.maxBytes, float64(f.StoreMaxBytes))
	for id, takes := range f.StoreOverflows {
		to.count(c.overflowed, uint64(takes), id)
	}
	to.count(c.rls, f.RLSOK, "OK")
	to.count(c.rls, f.RLSOverLimit, "OVER_LIMIT")
	to.count(c.rls, f.RLSErrors, "error")
	to.count(c.rlsShadowed, f.RLSShadowed)
	to.count(c.repeated, f.Repeated)
	if f.Shared != nil {
		c.shared.collect(to, f.Shared, f.NotReturned)
	}
	if f.CountsFile != nil {
		c.file.collect(to, f.CountsFile)
	}
	if f.Leases != nil {
		c.leases.collect(to, f.Leases)
	}
	c.security.collect(to, &f.Security)
	c.cluster.collect(to, f.Cluster)
	c.config.collect(to, f.Config)
	c.exceed.collect(to, &f)
	c.identity.collect(to, &f.Identity)
	for i, n := range f.Unlimited {
		if n > 0 {
			to.count(c.unlimited, n, "", engine.Unlimited(i).String())
		}
	}
	for t := range c.tallies() {
		to.count(c.decisions, t.Allowed, t.Limit, "allowed", "")
		if t.Soft > 0 {
			to.count(c.soft, t.Soft, t.Limit)
		}
		if t.NearLimit > 0 {
			to.count(c.nearLimit, t.NearLimit, t.Limit)
		}
		if t.Despite > 0 {
			to.count(c.despite, t.Despite, t.Limit)
		}
		for i, n := range t.Unlimited {
			if n > 0 {
				to.count(c.unlimited, n, t.Limit, engine.Unlimited(i).String())
			}
		}
		for i := range t.Refused {
			reason := limit.Reason(i).String()
			if n := t.Refused[i]; n > 0 {
				to.count(c.decisions, n, t.Limit, "refused", reason)
			}
			if n := t.ShadowRefused[i]; n > 0 {
				to.count(c.decisions, n, t.Limit, "shadow_refused", reason)
			}
			if n := t.Tagged[i]; n > 0 {
				to.count(c.decisions, n, t.Limit, "tagged", reason)
			}
		}
	}
}
