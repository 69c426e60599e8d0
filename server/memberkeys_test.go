package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/gen/memberpb"
)

// changed is the answer to a change of a key.
type changed struct {
	Used, Remaining, Quota, Granted, Changed int64
	Repeated                                 bool
	Members                                  []struct {
		Member  string
		Used    int64
		Changed int64
	}
	Unreached []string
}

// change asks the admin port for a change of anna's key.
func (s *service) change(action, id string) (code int, c changed, body string) {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.admin+"/v1/admin/keys/"+action+"&limit=month&key=customer%3Danna", nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if id != "" {
		req.Header.Set("Idempotency-Key", id)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		s.t.Fatal(err)
	}
	defer resp.Body.Close()
	var raw json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&raw); err != nil {
		s.t.Fatal(err)
	}
	_ = json.Unmarshal(raw, &c) // of an error there is less
	return resp.StatusCode, c, string(raw)
}

// quotaOf waits until the member admits by a quota.
func (s *service) quotaOf(want int64) {
	s.t.Helper()
	body := ""
	for begun := time.Now(); time.Since(begun) < 30*time.Second; <-time.After(50 * time.Millisecond) {
		body = s.do(http.MethodGet, s.admin+"/v1/admin/keys?limit=month&key=customer%3Danna", "").body
		if strings.Contains(body, fmt.Sprintf(`"quota":%d,`, want)) {
			return
		}
	}
	s.t.Errorf("no quota of %d: %s", want, body)
}

// TestChangesHoldAtAllMembers: a grant raises the quota of each member, a refund gives back what was taken wherever that
// was and no more, a reset is for all; a request ID counts once, at whichever member it comes.
func TestChangesHoldAtAllMembers(t *testing.T) {
	t.Parallel()
	etcd := etcdtest.Start(t)
	var members []*service
	for i := range 3 {
		members = append(members, start(t, monthOfMembers, joins("etcd://"+etcd.Addr()+"/keys", fmt.Sprint("n", i))))
	}
	for _, s := range members { // they know each other once they have each other's usage
		s.takes("anna", "100")
	}
	for _, s := range members {
		s.usageBecomes("anna", "300,300,0")
	}
	code, c, body := members[0].change("refund?amount=250", "r1")
	if code != http.StatusOK || c.Changed != 250 || c.Used != 0 || len(c.Members) != 2 || c.Members[0].Changed != 100 || c.Members[1].Changed != 50 || c.Unreached != nil {
		t.Fatalf("%d %s", code, body)
	}
	if code, c, body = members[2].change("refund?amount=250", "r1"); code != http.StatusOK || !c.Repeated || c.Changed != 250 {
		t.Errorf("the same at another member: %d %s", code, body)
	}
	if code, _, body = members[1].change("refund?amount=99", "r1"); code != http.StatusConflict {
		t.Errorf("another change by the same ID at another member: %d %s", code, body)
	}
	if code, c, body = members[1].change("refund?amount=1000", "r2"); code != http.StatusOK || c.Changed != 50 {
		t.Errorf("more than was taken: %d %s", code, body)
	}
	for _, s := range members {
		s.usageBecomes("anna", "0,300,300")
	}

	// Two members are asked for the same, and for different things by one ID, at once.
	var all sync.WaitGroup
	answers := make([]int, 3)
	for i, s := range members {
		all.Go(func() { answers[i], _, _ = s.change(fmt.Sprintf("grant?amount=%d", 10+i), "g1") })
	}
	all.Wait()
	good, other := 0, 0
	for _, code := range answers {
		switch code {
		case http.StatusOK:
			good++
		case http.StatusConflict:
			other++
		}
	}
	if good != 1 || other != 2 {
		t.Errorf("one ID for three changes at three members: %v", answers)
	}
	if code, _, body = members[0].change("grant?amount=985", "g2"); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	if code, _, body = members[2].change("grant?amount=50", "g3"); code != http.StatusBadRequest || !strings.Contains(body, "1000 is the most") {
		t.Errorf("above the cap, of what another member granted: %d %s", code, body)
	}
	_, c, _ = members[0].change("reset?", "")
	for _, s := range members {
		s.quotaOf(1000)
	}
	if len(c.Members) != 2 {
		t.Errorf("%+v", c)
	}
	if code, _, body = members[1].change("grant?amount=200", "g4"); code != http.StatusOK {
		t.Errorf("%d %s", code, body)
	}
	for _, s := range members {
		s.quotaOf(1200)
		s.takes("anna", "1200")
	}
	if code, c, body = members[2].change("reset?", "x"); code != http.StatusOK || c.Changed != 3600 {
		t.Errorf("%d %s", code, body)
	}
	for _, s := range members {
		s.takes("anna", "1000")
	}
}

// TestChangesThatCannotBe: what a member cannot do is refused and changes nothing; leases say of no key what it used; a member
// that is gone is named.
func TestChangesThatCannotBe(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	t.Parallel()
	etcd := etcdtest.Start(t)
	s := start(t, monthOfMembers, joins("etcd://"+etcd.Addr()+"/cannot", "a"))
	s.takes("anna", "10")
	to, anna := memberpb.NewMembersClient(s.conn), []*memberpb.Attribute{{Name: []byte("customer"), Value: []byte("anna")}}
	for _, bad := range []struct {
		m    *memberpb.KeyChange
		code codes.Code
	}{
		{&memberpb.KeyChange{}, codes.InvalidArgument},
		{&memberpb.KeyChange{Action: "grant", Limit: "month", Attributes: anna, Amount: 5}, codes.InvalidArgument},
		{&memberpb.KeyChange{Action: "reset", Limit: "nothing", Attributes: anna}, codes.NotFound},
		{&memberpb.KeyChange{Action: "reset", Limit: "month", Attributes: []*memberpb.Attribute{nil}}, codes.InvalidArgument},
		{&memberpb.KeyChange{Action: "refund", Limit: "month", Attributes: anna, Amount: -5}, codes.InvalidArgument},
	} {
		if _, err := to.Change(t.Context(), bad.m); status.Code(err) != bad.code {
			t.Errorf("%v: %v, want %v", bad.m, err, bad.code)
		}
	}
	s.usageBecomes("anna", "10,10,0")
	leasing := start(t, strings.Replace(clusterLimits, "name: day, key: [user]", "name: month, key: [customer]", 1))
	if code, _, body := leasing.change("refund?amount=5", ""); code != http.StatusBadRequest || !strings.Contains(body, "lent") {
		t.Errorf("%d %s", code, body)
	}
}
