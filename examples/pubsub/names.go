package main

import (
	"hash/fnv"
	"regexp"
)

// wellFormed are the names of accounts and channels. They stand in subjects of NATS, where
// dots, stars and spaces have a meaning.
var wellFormed = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString

// channelName is one channel of one account.
type channelName struct{ Account, Channel string }

func (c channelName) key() string { return c.Account + "/" + c.Channel }

// subject is where its messages go.
func (c channelName) subject() string { return "msg." + c.Account + "." + c.Channel }

// home is the node that gives the messages of a channel their positions: the one of the
// highest hash, so that another list of nodes moves no more channels than it must.
func home(c channelName, nodes []string) string {
	best, name := uint64(0), ""
	for _, node := range nodes {
		h := fnv.New64a()
		_, _ = h.Write([]byte(node + "/" + c.key()))
		// FNV alone leaves names that differ at the end close to each other.
		sum := h.Sum64() * 0x9e3779b97f4a7c15
		sum ^= sum >> 32
		if sum >= best {
			best, name = sum, node
		}
	}
	return name
}
