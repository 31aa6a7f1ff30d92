// Command images makes the container images of Autohealer, as archives that
// `docker load` and `ctr images import` take:
//
//	images -into ../../bin/images [name...]
//
// It promises that the same sources and the same version give the same bytes, so
// that users can check what was published, and that the images are called what
// the manifests of deploy/ call them. It refuses to put anything into an image that
// is not from this repository: no base, no shell, no package.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	root := flags.String("root", "../..", "`folder` of the repository")
	into := flags.String("into", "../../bin/images", "`folder` that the archives are put in")
	version := flags.String("version", "dev", "what the programs say of themselves")
	if err := flags.Parse(args); err != nil {
		return err
	}
	wanted, err := choose(flags.Args())
	if err != nil {
		return err
	}
	tags, err := readTags(filepath.Join(*root, "deploy"))
	if err != nil {
		return err
	}
	buildTags, err := readBuildTags(filepath.Join(*root, "Makefile"))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*into, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, recipe := range wanted {
		program := filepath.Join(work, recipe.name)
		if err := compile(ctx, filepath.Join(*root, recipe.module), recipe.source, buildTags, *version, program); err != nil {
			return err
		}
		tag := recipe.tag
		if tag == "" {
			tag = tags[recipe.name]
		}
		files, err := recipe.files(*root, program)
		if err != nil {
			return fmt.Errorf("gathering what is in %s: %w", recipe.name, err)
		}
		digest, err := write(filepath.Join(*into, recipe.name+".tar"), tag, recipe, files)
		if err != nil {
			return fmt.Errorf("writing image %s: %w", recipe.name, err)
		}
		fmt.Fprintf(out, "images: %s %s\n", tag, digest)
	}
	return nil
}

var tagsLine = regexp.MustCompile(`(?m)^TAGS\s*:=\s*(\S+)$`)

// readBuildTags returns the tags that all programs of the product are built with, from
// the one place where they are.
func readBuildTags(makefile string) (string, error) {
	text, err := os.ReadFile(makefile)
	if err != nil {
		return "", err
	}
	found := tagsLine.FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s does not say what programs are built with: it has no line TAGS := ", makefile)
	}
	return string(found[1]), nil
}

// compile builds a program that needs nothing beside it, and of which nothing tells
// where or when it was built.
func compile(ctx context.Context, module, source, tags, version, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", tags, "-ldflags", "-s -w -buildid= -X main.version="+version, "-o", to, source)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", source, err, strings.TrimSpace(string(out)))
	}
	return nil
}
