package document

import (
	"fmt"
	"strings"
	"testing"
)

var small = Bounds{Bytes: 200, Depth: 5, Keys: 4, Anchors: 3, Aliased: 10, Smaller: "write less"}

// text reads src and writes what is in it on one line, each value with its place.
func text(src string, bounds Bounds) (string, []Fault) {
	d := Read("x.yaml", []byte(src), bounds, new(Faults))
	var b strings.Builder
	var write func(n *Node)
	write = func(n *Node) {
		fmt.Fprintf(&b, "%d:%d", n.Line, n.Column)
		switch n.Kind {
		case Map:
			b.WriteString("{")
			for _, f := range n.Fields {
				write(f.Key)
				b.WriteString(" ")
				write(f.Value)
				b.WriteString(";")
			}
			b.WriteString("}")
		case List:
			b.WriteString("[")
			for _, item := range n.Items {
				write(item)
				b.WriteString(";")
			}
			b.WriteString("]")
		default:
			fmt.Fprintf(&b, "(%v %q)", n.Kind, n.Text)
			if n.Style != 0 {
				b.WriteByte(n.Style)
			}
		}
	}
	if d.Root != nil {
		write(d.Root)
	}
	return b.String(), d.Faults.Sorted()
}

func TestValuesKnowTheirPlace(t *testing.T) {
	for _, tt := range []struct{ src, want string }{
		{"", ""},
		{"# nothing\n", ""},
		{"null", `1:1(nothing "")`},
		{"\ufeffa: 5", `1:1{1:1(text "a") 1:4(a whole number "5");}`},
		{"a:\n  - 0x1F\n  - 1.5\n  - .inf\n  - True\n  - ~\n", `1:1{1:1(text "a") 2:3[2:5(a whole number "0x1F");3:5(a decimal number "1.5");4:5(a decimal number ".inf");5:5(true or false "true");6:5(nothing "");];}`},
		{`['é', "b", c]`, `1:1[1:2(text "é")';1:7(text "b")";1:12(text "c");]`},
		{"a: |\n  x\nb: >\n  y\n", `1:1{1:1(text "a") 1:4(text "x\n")|;3:1(text "b") 3:4(text "y\n")>;}`},
		{"---\na: 1\n...\n", `2:1{2:1(text "a") 2:4(a whole number "1");}`},
		{"a: &x 5\nb: *x\n", `1:1{1:1(text "a") 1:7(a whole number "5");2:1(text "b") 1:7(a whole number "5");}`},
		{"- &x {a: 1, b: 2}\n- {<<: *x, b: 3}\n", `1:1[1:6{1:7(text "a") 1:10(a whole number "1");1:13(text "b") 1:16(a whole number "2");};2:3{2:12(text "b") 2:15(a whole number "3");1:7(text "a") 1:10(a whole number "1");};]`},
	} {
		got, faults := text(tt.src, Bounds{Bytes: 1000, Depth: 10, Keys: 10, Anchors: 10, Aliased: 10})
		if got != tt.want || len(faults) > 0 {
			t.Errorf("%q: got\n%s, %v\nwant\n%s", tt.src, got, faults, tt.want)
		}
	}
}

// A document at a bound is read, and one beyond it is not.
func TestBounds(t *testing.T) {
	for _, tt := range []struct {
		begin, one, end string
		most            int
		want            string
	}{
		{"", "#", "", 200, "file has more than 200 bytes"},
		{"", "[", "x", 5, "nested more than 5 deep"},
		{"", "- ", "x", 4, "nested more than 5 deep"}, // the value within is the fifth
		{"{", "a: b, ", "}", 4, "a map with more than 4 keys"},
		{"", "a:\n", "", 4, "a map with more than 4 keys"},
		{"", "- &a b\n", "", 3, "more than 3 anchors"},
		{"- &a [b]\n", "- *a\n", "", 5, "aliases stand for more than 10 values"},
		{"- &a {b: c}\n", "- {<<: *a}\n", "", 5, "aliases stand for more than 10 values"},
	} {
		for _, n := range []int{tt.most, tt.most + 1} {
			src := tt.begin + strings.Repeat(tt.one, n) + tt.end
			if tt.one == "[" {
				src = strings.Repeat("[", n) + strings.Repeat("]", n)
			}
			_, faults := text(src, small)
			within := true
			for _, f := range faults {
				within = within && f.Message != tt.want
			}
			if within != (n == tt.most) {
				t.Errorf("%d of %q: %v", n, tt.one, faults)
			}
		}
	}
	_, faults := text(strings.Repeat("#", 201), small)
	if len(faults) != 1 || faults[0].Hint != "write less" || faults[0].Line != 0 {
		t.Errorf("got %+v", faults)
	}
}

