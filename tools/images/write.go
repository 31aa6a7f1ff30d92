package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// write writes an image of one layer to an archive and returns its digest.
func write(to, tag string, r recipe, entries []entry) (digest string, err error) {
	image, err := assemble(r, entries)
	if err != nil {
		return "", err
	}
	hash, err := image.Digest()
	if err != nil {
		return "", err
	}
	reference, err := name.NewTag(tag) // without a registry it is one of Docker's, as in a manifest
	if err != nil {
		return "", err
	}
	// An interrupted run leaves no incomplete archive.
	unfinished := fmt.Sprintf("%s.%d", to, os.Getpid())
	defer os.Remove(unfinished)
	if err := tarball.WriteToFile(unfinished, reference, image); err != nil {
		return "", err
	}
	return hash.String(), os.Rename(unfinished, to)
}

func assemble(r recipe, entries []entry) (v1.Image, error) {
	content, err := pack(entries)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return nil, err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	file.Config.Entrypoint = append([]string{"/" + r.name}, r.flags...)
	file.Config.WorkingDir = "/"
	file.Config.User = r.user
	return mutate.ConfigFile(image, file)
}

// pack makes a layer. Nothing in it tells of the machine or the time: folders, owners
// and times are the same everywhere.
func pack(entries []entry) ([]byte, error) {
	var packed bytes.Buffer
	archive := tar.NewWriter(&packed)
	made := map[string]bool{}
	for _, e := range entries {
		for _, folder := range parents(e.path) {
			if made[folder] {
				continue
			}
			made[folder] = true
			if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: strings.TrimPrefix(folder, "/") + "/", Mode: 0o755}); err != nil {
				return nil, err
			}
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: strings.TrimPrefix(e.path, "/"), Mode: e.mode, Size: int64(len(e.content))}
		switch {
		case e.link != "":
			header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		case e.folder:
			header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
		}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(e.content); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}

// parents returns the folders above a path, the uppermost first, without the root.
func parents(of string) (folders []string) {
	for folder := path.Dir(of); folder != "/"; folder = path.Dir(folder) {
		folders = append([]string{folder}, folders...)
	}
	return folders
}
