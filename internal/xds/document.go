package xds

import (
	"bytes"
	"encoding/json"
	"fmt"

	pb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// TypeURL is the type of a resource with the rules of one domain.
const TypeURL = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"

// Document is the rules of one domain, in the format of a file of Envoy's rate limit service.
type Document struct {
	Name string
	Text []byte
}

// The keys of such a file, in their order.
type (
	file struct {
		Domain      string       `json:"domain"`
		Descriptors []descriptor `json:"descriptors,omitempty"`
	}
	descriptor struct {
		Key            string         `json:"key"`
		Value          string         `json:"value,omitempty"`
		RateLimit      *rateLimit     `json:"rate_limit,omitempty"`
		Descriptors    []descriptor   `json:"descriptors,omitempty"`
		ShadowMode     bool           `json:"shadow_mode,omitempty"`
		QuotaMode      bool           `json:"quota_mode,omitempty"`
		DetailedMetric bool           `json:"detailed_metric,omitempty"`
		Metadata       map[string]any `json:"metadata,omitempty"`
	}
	rateLimit struct {
		Unit            string    `json:"unit,omitempty"`
		RequestsPerUnit uint32    `json:"requests_per_unit"`
		Unlimited       bool      `json:"unlimited,omitempty"`
		Name            string    `json:"name,omitempty"`
		Replaces        []replace `json:"replaces,omitempty"`
	}
	replace struct {
		Name string `json:"name"`
	}
)

// document reads resource i.
func document(i int, resource *anypb.Any) (Document, error) {
	if resource.GetTypeUrl() != TypeURL {
		return Document{}, fmt.Errorf("xds: resource %d has the type %.200q, want %s", i, resource.GetTypeUrl(), TypeURL)
	}
	c := new(pb.RateLimitConfig)
	if err := resource.UnmarshalTo(c); err != nil {
		return Document{}, fmt.Errorf("xds: resource %d is no RateLimitConfig: %w", i, err)
	}
	name := c.Name
	if name == "" {
		name = fmt.Sprintf("resource %d", i)
	}
	var text bytes.Buffer
	// What JSON says is YAML, as long as < and > stay as they are.
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(file{c.Domain, descriptors(c.Descriptors)}); err != nil {
		return Document{}, fmt.Errorf("xds: resource %d, %s, cannot be written as a file: %w", i, name, err)
	}
	return Document{name, text.Bytes()}, nil
}

func descriptors(list []*pb.RateLimitDescriptor) []descriptor {
	out := make([]descriptor, len(list))
	for i, d := range list {
		out[i] = descriptor{
			Key: d.GetKey(), Value: d.GetValue(), RateLimit: limitOf(d.GetRateLimit()), Descriptors: descriptors(d.GetDescriptors()),
			ShadowMode: d.GetShadowMode(), QuotaMode: d.GetQuotaMode(), DetailedMetric: d.GetDetailedMetric(), Metadata: d.GetMetadata().AsMap(),
		}
	}
	return out
}

func limitOf(p *pb.RateLimitPolicy) *rateLimit {
	if p == nil {
		return nil
	}
	l := &rateLimit{RequestsPerUnit: p.RequestsPerUnit, Unlimited: p.Unlimited, Name: p.Name}
	if !p.Unlimited || p.Unit != pb.RateLimitUnit_UNKNOWN {
		l.Unit = p.Unit.String()
	}
	for _, r := range p.Replaces {
		l.Replaces = append(l.Replaces, replace{r.GetName()})
	}
	return l
}
