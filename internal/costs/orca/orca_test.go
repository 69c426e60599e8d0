package orca

import (
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stint-io/stint/internal/costs"
)

// message is an OrcaLoadReport as generated code writes it.
func message(cost map[string]float64) []byte {
	b := protowire.AppendTag(nil, 1, protowire.Fixed64Type) // cpu_utilization
	b = protowire.AppendFixed64(b, math.Float64bits(0.5))
	b = protowire.AppendTag(b, 3, protowire.VarintType) // rps
	b = protowire.AppendVarint(b, 100)
	for name, value := range cost {
		entry := protowire.AppendTag(nil, 1, protowire.BytesType)
		entry = protowire.AppendString(entry, name)
		entry = protowire.AppendTag(entry, 2, protowire.Fixed64Type)
		entry = protowire.AppendFixed64(entry, math.Float64bits(value))
		b = protowire.AppendTag(b, 4, protowire.BytesType)
		b = protowire.AppendBytes(b, entry)
		named := protowire.AppendTag(b, 8, protowire.BytesType) // named_metrics, which are no costs
		b = protowire.AppendBytes(named, entry)
	}
	return b
}

func TestForms(t *testing.T) {
	want := costs.Usage{"cpu": 12.5, "disk": 3}
	binary := base64.StdEncoding.EncodeToString(message(want))
	for name, h := range map[string]http.Header{
		"text":           {Field: {"TEXT request_cost.cpu=12.5, cpu_utilization=0.3,request_cost.disk=3,named_metrics.x=1"}},
		"json":           {Field: {`JSON {"cpu_utilization": 0.3, "request_cost": {"cpu": 12.5, "disk": 3}}`}},
		"json, camel":    {Field: {`JSON {"rpsFractional": 7, "requestCost": {"cpu": 12.5, "disk": 3}}`}},
		"binary":         {FieldBinary: {binary}},
		"not padded":     {FieldBinary: {strings.TrimRight(binary, "=")}},
		"binary by form": {Field: {"BIN " + binary}},
		"trailer":        {http.TrailerPrefix + Field: {"TEXT request_cost.cpu=12.5,request_cost.disk=3"}},
	} {
		if got, err := FromHeader(h); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	for name, md := range map[string]map[string][]string{
		"binary": {MetadataKey: {string(message(want))}},
		"text":   {MetadataTxt: {"TEXT request_cost.cpu=12.5,request_cost.disk=3"}},
	} {
		if got, err := FromMetadata(md); err != nil || !maps.Equal(got, want) {
			t.Errorf("metadata, %s: %v, %v", name, got, err)
		}
	}
	if got, err := FromHeader(http.Header{Field: {"TEXT cpu_utilization=0.1"}}); got != nil || err != nil {
		t.Errorf("a report without costs is %v, %v", got, err)
	}
	if got, err := FromHeader(http.Header{}); got != nil || err != nil {
		t.Errorf("no report is %v, %v", got, err)
	}
}

// TestFaultyReportsAreNone: one fault, and nothing of a report counts.
func TestFaultyReportsAreNone(t *testing.T) {
	many := "TEXT "
	for i := range maxEntries + 1 {
		many += fmt.Sprintf("request_cost.a%d=1,", i)
	}
	faulty := map[string]http.Header{
		"no form":       {Field: {"request_cost.cpu=1"}},
		"negative":      {Field: {"TEXT request_cost.cpu=1,request_cost.disk=-1"}},
		"not a number":  {Field: {"TEXT request_cost.cpu=NaN"}},
		"endless":       {Field: {"TEXT request_cost.cpu=1e999"}},
		"infinite":      {Field: {"TEXT request_cost.cpu=Inf"}},
		"words":         {Field: {"TEXT request_cost.cpu=much"}},
		"no pair":       {Field: {"TEXT request_cost.cpu"}},
		"no name":       {Field: {"TEXT request_cost.=1"}},
		"long name":     {Field: {"TEXT request_cost." + strings.Repeat("x", maxName+1) + "=1"}},
		"many":          {Field: {many}},
		"long":          {Field: {"TEXT " + strings.Repeat(" ", maxBytes) + "request_cost.cpu=1"}},
		"two":           {Field: {"TEXT request_cost.cpu=1", "TEXT request_cost.cpu=2"}},
		"no JSON":       {Field: {`JSON {"request_cost": {"cpu": 1}`}},
		"JSON negative": {Field: {`JSON {"request_cost": {"cpu": -1}}`}},
		"no base64":     {FieldBinary: {"!"}},
		"two binary":    {FieldBinary: {"", ""}},
		"cut":           {FieldBinary: {base64.StdEncoding.EncodeToString(message(costs.Usage{"cpu": 1})[:20])}},
		"no tag":        {FieldBinary: {base64.StdEncoding.EncodeToString([]byte{0xff})}},
	}
	for name, h := range faulty {
		if got, err := FromHeader(h); got != nil || err == nil || !strings.HasPrefix(err.Error(), "orca: ") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := FromMetadata(map[string][]string{MetadataKey: {"", ""}}); got != nil || err == nil {
		t.Errorf("two in metadata: %v, %v", got, err)
	}
}

// FuzzReport: whatever a server sends, the parser does not crash, and what it takes is bounded:
// few costs with short names, each a number of 0 or more.
func FuzzReport(f *testing.F) {
	for _, seed := range []string{
		"TEXT request_cost.cpu=12.5, cpu_utilization=0.3", `JSON {"request_cost": {"cpu": 1e3}}`,
		"BIN " + base64.StdEncoding.EncodeToString(message(costs.Usage{"cpu": 1})), string(message(costs.Usage{"cpu": 1, "disk": 2})),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, parse := range []func() (costs.Usage, error){
			func() (costs.Usage, error) { return Parse(text) },
			func() (costs.Usage, error) { return ParseMessage([]byte(text)) },
			func() (costs.Usage, error) { return FromHeader(http.Header{FieldBinary: {text}}) },
			func() (costs.Usage, error) { return FromMetadata(map[string][]string{MetadataTxt: {text}}) },
		} {
			u, err := parse()
			if err != nil && (u != nil || len(err.Error()) > 1000) {
				t.Fatalf("%d costs beside an error of %d bytes", len(u), len(err.Error()))
			}
			if len(u) > maxEntries {
				t.Fatalf("%d costs", len(u))
			}
			for name, cost := range u {
				if name == "" || len(name) > maxName || !(cost >= 0) || math.IsInf(cost, 1) {
					t.Fatalf("%q costs %v", name, cost)
				}
			}
		}
	})
}
