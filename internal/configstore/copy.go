package configstore

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// CopyName returns the name of the file in dir that has a copy of the version which was in force last,
// of the configuration at that place. Configurations of several places do not mix.
func CopyName(dir, place string) string {
	sum := sha256.Sum256([]byte(place))
	return filepath.Join(dir, "config-"+hex.EncodeToString(sum[:6])+".json")
}

// WriteCopy keeps a copy of v for a start without the register. Its folder is made where it is missing,
// for its owner alone.
func WriteCopy(name string, v *Version) error {
	text, err := marshal(v)
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return fmt.Errorf("config: %w", err)
	}
	// Several processes may share a folder, and write the same.
	f, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return fmt.Errorf("config: %w", err)
	}
	_, err = f.Write(text)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("config: %w", err)
	}
	return nil
}

// ReadCopy returns the version that was copied. name "" = there is none.
func ReadCopy(name string) (Version, error) {
	if name == "" {
		return Version{}, ErrNone
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return Version{}, fmt.Errorf("config: %w", err)
	}
	var m Meta
	if err := json.Unmarshal(text, &m); err != nil {
		return Version{}, fmt.Errorf("config: the copy %s cannot be read: %w", name, err)
	}
	return decode(text, m)
}
