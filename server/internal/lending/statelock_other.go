//go:build !unix

package lending

import "os"

// lockFile does nothing where files cannot be locked: that a directory is used once is then for
// the operator to see to.
func lockFile(*os.File) error { return nil }
