package audit_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/audit"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// The latest change comes first, also over pages; a filter shows one thing alone.
func TestList(t *testing.T) {
	now := limit.At(time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC))
	clock := func() limit.Time { now = now.Add(time.Second); return now }
	log := audit.New(records.New(clock, 0), clock, 0)
	for i := range 25 {
		e, err := log.Note(t.Context(), audit.Entry{Who: "jo", Action: "customer.set", What: fmt.Sprint("customer ", i%5), After: fmt.Sprint(i)})
		if err != nil || e.ID == "" || e.At.IsZero() {
			t.Fatal(e, err)
		}
	}
	var got []string
	for after := ""; ; {
		list, next, err := log.List(t.Context(), "", after, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			got = append(got, e.After)
		}
		if after = next; after == "" {
			break
		}
	}
	if len(got) != 25 || got[0] != "24" || got[24] != "0" {
		t.Fatal(got)
	}
	list, _, err := log.List(t.Context(), "customer 3", "", 100)
	if err != nil || len(list) != 5 || list[0].After != "23" || list[0].Who != "jo" {
		t.Fatal(list, err)
	}
}

// Entries of one instant do not replace each other.
func TestSameInstant(t *testing.T) {
	clock := func() limit.Time { return limit.Time(1e18) }
	log := audit.New(records.New(clock, 0), clock, 0)
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() {
			if _, err := log.Note(t.Context(), audit.Entry{Action: "a", What: "b"}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	list, next, err := log.List(t.Context(), "", "", 1000)
	if err != nil || next != "" || len(list) != 200 {
		t.Fatal(len(list), next, err)
	}
	slices.SortFunc(list, func(a, b audit.Entry) int { return strings.Compare(a.ID, b.ID) })
	if n := len(slices.Compact(list)); n != 200 {
		t.Fatal(n)
	}
}

// Notes end, long texts are cut, nameless changes and a full table are errors.
func TestBounds(t *testing.T) {
	now := limit.Time(1e18)
	clock := func() limit.Time { return now }
	log := audit.New(records.New(clock, 10_000), clock, time.Hour)
	long := strings.Repeat("é", audit.MaxText)
	e, err := log.Note(t.Context(), audit.Entry{Action: "a", What: "b", After: long + "x"})
	if err != nil || len(e.After) > audit.MaxText {
		t.Fatal(len(e.After), err)
	}
	if _, err := log.Note(t.Context(), audit.Entry{What: "b"}); err == nil {
		t.Error("a change without an action was noted")
	}
	for range 10 {
		_, err = log.Note(t.Context(), audit.Entry{Action: "a", What: "b", After: long})
	}
	if !errors.Is(err, store.ErrFull) {
		t.Error(err)
	}
	now = now.Add(2 * time.Hour)
	if list, _, err := log.List(t.Context(), "", "", 10); err != nil || len(list) != 0 {
		t.Error(list, err)
	}
}
