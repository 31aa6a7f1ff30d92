// Command images builds the container images of Autohealer for several platforms, as OCI archives,
// and pushes them to a registry:
//
//	images -into ../../bin/images [-push registry.example.com/team] [image...]
//
// The same sources, version and Debian packages give the same bytes, so that users can compare the
// digest of a published image. Beside each archive is an SBOM per platform.
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
	"slices"
	"strings"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
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

// builder builds images.
type builder struct {
	root    string // of the repository
	into    string // folder of the archives
	push    string // registry and path of the pushed images; empty: none
	version string
	tag     string // the build tag of the programs
	work    string // folder for compiled programs
	out     io.Writer

	platforms []v1.Platform
}

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("images", flag.ContinueOnError)
	b := builder{out: out}
	flags.StringVar(&b.root, "root", "../..", "`folder` of the repository")
	flags.StringVar(&b.into, "into", "../../bin/images", "`folder` for the archives")
	flags.StringVar(&b.push, "push", "", "`registry` and path to push to, for example registry.example.com/team")
	flags.StringVar(&b.version, "version", "dev", "version of the programs and images")
	platforms := flags.String("platforms", "linux/amd64,linux/arm64", "platforms of the images")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(flags.Args())
	if err != nil {
		return err
	}
	for text := range strings.SplitSeq(*platforms, ",") {
		platform, err := v1.ParsePlatform(text)
		if err != nil || platform.OS != "linux" || debianArchitectures[platform.Architecture] == "" {
			return fmt.Errorf("-platforms has %q: want linux/amd64 or linux/arm64", text)
		}
		b.platforms = append(b.platforms, *platform)
	}
	if slices.ContainsFunc(chosen, func(d definition) bool { return len(d.packages) > 0 }) {
		if err := requireDebian("/etc/os-release"); err != nil {
			return err
		}
	}
	tags, err := readTags(filepath.Join(b.root, "deploy"))
	if err != nil {
		return err
	}
	if b.tag, err = readBuildTag(filepath.Join(b.root, "Makefile")); err != nil {
		return err
	}
	if err := os.MkdirAll(b.into, 0o755); err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp("", "images-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	for _, image := range chosen {
		if err := b.build(ctx, image, image.reference(tags)); err != nil {
			return fmt.Errorf("building %s: %w", image.name, err)
		}
	}
	return nil
}

// build builds an image for all platforms.
func (b *builder) build(ctx context.Context, image definition, reference string) error {
	var built []platformImage
	for _, platform := range b.platforms {
		one, err := b.buildFor(ctx, image, platform)
		if err != nil {
			return fmt.Errorf("for %s: %w", platform, err)
		}
		built = append(built, one)
	}
	index, err := indexOf(built)
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	if err := writeArchive(filepath.Join(b.into, image.name+".tar"), reference, index); err != nil {
		return err
	}
	for _, one := range built {
		file := fmt.Sprintf("%s.%s-%s.spdx.json", image.name, one.platform.OS, one.platform.Architecture)
		if err := os.WriteFile(filepath.Join(b.into, file), one.sbom, 0o644); err != nil {
			return err
		}
	}
	fmt.Fprintf(b.out, "images: %s %s\n", reference, digest)
	if b.push == "" {
		return nil
	}
	// Without the repository of the manifests: the user names the registry.
	target := b.push + reference[strings.LastIndex(reference, "/"):]
	if err := push(ctx, target, index, built); err != nil {
		return fmt.Errorf("pushing %s: %w", target, err)
	}
	fmt.Fprintf(b.out, "images: pushed %s@%s\n", target, digest)
	return nil
}

// buildFor builds an image for one platform.
func (b *builder) buildFor(ctx context.Context, image definition, platform v1.Platform) (platformImage, error) {
	program := filepath.Join(b.work, image.program()+"-"+platform.Architecture)
	if _, err := os.Stat(program); err != nil { // images may share a program
		if err := compile(ctx, filepath.Join(b.root, image.module), image.source, b.tag, b.version, platform, program); err != nil {
			return platformImage{}, err
		}
	}
	files, err := image.files(b.root, program)
	if err != nil {
		return platformImage{}, err
	}
	layers := [][]entry{files}
	var packages []debianPackage
	if len(image.packages) > 0 {
		var system []entry
		cache := filepath.Join(b.root, "bin", "debian", platform.Architecture)
		if system, packages, err = debianFiles(ctx, cache, platform, image.packages); err != nil {
			return platformImage{}, err
		}
		layers = [][]entry{system, files}
	}
	built, err := assemble(image, b.version, platform, layers)
	if err != nil {
		return platformImage{}, err
	}
	sbom, err := describe(image.name, b.version, built, program, packages)
	return platformImage{Image: built, platform: platform, sbom: sbom}, err
}

var tagsLine = regexp.MustCompile(`(?m)^TAGS\s*:=\s*(\S+)$`)

// readBuildTag returns the build tag of all programs, from the Makefile.
func readBuildTag(makefile string) (string, error) {
	text, err := os.ReadFile(makefile)
	if err != nil {
		return "", err
	}
	found := tagsLine.FindSubmatch(text)
	if found == nil {
		return "", fmt.Errorf("%s has no line TAGS := with the build tag of the programs", makefile)
	}
	return string(found[1]), nil
}

// compile builds a static program. Its bytes do not depend on the time or the folder.
func compile(ctx context.Context, module, source, tag, version string, platform v1.Platform, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-tags", tag, "-ldflags", "-s -w -buildid= -X main.version="+version, "-o", to, source)
	cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0", "GOOS="+platform.OS, "GOARCH="+platform.Architecture, "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("compiling %s: %w\n%s", source, err, strings.TrimSpace(string(out)))
	}
	return nil
}
