package durable

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// What has changed is written as one value, the journal's next, since to put each of a hundred thousand keys into
// its place in a tree takes longer than the bound leaves. When a journal is long its newest states are folded into
// the tree, in the order of the keys and in parts, between other writes. A crash in between loses nothing: the
// journal is removed last, and to fold it again changes nothing.

const (
	// longJournal is from how many bytes on a journal is folded. Not longer: a start reads it into memory. Not
	// shorter: what is folded costs a hundred times as much as what is appended.
	longJournal = 16 << 20
	// folded bounds the states of one transaction, so that counts wait for ten milliseconds or so.
	folded = 4000
)

var errJournal = errors.New("an entry of its journal is cut off")

// fileKey is the key of a state in the tree, where a key may not be empty.
func fileKey(key []byte) []byte { return append([]byte{'k'}, key...) }

// writeJournal appends the states that keys have in memory.
func (s *Store) writeJournal(b *bolt.Bucket, c *counters, keys []string) error {
	states, err := s.states(c, keys)
	if err != nil {
		return err
	}
	return appendJournal(b, c, states)
}

// states returns the states that keys have in memory, as an entry of the journal; an empty one says that the key is as
// good as new.
func (s *Store) states(c *counters, keys []string) ([]byte, error) {
	value := make([]byte, 0, 64*len(keys))
	var state []byte
	var err error
	for _, key := range keys {
		if state, err = s.Store.Export(c.Counters, []byte(key), state[:0]); err != nil {
			return nil, err
		}
		value = binary.AppendUvarint(value, uint64(len(key)))
		value = append(value, key...)
		value = append(value, byte(len(state)))
		value = append(value, state...)
	}
	return value, nil
}

func appendJournal(b *bolt.Bucket, c *counters, states []byte) error {
	journal, err := b.CreateBucketIfNotExists(journalKey)
	if err != nil {
		return err
	}
	number, err := journal.NextSequence()
	if err != nil {
		return err
	}
	c.journal.Add(int64(len(states)))
	return journal.Put(binary.BigEndian.AppendUint64(nil, number), states)
}

// journalBytes is about how many bytes a journal has.
func journalBytes(b *bolt.Bucket) (n int64) {
	if journal := b.Bucket(journalKey); journal != nil {
		n = int64(journal.Stats().LeafInuse)
	}
	return n
}

// newest returns the newest state of each key in a journal, and the numbers of its values.
func newest(journal *bolt.Bucket) (states map[string][]byte, numbers [][]byte, err error) {
	states = make(map[string][]byte)
	if journal == nil {
		return states, nil, nil
	}
	err = journal.ForEach(func(number, value []byte) error {
		numbers = append(numbers, bytes.Clone(number))
		for len(value) > 0 {
			length, n := binary.Uvarint(value)
			if n <= 0 || length > uint64(len(value)-n) || uint64(len(value)-n)-length < 1 {
				return errJournal
			}
			key := value[n : n+int(length)]
			value = value[n+int(length):]
			size := int(value[0])
			if size > len(value)-1 {
				return errJournal
			}
			states[string(key)] = bytes.Clone(value[1 : 1+size])
			value = value[1+size:]
		}
		return nil
	})
	return states, numbers, err
}

// eachState goes through the states of a limit, in the tree and in the journal.
func eachState(b *bolt.Bucket, put func(key, state []byte) error) error {
	states, _, err := newest(b.Bucket(journalKey))
	if err != nil {
		return err
	}
	if tree := b.Bucket(statesKey); tree != nil {
		err := tree.ForEach(func(key, state []byte) error {
			if len(key) == 0 {
				return errors.New("a key of its states is empty")
			}
			if _, newer := states[string(key[1:])]; newer {
				return nil
			}
			return put(key[1:], state)
		})
		if err != nil {
			return err
		}
	}
	for key, state := range states {
		if len(state) == 0 {
			continue
		}
		if err := put([]byte(key), state); err != nil {
			return err
		}
	}
	return nil
}

// fold folds the journals that are long, until ctx ends.
func (w *writer) fold(ctx context.Context) {
	w.store.mu.RLock()
	var long []*counters
	for _, c := range w.store.counters {
		if c.journal.Load() >= longJournal {
			long = append(long, c)
		}
	}
	w.store.mu.RUnlock()
	for _, c := range long {
		if err := w.foldOne(ctx, c); err != nil {
			w.store.opts.Logger.Error("the file grows: its journal cannot be folded", "file", w.store.opts.Path, "limit", c.id, "error", err)
			return
		}
	}
}

func (w *writer) foldOne(ctx context.Context, c *counters) error {
	var states map[string][]byte
	var numbers [][]byte
	of := func(tx *bolt.Tx) *bolt.Bucket { return tx.Bucket(countersBucket).Bucket([]byte(c.id)) }
	w.mu.Lock()
	policy := c.policy
	err := guarded(func() error {
		return w.store.db.View(func(tx *bolt.Tx) (err error) {
			states, numbers, err = newest(of(tx).Bucket(journalKey))
			return err
		})
	})
	w.mu.Unlock()
	keys := slices.Sorted(maps.Keys(states)) // neighbours are on one page
	for err == nil && len(numbers) > 0 {
		if ctx.Err() != nil {
			return nil
		}
		part := keys[:min(folded, len(keys))]
		keys = keys[len(part):]
		w.mu.Lock()
		if c.policy != policy {
			w.mu.Unlock()
			return nil // the states have been written anew
		}
		err = guarded(func() error {
			return w.store.db.Update(func(tx *bolt.Tx) error {
				return foldPart(of(tx), part, states, numbers, len(keys) == 0)
			})
		})
		if err == nil && len(keys) == 0 {
			c.journal.Store(0)
			numbers = nil
		}
		w.mu.Unlock()
		if err == nil {
			err = w.flush() // what has changed meanwhile does not wait for all parts
		}
	}
	return err
}

// foldPart puts the states of some keys into the tree, and with the last of them removes the journal's values.
func foldPart(b *bolt.Bucket, keys []string, states map[string][]byte, numbers [][]byte, last bool) error {
	tree, err := b.CreateBucketIfNotExists(statesKey)
	if err != nil {
		return err
	}
	for _, key := range keys {
		if state := states[key]; len(state) > 0 {
			err = tree.Put(fileKey([]byte(key)), state)
		} else {
			err = tree.Delete(fileKey([]byte(key)))
		}
		if err != nil {
			return err
		}
	}
	if !last {
		return nil
	}
	journal := b.Bucket(journalKey)
	for _, number := range numbers {
		if err := journal.Delete(number); err != nil {
			return err
		}
	}
	return nil
}
