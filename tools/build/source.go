package main

import (
	"archive/zip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// source is a published module that a set is built from a copy of, and whose files
// tests read.
//
// Karpenter asks for a patch release of Go that is newer than the one we build with,
// and the go command refuses it for that, although nothing in it needs more than
// Go 1.26. In the copy that one line of go.mod says what we have; nothing else is
// changed. When we build with the release that Karpenter asks for, a require line
// replaces this type.
type source struct {
	path, version string
	sum           string // of the module, as go.sum has it
	folder        string // where the copy stands
	goVersion     string // what its go.mod says instead
}

// fetch puts the copy in its place, whole or not at all.
func (s source) fetch(ctx context.Context) error {
	if _, err := os.Stat(s.folder); err == nil {
		return nil
	}
	archive, err := s.download(ctx)
	if err != nil {
		return fmt.Errorf("downloading %s %s: %w", s.path, s.version, err)
	}
	if err := os.MkdirAll(filepath.Dir(s.folder), 0o755); err != nil {
		return err
	}
	unfinished, err := os.MkdirTemp(filepath.Dir(s.folder), ".unpacking.")
	if err != nil {
		return err
	}
	defer os.RemoveAll(unfinished)
	if err := unpack(archive, s.path+"@"+s.version+"/", unfinished); err != nil {
		return fmt.Errorf("unpacking %s: %w", archive, err)
	}
	if err := setGoVersion(filepath.Join(unfinished, "go.mod"), s.goVersion); err != nil {
		return err
	}
	if err := os.Chmod(unfinished, 0o755); err != nil {
		return err
	}
	return os.Rename(unfinished, s.folder)
}

// download returns the path of the module's archive. The go command has checked it
// against the checksum database before it complains about the version of Go, and here
// it is checked against ours.
func (s source) download(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", s.path+"@"+s.version)
	cmd.Dir = os.TempDir() // outside of any module, whose requirements are not asked for
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var complaints strings.Builder
	cmd.Stderr = &complaints
	answer, failed := cmd.Output()
	var got struct{ Zip, Sum, Error string }
	if err := json.Unmarshal(answer, &got); err != nil {
		return "", errors.Join(failed, errors.New(complaints.String()))
	}
	switch {
	case got.Zip == "":
		return "", errors.New(got.Error)
	case got.Sum != s.sum:
		return "", fmt.Errorf("its checksum is %s, and %s is expected", got.Sum, s.sum)
	}
	return got.Zip, nil
}

// unpack writes the files of an archive whose names begin with prefix into a folder.
func unpack(archive, prefix, folder string) error {
	files, err := zip.OpenReader(archive)
	if err != nil {
		return err
	}
	defer files.Close()
	for _, file := range files.File {
		name, ok := strings.CutPrefix(file.Name, prefix)
		if !ok || !filepath.IsLocal(name) {
			return fmt.Errorf("%s is outside of %s", file.Name, prefix)
		}
		if err := unpackFile(file, filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return nil
}

func unpackFile(file *zip.File, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	from, err := file.Open()
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil { //nolint:gosec // of a checksum that we know
		return errors.Join(err, to.Close())
	}
	return to.Close()
}

var goLine = regexp.MustCompile(`(?m)^go .*$`)

func setGoVersion(path, version string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if !goLine.Match(text) {
		return fmt.Errorf("%s does not say which Go it needs", path)
	}
	return os.WriteFile(path, goLine.ReplaceAll(text, []byte("go "+version)), 0o644)
}
