// Image writes a container image of one program, which "docker load" and "podman load" take: nothing is in it but the
// program and the authorities for TLS. The same inputs give the same bytes.
//
//	go run ./image -arch amd64 -version 0.1.0 -epoch 0 -o stint_image.tar PROGRAM
package main

import (
	"archive/tar"
	"bytes"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user owns the state and runs the program.
const user = 65532

func main() {
	arch := flag.String("arch", "amd64", "processor, as GOARCH")
	version := flag.String("version", "dev", "version of the program")
	epoch := flag.Int64("epoch", 0, "time of everything in the image, in seconds since 1970")
	out := flag.String("o", "stint_image.tar", "file to write")
	flag.Parse()
	if flag.NArg() != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := write(*out, flag.Arg(0), *arch, *version, time.Unix(*epoch, 0).UTC()); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func write(out, program, arch, version string, at time.Time) error {
	content, err := layer(program, at)
	if err != nil {
		return err
	}
	one, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, one)
	if err != nil {
		return err
	}
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: "linux", Architecture: arch, Created: v1.Time{Time: at}, RootFS: must(image).RootFS,
		History: []v1.History{{Created: v1.Time{Time: at}, CreatedBy: "scripts/release"}},
		Config: v1.Config{
			Entrypoint: []string{"/bin/stint"}, Cmd: []string{"serve"}, User: fmt.Sprintf("%d:%d", user, user),
			Env:          []string{"STINT_STATE_DIR=/var/lib/stint"},
			Volumes:      map[string]struct{}{"/var/lib/stint": {}},
			ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8081/tcp": {}, "8082/tcp": {}},
			Healthcheck:  &v1.HealthConfig{Test: []string{"CMD", "/bin/stint", "ready"}, Interval: 10 * time.Second, Timeout: 3 * time.Second, StartPeriod: 10 * time.Second},
			Labels: map[string]string{
				"org.opencontainers.image.title": "stint", "org.opencontainers.image.version": version,
				"org.opencontainers.image.source": "https://github.com/stint-io/stint", "org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return err
	}
	tag, err := name.NewTag("stint:" + version)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(out, tag, image)
}

func must(image v1.Image) *v1.ConfigFile {
	config, err := image.ConfigFile()
	if err != nil {
		panic(err) // it is in memory
	}
	return config
}

// layer returns the files of the image.
func layer(program string, at time.Time) ([]byte, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	var authorities bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue // a file has no place for what it may not sign
		}
		if err := pem.Encode(&authorities, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range []struct {
		header tar.Header
		text   []byte
	}{
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "bin/", Mode: 0o755}},
		{tar.Header{Typeflag: tar.TypeReg, Name: "bin/stint", Mode: 0o755}, text},
		{header: tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/ratelimit", Linkname: "stint", Mode: 0o777}},
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "etc/", Mode: 0o755}},
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "etc/ssl/", Mode: 0o755}},
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "etc/ssl/certs/", Mode: 0o755}},
		{tar.Header{Typeflag: tar.TypeReg, Name: "etc/ssl/certs/ca-certificates.crt", Mode: 0o644}, authorities.Bytes()},
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "var/", Mode: 0o755}},
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "var/lib/", Mode: 0o755}},
		{header: tar.Header{Typeflag: tar.TypeDir, Name: "var/lib/stint/", Mode: 0o700, Uid: user, Gid: user}},
	} {
		f.header.Size, f.header.ModTime = int64(len(f.text)), at
		if err := w.WriteHeader(&f.header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.text); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), w.Close()
}
