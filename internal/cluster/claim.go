package cluster

import (
	"encoding/json"
	"fmt"
	"time"
)

// leaderPrefix begins the keys of the records of leaders; the scope follows.
const leaderPrefix = "leader/"

// Leader is what the record of a scope's leader says.
type Leader struct {
	Scope    string
	Member   Member
	Epoch    uint64
	TTL      time.Duration
	Resigned bool // it gave the term up

	// Alive says that the record was renewed while a survey watched it.
	Alive bool
}

// claim is the value of a leader's record. It is JSON, for people who read the backend and for
// versions that add fields.
type claim struct {
	Epoch   uint64 `json:"epoch"`
	ID      string `json:"id"`
	Address string `json:"address,omitempty"`

	// Run is one run of an election. It differs from that of every other, also of the same member,
	// so that a restarted member does not take a predecessor's record for its own.
	Run string `json:"run"`

	// Write numbers the records of a run. A leader that does not know whether a renewal was written
	// reads the record and knows it by its number.
	Write uint64 `json:"write"`

	// TTLMillis is the leader's TTL. Members may be configured differently during a deployment, and
	// what counts is how long this leader believes that it leads.
	TTLMillis int64 `json:"ttl_ms"`

	Resigned bool   `json:"resigned,omitempty"`
	State    []byte `json:"state,omitempty"`

	// Lost says that State may be older than what a leader published last.
	Lost bool `json:"lost,omitempty"`

	// Unled is set until the term's leader publishes something: State is what the term before left.
	Unled *unled `json:"unled,omitempty"`
}

// unled is the term before one in which nothing was published.
type unled struct {
	Epoch uint64 `json:"epoch"` // 0 = there was none
	Clean bool   `json:"clean,omitempty"`
}

func (c *claim) ttl() time.Duration { return time.Duration(c.TTLMillis) * time.Millisecond }

// millis rounds up: what others wait must not be shorter than the term.
func millis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func (c *claim) member() Member { return Member{ID: c.ID, Address: c.Address} }

func (c *claim) leader(scope string) Leader {
	return Leader{Scope: scope, Member: c.member(), Epoch: c.Epoch, TTL: c.ttl(), Resigned: c.Resigned}
}

func (c *claim) encode() []byte {
	b, err := json.Marshal(c)
	if err != nil {
		panic(fmt.Sprintf("cluster: a claim has no JSON: %v", err)) // it has only numbers, texts and bytes
	}
	return b
}

// maxTTLMillis bounds what a record may say, so that a damaged one cannot overflow a duration. An
// hour is far above any TTL of use.
const maxTTLMillis = int64(time.Hour / time.Millisecond)

// maxEpoch leaves room above it, so that a damaged record is not remembered as the highest epoch: epochs
// are nanoseconds since 1970 where they come from a clock, and this one is in 2116.
const maxEpoch = 1 << 62

func decodeClaim(value []byte) (*claim, error) {
	c := &claim{}
	if err := json.Unmarshal(value, c); err != nil {
		return nil, fmt.Errorf("cluster: the leader's record is not understood: %w", err)
	}
	if c.Run == "" || c.Epoch == 0 || c.Epoch > maxEpoch || c.TTLMillis <= 0 || c.TTLMillis > maxTTLMillis {
		return nil, fmt.Errorf("cluster: the leader's record is not understood: run %q, epoch %d, ttl_ms %d", c.Run, c.Epoch, c.TTLMillis)
	}
	return c, nil
}
