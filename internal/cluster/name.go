package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ErrNameTaken is the error of AwaitName when another process is the member of that name.
var ErrNameTaken = errors.New("cluster: another process is a member of this name")

// AwaitName returns when a process may take part as Self, and takes the name: of several processes that start at
// the same moment one gets it. It is for a start, before Presence.Run.
//
// A record with the address of Self is of a former run: two processes do not listen at one address. A
// record with another address may be of a process that was killed: AwaitName watches it for as long as
// a member is silent before it counts as dead. If the record changes meanwhile, its process lives, and
// the error wraps ErrNameTaken. Any other error says that the register does not answer.
func AwaitName(ctx context.Context, o PresenceOptions) error {
	o.complete()
	key := presencePrefix + escape(o.Self.ID)
	value, err := json.Marshal(o.Self)
	if err != nil {
		return err
	}
	revision, err := awaitSilence(ctx, &o, key)
	if err != nil {
		return err
	}
	if _, err = o.Register.Swap(ctx, key, revision, value); errors.Is(err, ErrChanged) {
		return fmt.Errorf("%w: %q, which started at the same moment", ErrNameTaken, o.Self.ID)
	}
	return err
}

// awaitSilence returns the revision of the record of a name when no process that lives has written it; 0 = there
// is none.
func awaitSilence(ctx context.Context, o *PresenceOptions, key string) (revision uint64, err error) {
	first, err := o.Register.Read(ctx, key)
	if err != nil || first.Revision == 0 {
		return 0, err
	}
	var other Member
	if json.Unmarshal(first.Value, &other) == nil && other.Address == o.Self.Address {
		return first.Revision, nil
	}
	o.Logger.Info("the name of this member is in the register: the start waits until it is known whether its process lives", "node", o.Self.ID, "address", other.Address, "at_most", silentTimes*o.Every)
	tick := time.NewTicker(o.Every / 2)
	defer tick.Stop()
	// From after the read on, since the record may have been written just before it.
	for begun := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		record, err := o.Register.Read(ctx, key)
		switch {
		case err != nil:
			return 0, err
		case record.Revision == 0:
			return 0, nil // its process has ended
		case record.Revision != first.Revision:
			return 0, fmt.Errorf("%w: %q at %q", ErrNameTaken, o.Self.ID, other.Address)
		case time.Since(begun) >= silentTimes*o.Every:
			return first.Revision, nil
		}
	}
}
