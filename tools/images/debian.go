package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// scriptPackages are for plugins that are scripts. Package usr-is-merged takes the place of
// usrmerge, which needs Perl.
var scriptPackages = []string{
	"base-files", "bash", "bind9-host", "ca-certificates", "coreutils", "curl", "dash", "diffutils", "findutils", "gawk",
	"grep", "iproute2", "iputils-ping", "jq", "kmod", "netcat-openbsd", "pciutils", "procps", "python3", "sed", "usr-is-merged", "util-linux",
}

// debianArchitectures are Debian's names of architectures, by Go's.
var debianArchitectures = map[string]string{"amd64": "amd64", "arm64": "arm64"}

// requireDebian fails on another system: apt-get would take packages of that system, and the SBOM
// would call them Debian's.
func requireDebian(release string) error {
	const advice = "build the image on Debian, or name other images (IMAGES=\"autohealer-agent autohealer-controller\")"
	text, err := os.ReadFile(release)
	if err != nil {
		return fmt.Errorf("cannot determine whether this system is Debian: %w: %s", err, advice)
	}
	if !slices.Contains(strings.Split(string(text), "\n"), "ID=debian") {
		return fmt.Errorf("%s has no line ID=debian: %s", release, advice)
	}
	for _, program := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: %s", err, advice)
		}
	}
	return nil
}

// debianPackage is a package in an image.
type debianPackage struct {
	name, version, architecture string
}

// debianFiles downloads packages with all that they depend on, and returns their files. It runs no
// program of a package, so that an image for another architecture can be built.
func debianFiles(ctx context.Context, cache string, platform v1.Platform, names []string) ([]entry, []debianPackage, error) {
	archives, err := download(ctx, cache, debianArchitectures[platform.Architecture], names)
	if err != nil {
		return nil, nil, err
	}
	system := newFileSystem()
	var packages []debianPackage
	for _, archive := range archives {
		one, err := system.unpack(ctx, archive)
		if err != nil {
			return nil, nil, fmt.Errorf("unpacking %s: %w", archive, err)
		}
		packages = append(packages, one)
	}
	system.configure()
	return system.sorted(), packages, nil
}

// download returns the archives of packages with their dependencies, as apt-get chooses them on a
// machine without packages.
func download(ctx context.Context, cache, architecture string, names []string) ([]string, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	for _, folder := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(cache, folder), 0o755); err != nil {
			return nil, err
		}
	}
	status := filepath.Join(cache, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	apt := func(args ...string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{
			"-q", "-y", "-o", "APT::Architecture=" + architecture, "-o", "APT::Architectures=" + architecture, "-o", "APT::Sandbox::User=",
			"-o", "APT::Install-Recommends=false", "-o", "Dir::State=" + cache, "-o", "Dir::State::lists=" + filepath.Join(cache, "lists"),
			"-o", "Dir::State::status=" + status, "-o", "Dir::Cache=" + cache, "-o", "Dir::Cache::archives=" + filepath.Join(cache, "archives"),
			"-o", "Debug::NoLocking=true", "-o", "Acquire::Retries=5",
		}, args...)...)
		var failed bytes.Buffer
		cmd.Stderr = &failed
		out, err := cmd.Output()
		if err != nil {
			err = fmt.Errorf("apt-get %s: %w\n%s", args[0], err, bytes.TrimSpace(failed.Bytes()))
		}
		return out, err
	}
	if _, err := apt("update"); err != nil {
		return nil, err
	}
	install := append([]string{"install"}, names...)
	if _, err := apt(append(install, "--download-only")...); err != nil {
		return nil, err
	}
	// The folder may have other versions from before.
	simulated, err := apt(append(install, "--simulate")...)
	if err != nil {
		return nil, err
	}
	var archives []string
	for line := range strings.Lines(string(simulated)) {
		var name, version string
		if n, _ := fmt.Sscanf(line, "Inst %s (%s", &name, &version); n != 2 {
			continue
		}
		name, _, _ = strings.Cut(name, ":")
		found, err := filepath.Glob(filepath.Join(cache, "archives", name+"_"+strings.ReplaceAll(version, ":", "%3a")+"_*.deb"))
		if err != nil || len(found) != 1 {
			return nil, fmt.Errorf("%d archives of %s %s were downloaded, want 1 (%w)", len(found), name, version, err)
		}
		archives = append(archives, found[0])
	}
	if len(archives) < len(names) {
		return nil, fmt.Errorf("apt-get would install %d packages, want at least %d:\n%s", len(archives), len(names), simulated)
	}
	slices.Sort(archives)
	return archives, nil
}