// Nothing of a document with a fault is used.
func TestFaultyDocumentsHaveNoRoot(t *testing.T) {
	for src, want := range map[string]string{
		"a: 1\na: 2\n":           `2:1 key "a" is given twice, first on line 1`,
		"a: 1\n---\nb: 2\n":      "3:1 a second YAML document in one file",
		"a: *b\n":                "1:4 alias *b has no anchor &b before it",
		"{<<: 5}":                "1:6 << wants a map, this is a whole number",
		"? a\n: b\n":             "1:1 a key after a question mark is not supported",
		"- &a [b]\n- {*a : c}\n": "1:6 a map or a list cannot be a key",
		"a: !!str b\n":           `1:4 YAML tag "!!str" is not supported`,
		"{a:b}":                  "1:3 a colon within { } without a space after it",
		"[- a]":                  "1:2 a dash within brackets",
		"a: \x01":                "1:4 control character U+0001",
		"é\xff":                  "1:2 byte 0xff is not valid UTF-8",
		"a: b\n\tc: d\n":         "2:1 yaml: found character '\\t' that cannot start any token",
		"a: [b\n":                "1:4 yaml: sequence end token ']' not found",
		"--- a\n--- b\n--- c\n":  "3:1 several YAML documents in one file",
	} {
		got, faults := text(src, Bounds{Bytes: 1000, Depth: 10, Keys: 10, Anchors: 10, Aliased: 10})
		if got != "" || len(faults) != 1 {
			t.Errorf("%q: got %s, %v", src, got, faults)
			continue
		}
		f := faults[0]
		if at := fmt.Sprintf("%d:%d %s", f.Line, f.Column, f.Message); at != want {
			t.Errorf("%q: got %s, want %s", src, at, want)
		}
	}
}

// FuzzRead: whatever the text, there is a tree within the bounds, or there are faults.
func FuzzRead(f *testing.F) {
	for _, src := range []string{
		"", "a: [1, .5, 'x', \"y\", ~, yes]\nb: |\n  c\n", "- &a {b: c}\n- {<<: [*a, *a], d: *a}\n", "{a:b}", "? a", "[[[[[[", "- - - - - -",
	} {
		f.Add(src)
	}
	f.Fuzz(func(t *testing.T, src string) {
		faults := new(Faults)
		d := Read("x.yaml", []byte(src), small, faults)
		for _, fault := range faults.Sorted() {
			if fault.Message == "" || fault.Line < 0 || fault.Column < 0 {
				t.Fatalf("%+v", fault)
			}
		}
		values := 0
		var walk func(n *Node, depth int)
		walk = func(n *Node, depth int) {
			if values++; depth > small.Depth {
				t.Fatalf("depth %d", depth)
			}
			for _, field := range n.Fields {
				walk(field.Value, depth+1)
			}
			for _, item := range n.Items {
				walk(item, depth+1)
			}
		}
		if d.Root == nil {
			return
		}
		if faults.Count() > 0 {
			t.Fatal("a root, and faults")
		}
		if walk(d.Root, 1); values > len(src)+small.Aliased+1 {
			t.Fatalf("%d values from %d bytes", values, len(src))
		}
	})
}
