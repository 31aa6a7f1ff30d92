package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// platformImage is an image for one platform, with its SBOM.
type platformImage struct {
	v1.Image

	platform v1.Platform
	sbom     []byte
}

// assemble makes an image of layers, the lowest first.
func assemble(d definition, version string, platform v1.Platform, layers [][]entry) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, entries := range layers {
		content, err := pack(entries)
		if err != nil {
			return nil, err
		}
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}
		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Variant = platform.OS, platform.Architecture, platform.Variant
	file.Config.Entrypoint = append([]string{"/" + d.program()}, d.flags...)
	file.Config.WorkingDir = "/"
	file.Config.User = d.user
	file.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	file.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    d.title,
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.source":   "https://github.com/resourcestack/autohealer",
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	return mutate.ConfigFile(image, file)
}

// pack makes the archive of a layer. Times, owners and missing folders are the same on every
// machine.
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
			made[e.path] = true
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

// indexOf returns the index of the images of all platforms.
func indexOf(images []platformImage) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, image := range images {
		descriptor, err := partial.Descriptor(image.Image)
		if err != nil {
			return nil, err
		}
		descriptor.Platform = &image.platform
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image.Image, Descriptor: *descriptor})
	}
	return index, nil
}

// writeArchive writes an index as an OCI archive.
func writeArchive(to, reference string, index v1.ImageIndex) error {
	tag, err := name.NewTag(reference) // without a registry: one of Docker's, as in a manifest
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp(filepath.Dir(to), ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	files, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	if err := files.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          strings.TrimPrefix(tag.Name(), "index."), // containerd says docker.io
		"org.opencontainers.image.ref.name": tag.TagStr(),
	})); err != nil {
		return err
	}
	var entries []entry
	err = filepath.WalkDir(folder, func(path string, found fs.DirEntry, err error) error {
		if err != nil || found.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		entries = append(entries, entry{path: strings.TrimPrefix(path, folder), content: content, mode: 0o644})
		return err
	})
	if err != nil {
		return err
	}
	packed, err := pack(entries)
	if err != nil {
		return err
	}
	// An interrupted run leaves no incomplete archive.
	unfinished := fmt.Sprintf("%s.%d", to, os.Getpid())
	defer os.Remove(unfinished)
	if err := os.WriteFile(unfinished, packed, 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, to)
}

// push pushes an index, and the SBOM of each platform as an artifact that refers to its image.
func push(ctx context.Context, reference string, index v1.ImageIndex, images []platformImage) error {
	tag, err := name.NewTag(reference)
	if err != nil {
		return err
	}
	options := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
	if err := remote.WriteIndex(tag, index, options...); err != nil {
		return err
	}
	for _, image := range images {
		sbom, err := artifact(image)
		if err != nil {
			return err
		}
		digest, err := sbom.Digest()
		if err != nil {
			return err
		}
		if err := remote.Write(tag.Digest(digest.String()), sbom, options...); err != nil {
			return fmt.Errorf("the SBOM for %s: %w", image.platform, err)
		}
	}
	return nil
}

// artifact returns the SBOM of an image as an OCI artifact.
func artifact(image platformImage) (v1.Image, error) {
	subject, err := partial.Descriptor(image.Image)
	if err != nil {
		return nil, err
	}
	sbom, err := mutate.AppendLayers(mutate.MediaType(empty.Image, types.OCIManifestSchema1), static.NewLayer(image.sbom, spdx))
	if err != nil {
		return nil, err
	}
	referrer, isImage := mutate.Subject(mutate.ConfigMediaType(sbom, spdx), *subject).(v1.Image)
	if !isImage {
		return nil, fmt.Errorf("the SBOM for %s cannot refer to its image", image.platform)
	}
	return referrer, nil
}
