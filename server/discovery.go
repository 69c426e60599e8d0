package server

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"

	"github.com/stint-io/stint/internal/xds"
	"github.com/stint-io/stint/rules"
)

// openDiscovery opens the server of Envoy's discovery protocol that a URL names.
func (c *config) openDiscovery(url string, log *slog.Logger) error {
	o, err := xds.ParseURL(url)
	if err != nil {
		return fmt.Errorf("server: --config: %w", err)
	}
	c.startEmpty = o.StartEmpty
	c.xds = xds.New(o, log, c.discovered)
	return nil
}

// noLimits is a configuration without limits.
func (c *config) noLimits() (*rules.Set, error) {
	return c.rules.Parse("none", []byte("store: memory\n"))
}

// discovered puts in force what the server of the discovery protocol has sent.
func (c *config) discovered(version string, list []xds.Document) error {
	files := make([]rules.File, len(list))
	for i, d := range list {
		files[i] = rules.File{Name: d.Name, Text: d.Text}
	}
	var set *rules.Set
	var err error
	switch {
	case len(files) > 0:
		set, err = c.rules.Compile(files...)
	case c.empty:
		set, err = c.noLimits()
	default:
		err = errors.New("server: there is no resource, so that nothing would be limited: send one, or take that with --allow-empty")
	}
	// The client logs what is refused, once for each reason.
	if err = c.put(set, err, "version", fmt.Sprintf("%.100s", version)); err != nil {
		return errors.New(inOneLine(err))
	}
	return nil
}

// loaded reports whether there is a configuration: without files, one comes later.
func (c *config) loaded() bool { return c.xds == nil || c.isLoaded.Load() }

// missing says why requests should not be sent here yet; "" = they should.
func (c *config) missing() string {
	if c.xds == nil || c.startEmpty || c.loaded() {
		return ""
	}
	return c.amissDiscovery()
}

// amissDiscovery says what is wrong with a configuration by the discovery protocol.
func (c *config) amissDiscovery() string {
	st := c.xds.Status()
	why := cmp.Or(st.Problem, st.Away)
	switch {
	case !st.Loaded && why == "":
		return fmt.Sprintf("no configuration has come from %s yet", c.xds.Place())
	case !st.Loaded:
		return fmt.Sprintf("no configuration has come from %s yet: %s", c.xds.Place(), why)
	case st.Problem != "":
		return fmt.Sprintf("config version %.100s stays in force, version %.100s is refused: %.500s", st.Version, st.Refused, st.Problem)
	case st.Away != "":
		return fmt.Sprintf("config version %.100s stays in force, its server does not answer: %s", st.Version, st.Away)
	}
	return ""
}

// status says which version is in force, and what is amiss; "" of files.
func (c *config) status() (version, amiss string) {
	if c.xds == nil {
		return c.remote.status()
	}
	if st := c.xds.Status(); st.Loaded {
		version = fmt.Sprintf("config version %.100s", st.Version)
	}
	return version, c.amissDiscovery()
}
