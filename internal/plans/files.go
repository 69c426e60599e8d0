package plans

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
)

// MaxName is how many bytes the name of a customer has at most.
const MaxName = 512

// maxFaults is how many faults of a file are told.
const maxFaults = 10

// Files are what limits files say of customers.
type Files struct {
	// Plans are the names of those that there are, Default the one of everyone else, and By the attributes that name
	// customers.
	Plans   []string
	Default string
	By      []string
	// From is the path of a CSV file; "" = none. List are customers of the limits file itself, by name.
	From string
	List map[string]string
}

// Read reads the customers of files.
func (d *Directory) Read(f Files) (*View, error) {
	r := &View{dir: d, plans: f.Plans, by: f.By, usual: f.Default, exists: make(map[string]bool, len(f.Plans)), files: newTable(len(f.List)), plain: make(map[string]int64, len(f.Plans))}
	number := make(map[string]uint32, len(f.Plans))
	for i, name := range f.Plans {
		number[name], r.exists[name] = uint32(i), true
	}
	add := func(name, plan, until string) error {
		n, ok := number[plan]
		if !ok {
			return fmt.Errorf("customer %.100q: there is no plan %.100q, want one of %s", name, plan, strings.Join(f.Plans[:min(len(f.Plans), 10)], ", "))
		}
		if err := CheckName(name); err != nil {
			return err
		}
		plan = f.Plans[n] // not a part of a line, which would be kept as well
		h := maphash.String(d.seed, name)
		if _, there := r.files.plan[h]; there {
			return fmt.Errorf("customer %.100q is there twice", name)
		}
		if until == "" {
			r.plain[plan]++
		} else {
			end, err := ParseTime(until)
			if err != nil {
				return fmt.Errorf("customer %.100q: %w", name, err)
			}
			r.files.more[h] = &Assignment{Plan: plan, Until: end}
		}
		r.files.plan[h] = n
		return nil
	}
	if f.From != "" {
		if err := readCSV(f.From, add); err != nil {
			return nil, err
		}
	}
	var faults []error
	for _, name := range slices.Sorted(maps.Keys(f.List)) {
		if err := add(name, f.List[name], ""); err != nil && len(faults) < maxFaults {
			faults = append(faults, fmt.Errorf("plans: customers: %w", err))
		}
	}
	if err := errors.Join(faults...); err != nil {
		return nil, err
	}
	return r, nil
}

// readCSV reads lines of a customer, a plan, and when it ends, which may be left out.
func readCSV(path string, add func(name, plan, until string) error) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("plans: customers: from: %w", err)
	}
	defer file.Close()
	text := bufio.NewReaderSize(file, 64<<10)
	if mark, _ := text.Peek(3); string(mark) == "\ufeff" { // spreadsheets write it
		_, _ = text.Discard(3)
	}
	return readLines(path, text, add)
}

// readLines is readCSV for an open file. Lines without quotes, which are nearly all, are read without a copy.
func readLines(path string, text *bufio.Reader, add func(name, plan, until string) error) error {
	var faults []error
	for line := 1; len(faults) < maxFaults; line++ {
		raw, err := text.ReadSlice('\n')
		whole := raw
		for errors.Is(err, bufio.ErrBufferFull) && len(whole) <= maxLine { // a long one
			whole = append([]byte{}, whole...)
			raw, err = text.ReadSlice('\n')
			whole = append(whole, raw...)
		}
		if err != nil && !errors.Is(err, io.EOF) && len(whole) <= maxLine {
			return errors.Join(append(faults, fmt.Errorf("plans: %s: %w", path, err))...)
		}
		if fault := readLine(whole, line == 1, add); fault != nil {
			faults = append(faults, fmt.Errorf("plans: %s: line %d%w", path, line, fault))
		}
		if err != nil || len(whole) > maxLine {
			break
		}
	}
	return errors.Join(faults...)
}

// maxLine bounds a line of a file of customers: a name of MaxName bytes that is all quotes fits, with its plan and time.
const maxLine = 4 << 10

// readLine reads a customer, a plan, and when it ends. An error begins with a colon or a verb, behind the line's number.
func readLine(raw []byte, first bool, add func(name, plan, until string) error) error {
	if len(raw) > maxLine {
		return fmt.Errorf(" has more than %d bytes, want customer,plan or customer,plan,until", maxLine)
	}
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 || raw[0] == '#' {
		return nil
	}
	var fields []string
	if bytes.IndexByte(raw, '"') < 0 {
		fields = strings.Split(string(raw), ",")
	} else {
		in := csv.NewReader(bytes.NewReader(raw))
		in.FieldsPerRecord, in.TrimLeadingSpace = -1, true
		var err error
		if fields, err = in.Read(); err != nil {
			return errors.New(": its quotes are wrong: a name with a comma or a quote is written as \"a,b\" or \"say \"\"hi\"\"\"")
		}
	}
	if len(fields) < 2 || len(fields) > 3 {
		return fmt.Errorf(" has %d fields, want customer,plan or customer,plan,until", len(fields))
	}
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	if first && fields[0] == "customer" { // a header
		return nil
	}
	until := ""
	if len(fields) == 3 {
		until = fields[2]
	}
	if err := add(fields[0], fields[1], until); err != nil {
		return fmt.Errorf(": %w", err)
	}
	return nil
}

// CheckName returns an error for what cannot be the name of a customer.
func CheckName(name string) error {
	switch {
	case name == "":
		return errors.New("a customer has no name")
	case len(name) > MaxName:
		return fmt.Errorf("the name of a customer has %d bytes, want at most %d", len(name), MaxName)
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '�' }):
		return fmt.Errorf("%.100q cannot be the name of a customer: it has control characters, or is not UTF-8", name)
	}
	return nil
}

// ParseTime reads a time as RFC 3339 has it, or a date, whose midnight UTC it is.
func ParseTime(text string) (time.Time, error) {
	at, err := time.Parse(time.DateOnly, text)
	if err != nil {
		at, err = time.Parse(time.RFC3339, text)
	}
	if err != nil || at.Year() < 1970 {
		return time.Time{}, fmt.Errorf("%.100q is no time from 1970 on: write 2026-12-31, which is its midnight UTC, or 2026-12-31T18:00:00+01:00", text)
	}
	return at, nil
}
