package x

import "testing"

func TestByTest(t *testing.T) { ByTest() }
