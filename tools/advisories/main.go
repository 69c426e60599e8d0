// Command advisories asks the database of https://osv.dev for known vulnerabilities of what the lock files of this
// repository pin from npm, PyPI and crates.io. It fails if there is one.
//
//	go run ./advisories package-lock.json requirements.txt Cargo.lock
//
// Where the database cannot be reached, it says that nothing was checked, and succeeds: a build behind a firewall has no
// other. OSV, the URL of another instance, has to answer.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

func main() {
	url := os.Getenv("OSV")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := run(ctx, os.Stdout, cmp.Or(url, "https://api.osv.dev"), os.Args[1:])
	var unreachable unreachableError
	if url == "" && errors.As(err, &unreachable) {
		fmt.Println("NOT CHECKED for known vulnerabilities, the database cannot be reached:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAILED:", err)
		os.Exit(1)
	}
}

// unreachableError is a failure of the network, or a refusal by a proxy.
type unreachableError struct{ error }

// pinned is one version of a package.
type pinned struct {
	Package struct {
		Name      string `json:"name"`
		Ecosystem string `json:"ecosystem"`
	} `json:"package"`
	Version string `json:"version"`
}

func (p pinned) String() string { return p.Package.Ecosystem + " " + p.Package.Name + " " + p.Version }

func pin(ecosystem, name, version string) (p pinned) {
	p.Package.Ecosystem, p.Package.Name, p.Version = ecosystem, name, version
	return p
}

func run(ctx context.Context, out io.Writer, url string, files []string) error {
	var all []pinned
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		list, err := read(filepath.Base(file), text)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if len(list) == 0 {
			return fmt.Errorf("%s pins nothing", file)
		}
		fmt.Fprintf(out, "%s: %d packages\n", file, len(list))
		all = append(all, list...)
	}
	if len(all) == 0 {
		return errors.New("no lock files")
	}
	var faults []error
	for part := range slices.Chunk(all, 500) {
		found, err := ask(ctx, url, part)
		if err != nil {
			return err
		}
		faults = append(faults, found...)
	}
	if len(faults) == 0 {
		fmt.Fprintf(out, "no known vulnerability in %d packages of %d lock files (%s)\n", len(all), len(files), url)
	}
	return errors.Join(faults...)
}

var (
	requirement = regexp.MustCompile(`(?m)^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)`)
	crate       = regexp.MustCompile(`(?m)^name = "([^"]+)"\nversion = "([^"]+)"\nsource = "registry`)
)

// read returns what a lock file pins. The name of the file says which kind it is.
func read(name string, text []byte) (list []pinned, _ error) {
	switch name {
	case "package-lock.json":
		var lock struct {
			Packages map[string]struct {
				Name, Version string
				Link          bool
			}
		}
		if err := json.Unmarshal(text, &lock); err != nil {
			return nil, err
		}
		for path, p := range lock.Packages {
			at := strings.LastIndex(path, "node_modules/")
			if at < 0 || p.Link {
				continue // a package of this repository
			}
			list = append(list, pin("npm", cmp.Or(p.Name, path[at+len("node_modules/"):]), p.Version))
		}
		slices.SortFunc(list, func(a, b pinned) int { return cmp.Compare(a.String(), b.String()) })
	case "requirements.txt":
		for _, m := range requirement.FindAllSubmatch(text, -1) {
			list = append(list, pin("PyPI", string(m[1]), string(m[2])))
		}
	case "Cargo.lock":
		for _, m := range crate.FindAllSubmatch(text, -1) {
			list = append(list, pin("crates.io", string(m[1]), string(m[2])))
		}
	default:
		return nil, errors.New("is no lock file that this command reads")
	}
	return list, nil
}

// ask returns the known vulnerabilities of some packages.
func ask(ctx context.Context, url string, list []pinned) (found []error, _ error) {
	body, err := json.Marshal(map[string]any{"queries": list})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/v1/querybatch", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, unreachableError{err}
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, unreachableError{fmt.Errorf("%s answers %s", url, response.Status)}
	}
	var answer struct {
		Results []struct {
			Vulns []struct{ ID string }
		}
	}
	if err := json.NewDecoder(response.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	if len(answer.Results) != len(list) {
		return nil, fmt.Errorf("%s answers %d results to %d queries", url, len(answer.Results), len(list))
	}
	for i, result := range answer.Results {
		for _, v := range result.Vulns {
			found = append(found, fmt.Errorf("%v: %s", list[i], v.ID))
		}
	}
	return found, nil
}
