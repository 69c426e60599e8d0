package keyadmin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/store"
)

const (
	// RequestsTable has what was asked for by request ID.
	RequestsTable = "requests"
	// keepRequests is how long a request ID is remembered: a week. Not shorter: who retries after a weekend
	// must not grant twice.
	keepRequests = 7 * 24 * time.Hour
	maxRequestID = 200
)

// The errors about a request ID.
var (
	// ErrConflict says that the ID was used for something else.
	ErrConflict = errors.New("the request ID was used for something else: choose another one")
	// ErrUnfinished says that a request with the ID has begun and that nobody knows how it ended.
	ErrUnfinished = errors.New("a request with this ID has begun and not ended, so it may have been done or not: look at the key, and ask with another ID if it was not")
)

// request is what stands under an ID.
type request struct {
	Hash string `json:"hash"` // of what is asked for
	By   string `json:"by"`   // different for each attempt
	Done *State `json:"done,omitempty"`
}

// once does what is asked for by an ID a single time. Asked again, it answers what it answered then.
//
// The ID is written before and after: whoever dies in between leaves it unfinished, and it is not done again,
// for a grant that is given twice is worse than one that has to be asked for anew.
func (k *Keys) once(ctx context.Context, id string, what any, do func() (State, error)) (State, error) {
	if id == "" {
		return do()
	}
	if len(id) > maxRequestID {
		return State{}, fmt.Errorf("keyadmin: %w: the request ID has %d bytes, want at most %d", ErrBadRequest, len(id), maxRequestID)
	}
	text, err := json.Marshal(what)
	if err != nil {
		return State{}, fmt.Errorf("keyadmin: %w", err)
	}
	sum := sha256.Sum256(text)
	begun := request{Hash: hex.EncodeToString(sum[:16]), By: rand.Text()}
	begins, err := json.Marshal(begun)
	if err != nil {
		return State{}, fmt.Errorf("keyadmin: %w", err)
	}
	first, present, err := k.opts.Requests.Swap(ctx, RequestsTable, id, nil, begins, keepRequests)
	if err != nil {
		// It may be noted all the same, by this attempt, which does not go on.
		_, _, _ = k.opts.Requests.Swap(context.WithoutCancel(ctx), RequestsTable, id, begins, nil, 0)
		return State{}, fmt.Errorf("keyadmin: nothing was done: the request ID cannot be noted: %w", err)
	}
	if !first {
		var was request
		switch {
		case json.Unmarshal(present, &was) != nil || was.Hash != begun.Hash:
			return State{}, fmt.Errorf("keyadmin: %w", ErrConflict)
		case was.Done == nil:
			return State{}, fmt.Errorf("keyadmin: %w", ErrUnfinished)
		}
		was.Done.Repeated = true
		return *was.Done, nil
	}
	s, err := do()
	if err != nil {
		// What failed without a doubt may be asked for again.
		if !errors.Is(err, store.ErrUnavailable) {
			_, _, gone := k.opts.Requests.Swap(ctx, RequestsTable, id, begins, nil, 0)
			err = errors.Join(err, gone)
		}
		return s, err
	}
	begun.Done = &s
	ends, err := json.Marshal(begun)
	if err == nil {
		_, _, err = k.opts.Requests.Swap(ctx, RequestsTable, id, begins, ends, keepRequests)
	}
	if err != nil {
		k.opts.Logger.Warn("a change was made and its request ID is not noted as done", "id", id, "err", err)
	}
	return s, nil
}
