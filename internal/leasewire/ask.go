package leasewire

import (
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
)

// MaxAsks is how many questions one message has. With keys of the usual length they are some 60 KB.
const MaxAsks = 1000

// ErrAsks is wrapped by the errors about questions and answers.
var ErrAsks = errors.New("the questions cannot be answered")

// ToAsks translates questions.
func ToAsks(asks []lease.Ask) *leasepb.Asks {
	m := &leasepb.Asks{Asks: make([]*leasepb.Question, len(asks))}
	room := make([]leasepb.Question, len(asks))
	for i := range asks {
		q, a := &room[i], &asks[i]
		q.Limit, q.Key, q.Cost, q.Peek = a.Resource.Limit, []byte(a.Resource.Key), int64(a.Cost), a.Peek
		m.Asks[i] = q
	}
	return m
}

// FromAsks translates questions that came from outside. An error says what is out of range.
func FromAsks(m *leasepb.Asks) ([]lease.Ask, error) {
	if n := len(m.GetAsks()); n > MaxAsks {
		return nil, fmt.Errorf("leasewire: %w: there are %d, want at most %d", ErrAsks, n, MaxAsks)
	}
	asks := make([]lease.Ask, len(m.GetAsks()))
	for i, q := range m.GetAsks() {
		cost := fixed.Amount(q.GetCost())
		if len(q.GetLimit()) > MaxLimitName || len(q.GetKey()) > MaxMemberKey || cost > fixed.MaxAmount || cost < -fixed.MaxAmount {
			return nil, fmt.Errorf("leasewire: %w: number %d has a limit of %d bytes, a key of %d and a cost of %v", ErrAsks, i, len(q.GetLimit()), len(q.GetKey()), cost)
		}
		asks[i] = lease.Ask{Resource: lease.ResourceID{Limit: q.GetLimit(), Key: string(q.GetKey())}, Cost: cost, Peek: q.GetPeek()}
	}
	return asks, nil
}

// ToAnswers translates answers.
func ToAnswers(answers []lease.Answer) *leasepb.Answers {
	m := &leasepb.Answers{Answers: make([]*leasepb.Answer, len(answers))}
	room := make([]leasepb.Answer, len(answers))
	for i := range answers {
		a, b := &answers[i], &room[i]
		b.Decided, b.Admitted, b.Tokens, b.RetryAfter, b.ResetAfter = a.Decided, a.Admitted, int64(a.Tokens), int64(a.RetryAfter), int64(a.ResetAfter)
		m.Answers[i] = b
	}
	return m
}

// FromAnswers translates the answers to so many questions.
func FromAnswers(m *leasepb.Answers, questions int) ([]lease.Answer, error) {
	if n := len(m.GetAnswers()); n != questions {
		return nil, fmt.Errorf("leasewire: %w: %d answers to %d questions", ErrAsks, n, questions)
	}
	answers := make([]lease.Answer, questions)
	for i, a := range m.GetAnswers() {
		answers[i] = lease.Answer{
			Decided: a.GetDecided(), Admitted: a.GetAdmitted(), Tokens: fixed.Amount(a.GetTokens()),
			RetryAfter: max(0, time.Duration(a.GetRetryAfter())), ResetAfter: max(0, time.Duration(a.GetResetAfter())),
		}
	}
	return answers, nil
}
