package overload

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/stint-io/stint/sim/internal/words"
)

// ownName is how files call stint's own policy.
const ownName = "stint"

// baselines are the models, by name, with their parameters.
var baselines = map[string]func(Tuning) System{
	"none":       func(Tuning) System { return none{} },
	"seda":       func(t Tuning) System { return SEDA{t} },
	"dagor":      func(t Tuning) System { return DAGOR{t} },
	"breakwater": func(t Tuning) System { return Breakwater{t} },
	"wisp":       func(t Tuning) System { return Wisp{t} },
	"apf":        func(t Tuning) System { return APF{t} },
	"cinnamon":   func(t Tuning) System { return Cinnamon{t} },
	"topfull":    func(t Tuning) System { return TopFull{t} },
}

// SystemNames returns the systems that every scenario may compare: stint, nothing at all, and our
// models of published systems.
func SystemNames() []string {
	return append([]string{ownName}, slices.Sorted(maps.Keys(baselines))...)
}

// Choose returns the systems of the file, or those of the names given: of [SystemNames], or of
// variants that the file describes. The error says which name there is not.
func (f *File) Choose(names ...string) ([]System, error) {
	if len(names) == 0 {
		names = f.Systems
	}
	known := append(SystemNames(), slices.Sorted(maps.Keys(f.variants))...)
	var systems []System
	var faults []error
	for i, name := range names {
		variant, isVariant := f.variants[name]
		model, isModel := baselines[name]
		switch {
		case slices.Contains(names[:i], name):
			faults = append(faults, fmt.Errorf("sim: the system %q is named twice", name))
		case isVariant:
			systems = append(systems, variant)
		case name == ownName:
			own := f.own
			systems = append(systems, &own)
		case isModel:
			systems = append(systems, model(Tuning{}))
		default:
			faults = append(faults, words.Unknown("system", name, "some", known))
		}
	}
	return systems, errors.Join(faults...)
}
