package rules

import "github.com/stint-io/stint/internal/document"

// File is a limits file in memory.
type File struct {
	Name string // stands for it in errors
	Text []byte
}

// Read reads limits files, and those of folders, as [Load] would, and compiles nothing. Of a file that
// is too large to be compiled it returns the beginning. The error is an [Errors] with every file
// that cannot be read.
func Read(paths ...string) ([]File, error) {
	sources, found := gather(paths)
	if err := errorsOf(found); err != nil {
		return nil, err
	}
	files := make([]File, len(sources))
	for i, s := range sources {
		files[i] = File{s.name, s.src}
	}
	return files, nil
}

// Compile compiles files from memory, all together, as [Options.Load] does those of the disk.
func (o Options) Compile(files ...File) (*Set, error) {
	sources, found := make([]source, len(files)), new(document.Faults)
	for i, f := range files {
		sources[i] = source{f.Name, f.Text}
	}
	if len(files) == 0 {
		found.Add(document.Fault{Message: "rules: no limit files given", Hint: "name a file or a folder"})
	}
	return o.compile(sources, found)
}
