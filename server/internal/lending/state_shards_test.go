package lending

import (
	"fmt"
	"sync"
	"testing"
)

// TestShardsHaveTheirOwnEpochs: of each coordinator of a process its own latest epoch is known at the next start, also
// where all go up at once, and nothing of one that never led.
func TestShardsHaveTheirOwnEpochs(t *testing.T) {
	dir := t.TempDir()
	for start := range uint64(3) {
		st, err := OpenMemberState(dir, 0)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for shard := range uint64(4) {
			want := uint64(0)
			if start > 0 && shard < 3 {
				want = start*100 - shard
			}
			if got := st.of(fmt.Sprint(shard)).former; got != want {
				t.Errorf("start %d, shard %d: epoch %d, want %d", start, shard, got, want)
			}
		}
		for shard := range uint64(3) {
			all.Go(func() {
				if err := st.RaiseOf(fmt.Sprint(shard), (start+1)*100-shard); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if err := st.Close(false, nil); err != nil {
			t.Fatal(err)
		}
	}
}
