package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const pageFile = "docs/evidence.md"

// page writes docs/evidence.md: the goals that are missed, then each area.
func (l *ledger) page() string {
	var areas []string
	byArea := map[string][]*row{}
	missed := 0
	for _, r := range l.rows {
		area := cmp.Or(r.Area, "further")
		if byArea[area] == nil {
			areas = append(areas, area)
		}
		byArea[area] = append(byArea[area], r)
		if r.Met != nil && !*r.Met {
			missed++
		}
	}
	var page strings.Builder
	fmt.Fprintf(&page, `# Evidence

<!-- Written by ./scripts/evidence from evidence.yaml: do not edit. -->

%d measured claims. %d goals are met, %d are missed, each with its cause. The commands, and the machine of each run,
are in [evidence.yaml](../evidence.yaml); %s runs them again. Figures of simulations and of virtual time
are the same on every machine. [How benchmarks are made](benchmarks.md).

`, len(l.rows), len(l.rows)-missed, missed, "`./scripts/evidence WORDS`")
	for _, area := range areas {
		fmt.Fprintf(&page, "* [%s](#%s)\n", area, anchor(area))
	}
	for _, area := range areas {
		fmt.Fprintf(&page, "\n## %s\n\n| claim | figure | goal | | measured |\n|---|---|---|---|---|\n", strings.ToUpper(area[:1])+area[1:])
		for _, r := range byArea[area] {
			name, outcome := "", "met"
			if r.Name != "" {
				name = fmt.Sprintf(`<a id="%s"></a>`, r.Name)
			}
			if r.Met != nil && !*r.Met {
				outcome = "**missed**: " + r.Cause
			}
			fmt.Fprintf(&page, "| %s%s | %s | %s | %s | %s, %s |\n", name, inCell(r.Claim), inCell(r.Figure), inCell(r.Goal), inCell(outcome), r.Date, r.Commit)
		}
	}
	return page.String()
}

func anchor(area string) string {
	return strings.NewReplacer(" ", "-", ",", "").Replace(strings.ToLower(area))
}

var inTable = strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ")

func inCell(text string) string { return inTable.Replace(text) }

func (l *ledger) writePage() error {
	return os.WriteFile(filepath.Join(l.root, pageFile), []byte(l.page()), 0o644)
}

func (l *ledger) checkPage() []string {
	if text, err := os.ReadFile(filepath.Join(l.root, pageFile)); err != nil || string(text) != l.page() {
		return []string{pageFile + " is not what evidence.yaml makes of it: ./scripts/evidence -page writes it"}
	}
	return nil
}
