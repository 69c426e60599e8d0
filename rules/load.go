package rules

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/document"
)

// Options are the settings of Envoy's rate limit service that change how files in its format are
// understood. The zero value has that service's defaults.
type Options struct {
	// MergeDomains lets several files have the same domain: their rules are merged, in the
	// order of the files. Without it that is a fault.
	MergeDomains bool

	// CountAdmitted makes rules, and limits that come with requests, count admitted
	// requests only. Without it they count refused ones as well.
	CountAdmitted bool
}

// Load is like the function of that name.
func (o Options) Load(paths ...string) (*Set, error) {
	sources, faults := gather(paths)
	return o.compile(sources, faults)
}

// Parse is like the function of that name.
func (o Options) Parse(name string, src []byte) (*Set, error) {
	return o.compile([]source{{name, src}}, new(document.Faults))
}

// Load compiles the limits of files and folders, all together. From a folder it
// takes the files named *.yaml and *.yml that are not hidden, sorted by name; it
// does not descend. A file met twice is read once.
//
// The error is an [Errors] with every fault in all files. Load reads everything before it
// compiles anything, so a Set is never partial.
func Load(paths ...string) (*Set, error) { return Options{}.Load(paths...) }

// Parse compiles one file from memory; name stands for it in errors.
func Parse(name string, src []byte) (*Set, error) { return Options{}.Parse(name, src) }

// maxDepth bounds the nesting of a file, and of an expression. Envoy's descriptors
// nest a handful deep.
const maxDepth = 64

// bounds are those of one file.
var bounds = document.Bounds{
	// Not larger: parsing takes about half a second at this size, during which a
	// reload holds a core. Not smaller: a hundred thousand short limits fit.
	Bytes:   4 << 20,
	Smaller: "split it into several files",

	Depth: maxDepth,

	// No map needs more than the known keys and some attributes, and few anchors are needed.
	Keys:    1000,
	Anchors: 1000,
	Aliased: 1 << 18,
}

// source is a file's content.
type source struct {
	name string
	src  []byte
}

// fingerprint identifies the content of all files of a Set.
type fingerprint [sha256.Size]byte

func fingerprintOf(sources []source, found *document.Faults) fingerprint {
	h := sha256.New()
	part := func(s string) {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(s))))
		io.WriteString(h, s)
	}
	for _, s := range sources {
		part(s.name)
		part(string(s.src))
	}
	for _, f := range found.Sorted() {
		part(Error(f).Error())
	}
	return fingerprint(h.Sum(nil))
}

func (o Options) compile(sources []source, found *document.Faults) (*Set, error) {
	content := fingerprintOf(sources, found)
	b := newBuilder(found)
	b.set.options = o
	for _, s := range sources {
		before, limits := found.Count(), len(b.set.limits)
		d := &file{document.Read(s.name, s.src, bounds, found)}
		switch {
		case found.Count() > before:
		case d.Root == nil || d.Root.Kind == document.Null:
			d.Fault(nil, "begin with limits: for stint's format, or with domain: for Envoy's", "the file is empty")
		case isEnvoy(d.Root):
			b.envoy(d)
		case isArmor(d.Root):
			b.armor(d)
		default:
			b.native(d)
		}
		if found.Count() == before && len(b.set.limits) == limits && (isEnvoy(d.Root) || d.Root.Get("limits") != nil || !slices.ContainsFunc(d.Root.Fields, func(f document.Field) bool { return contains(settingKeys, f.Key.Text) })) {
			b.warn(d, d.Root, "", "the file has no limits, so nothing is limited by it")
		}
	}
	set, err := b.finish()
	if err != nil {
		return nil, err
	}
	set.content = content
	return set, nil
}

// gather reads all files. A file that cannot be read is a fault.
func gather(paths []string) ([]source, *document.Faults) {
	found := new(document.Faults)
	if len(paths) == 0 {
		found.Add(document.Fault{Message: "rules: no limit files given", Hint: "name a file or a folder"})
	}
	var out []source
	seen := make(map[string]bool)
	for _, path := range paths {
		for _, name := range filesIn(path, found) {
			if abs, err := filepath.Abs(name); err == nil {
				if seen[abs] {
					continue
				}
				seen[abs] = true
			}
			src, err := readBounded(name)
			if err != nil {
				found.Add(document.Fault{File: name, Message: plainError(err)})
				continue
			}
			out = append(out, source{name, src})
		}
	}
	return out, found
}

// filesIn returns the path itself, or the limit files of a folder.
func filesIn(path string, found *document.Faults) []string {
	info, err := os.Stat(path)
	if err != nil {
		found.Add(document.Fault{File: path, Message: plainError(err)})
		return nil
	}
	if !info.IsDir() {
		return []string{path}
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		found.Add(document.Fault{File: path, Message: plainError(err)})
		return nil
	}
	var out []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if strings.HasPrefix(e.Name(), ".") || ext != ".yaml" && ext != ".yml" {
			continue
		}
		name := filepath.Join(path, e.Name())
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			continue
		}
		out = append(out, name)
	}
	if len(out) == 0 {
		found.Add(document.Fault{File: path, Message: "folder has no limit files", Hint: "limit files are named *.yaml or *.yml"})
	}
	slices.Sort(out)
	return out
}

func readBounded(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte more than allowed is enough for the fault; the rest is not read.
	src, err := io.ReadAll(io.LimitReader(f, int64(bounds.Bytes)+1))
	if err != nil {
		return nil, err
	}
	return src, nil
}

// plainError leaves out the path, which stands before the message anyway.
func plainError(err error) string {
	if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
		return fmt.Sprintf("cannot %s: %v", pe.Op, pe.Err)
	}
	return err.Error()
}