// fileSystem is the files of a layer, by path.
type fileSystem struct {
	entries map[string]entry
	// authorities are the certificates of certificate authorities.
	authorities []string
}

// The folders of programs and libraries have moved to /usr. Older packages still name the old ones.
var moved = []string{"/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin"}

func newFileSystem() *fileSystem {
	s := &fileSystem{entries: map[string]entry{}}
	for _, folder := range moved {
		s.add(entry{path: folder, link: "usr" + folder, mode: 0o777})
		s.add(entry{path: "/usr" + folder, folder: true, mode: 0o755})
	}
	return s
}

func (s *fileSystem) add(e entry) { s.entries[e.path] = e }

func (s *fileSystem) sorted() []entry {
	entries := make([]entry, 0, len(s.entries))
	for _, e := range s.entries {
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return entries
}

// pathIn returns the path of a file of a package in the layer.
func pathIn(name string) string {
	name = path.Clean("/" + name)
	for _, folder := range moved {
		if name == folder || strings.HasPrefix(name, folder+"/") {
			return "/usr" + name
		}
	}
	return name
}

// isDocumentation says that a file is not needed to run a program. Copyright files stay.
func isDocumentation(name string) bool {
	for _, folder := range []string{"/usr/share/man/", "/usr/share/info/", "/usr/share/locale/", "/usr/share/lintian/", "/usr/share/bash-completion/"} {
		if strings.HasPrefix(name, folder) {
			return true
		}
	}
	return strings.HasPrefix(name, "/usr/share/doc/") && path.Base(name) != "copyright"
}

// unpack adds the files of a package.
func (s *fileSystem) unpack(ctx context.Context, archive string) (debianPackage, error) {
	output := func(option string) ([]byte, error) {
		cmd := exec.CommandContext(ctx, "dpkg-deb", option, archive)
		out, err := cmd.Output()
		if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(failed.Stderr))
		}
		return out, err
	}
	control, err := output("--field")
	if err != nil {
		return debianPackage{}, err
	}
	var one debianPackage
	for line := range strings.Lines(string(control)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch key {
		case "Package":
			one.name = value
		case "Version":
			one.version = value
		case "Architecture":
			one.architecture = value
		}
	}
	// Scanners of vulnerabilities read which packages an image has.
	s.add(entry{path: "/var/lib/dpkg/status.d/" + one.name, content: control, mode: 0o644})
	files, err := output("--fsys-tarfile")
	if err != nil {
		return one, err
	}
	return one, s.addFiles(tar.NewReader(bytes.NewReader(files)))
}

// addFiles adds the files of an archive.
func (s *fileSystem) addFiles(files *tar.Reader) error {
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := pathIn(header.Name)
		isMoved := slices.Contains(moved, strings.TrimPrefix(name, "/usr"))
		if name == "/" || isMoved || isDocumentation(name+"/") {
			continue
		}
		// Containers run as root or without privileges: setuid programs have no use.
		e := entry{path: name, mode: header.Mode &^ 0o6000}
		switch header.Typeflag {
		case tar.TypeReg:
			if e.content, err = io.ReadAll(files); err != nil {
				return err
			}
			if strings.HasPrefix(name, "/usr/share/ca-certificates/") {
				s.authorities = append(s.authorities, string(e.content))
			}
		case tar.TypeSymlink:
			e.link = header.Linkname
		case tar.TypeLink:
			target := s.entries[pathIn(header.Linkname)]
			e.content, e.link = target.content, target.link
		case tar.TypeDir:
			e.folder = true
		default:
			return fmt.Errorf("%s has the type %q", header.Name, header.Typeflag)
		}
		s.add(e)
	}
}

// configure does what the installation scripts of the packages would do.
func (s *fileSystem) configure() {
	s.add(entry{path: "/usr/bin/awk", link: "gawk", mode: 0o777})
	s.add(entry{path: "/usr/bin/nc", link: "nc.openbsd", mode: 0o777})
	s.add(entry{path: "/etc/passwd", content: []byte("root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"), mode: 0o644})
	s.add(entry{path: "/etc/group", content: []byte("root:x:0:\nnogroup:x:65534:\n"), mode: 0o644})
	s.add(entry{path: "/tmp", folder: true, mode: 0o1777})
	slices.Sort(s.authorities)
	s.add(entry{path: "/etc/ssl/certs/ca-certificates.crt", content: []byte(strings.Join(s.authorities, "")), mode: 0o644})
}
