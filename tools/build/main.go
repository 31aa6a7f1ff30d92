// Command build compiles the large programs that the demo, the tests and the checks use: `build
// testbed`, `build testbed-oldest`, `build nodes`, `build karpenter`, `build helm`, `build linter`,
// `build generator`. With DOWNLOAD=1 it downloads those that their maintainers publish with a
// checksum, and compiles them if that fails.
//
// A program in its folder is complete and has the pinned version: the command writes each program
// beside its place, and moves it there when it is complete. An interrupted build leaves no incomplete
// program, and the next one continues from the compiler's cache. Programs that are up to date are not
// touched.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	interrupted := ctx.Err() != nil
	stop()
	switch {
	case err == nil:
	case interrupted:
		fmt.Fprintln(os.Stderr, "build: interrupted; what is compiled so far is kept, run it again to go on")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "build:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	names := strings.Join(slices.Sorted(maps.Keys(sets)), ", ")
	if len(args) == 0 {
		return errors.New("name what to build, one or more of " + names)
	}
	for _, name := range args {
		s, ok := sets[name]
		if !ok {
			return fmt.Errorf("there is nothing named %q to build; want one or more of %s", name, names)
		}
		if err := s.build(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

// build builds what is missing or out of date.
func (s set) build(ctx context.Context, name string) error {
	stamps := filepath.Join(s.out, ".stamps")
	if err := os.MkdirAll(stamps, 0o755); err != nil {
		return err
	}
	unlock, err := lock(filepath.Join(s.out, ".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	leftovers, err := filepath.Glob(filepath.Join(s.out, ".*.building.*"))
	if err != nil {
		return err
	}
	for _, leftover := range leftovers {
		os.Remove(leftover)
	}

	inputs, err := s.fingerprint(ctx)
	if err != nil {
		return err
	}
	var todo []program
	for _, p := range s.programs {
		if dir := os.Getenv(s.given); s.given != "" && dir != "" && isExecutable(filepath.Join(dir, p.name)) {
			fmt.Printf("%s: %s is served from %s\n", name, p.name, s.given)
			continue
		}
		stamp, err := os.ReadFile(filepath.Join(stamps, p.name))
		if err == nil && string(stamp) == p.key(inputs) && isExecutable(filepath.Join(s.out, p.name)) {
			continue
		}
		todo = append(todo, p)
	}
	if len(todo) == 0 {
		return nil
	}
	began := time.Now()
	if os.Getenv(downloadVariable) == "1" && slices.ContainsFunc(todo, func(p program) bool { return p.release != nil }) {
		fmt.Printf("%s: downloading what is published, and building the rest; DOWNLOAD=0 builds all\n", name)
	}
	fmt.Printf("%s: building %s\n", name, s.what)
	if s.source != nil {
		if err := s.source.fetch(ctx); err != nil {
			return err
		}
	}
	from := newDownloader()
	for i, p := range todo {
		label := fmt.Sprintf("%s: [%d/%d] %s", name, i+1, len(todo), p.name)
		if err := p.install(ctx, label, s, from); err != nil {
			return fmt.Errorf("building %s: %w", p.name, err)
		}
		if err := os.WriteFile(filepath.Join(stamps, p.name), []byte(p.key(inputs)), 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("%s: ready after %s\n", name, time.Since(began).Round(time.Second))
	return nil
}

// fingerprint names everything that decides what a build yields.
func (s set) fingerprint(ctx context.Context) ([]byte, error) {
	h := sha256.New()
	for _, f := range append([]string{"go.mod", "go.sum"}, s.inputs...) {
		b, err := os.ReadFile(filepath.Join(s.module, f))
		if err != nil {
			return nil, fmt.Errorf("%w (run this from the folder tools)", err)
		}
		fmt.Fprintf(h, "%s %d\n", f, len(b))
		h.Write(b)
	}
	version, err := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH").Output()
	if err != nil {
		return nil, fmt.Errorf("asking go for its version: %w", err)
	}
	h.Write(version)
	if s.source != nil {
		fmt.Fprintln(h, s.source.sum, s.source.goVersion)
	}
	if s.tags != "" {
		fmt.Fprintln(h, s.tags)
	}
	return h.Sum(nil), nil
}

func (p program) key(inputs []byte) string {
	return fmt.Sprintf("%x", sha256.Sum256(append([]byte(p.pkg+"\x00"+p.ldflags+"\x00"), inputs...)))
}

// install downloads or compiles one program beside its place and moves it there.
func (p program) install(ctx context.Context, label string, s set, from *downloader) error {
	show := newProgress(label)
	// Each attempt has its own file: a compiler that outlives a killed build must not write into that of
	// the next build.
	unfinished, err := filepath.Abs(filepath.Join(s.out, fmt.Sprintf(".%s.building.%d", p.name, os.Getpid())))
	if err != nil {
		return err
	}
	defer os.Remove(unfinished)
	done := "downloaded"
	if isDownloaded, err := p.download(ctx, unfinished, show, from); err != nil {
		return err
	} else if !isDownloaded {
		compiled, err := p.compile(ctx, unfinished, show, s)
		if err != nil {
			return err
		}
		done = fmt.Sprintf("%d packages compiled", compiled)
	}
	if err := os.Rename(unfinished, filepath.Join(s.out, p.name)); err != nil {
		return err
	}
	show.finish(done)
	return nil
}

// download downloads a program if it is published and DOWNLOAD is 1. If that fails, it prints why,
// and the program is compiled.
func (p program) download(ctx context.Context, unfinished string, show *progress, from *downloader) (isDone bool, err error) {
	if p.release == nil || os.Getenv(downloadVariable) != "1" {
		return false, nil
	}
	file, err := os.Create(unfinished)
	if err != nil {
		return false, err
	}
	failed := cmp.Or(from.fetch(ctx, *p.release, file, show), file.Close())
	if failed == nil || ctx.Err() != nil {
		return failed == nil, ctx.Err()
	}
	show.print(fmt.Sprintf("%s: not downloaded, so it is compiled: %v", show.label, failed), false)
	return false, os.Remove(unfinished) // the compiler does not replace the file
}

// compile compiles a program and returns the number of compiled packages.
func (p program) compile(ctx context.Context, unfinished string, show *progress, s set) (done int, err error) {
	total, err := p.stale(ctx, s, show)
	if err != nil {
		return 0, err
	}
	cmd := s.goCommand(ctx, "build", "-v", "-trimpath", "-tags", s.tags, "-ldflags", strings.TrimSpace("-s -w "+p.ldflags), "-o", unfinished, p.pkg)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	var complaints bytes.Buffer
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		line := lines.Text()
		switch {
		case strings.HasPrefix(line, "go: downloading "):
			show.step(strings.TrimPrefix(line, "go: "))
		case strings.ContainsAny(line, " :"): // not a package path
			complaints.WriteString(line + "\n")
		default:
			done++
			show.step(fmt.Sprintf("%d/%d packages", done, max(done, total)))
		}
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("%w\n%s", err, complaints.String())
	}
	return done, nil
}

// stale counts the packages that the compiler has not cached yet. On a new
// machine this is also when the modules are downloaded.
func (p program) stale(ctx context.Context, s set, show *progress) (int, error) {
	show.step("looking what is cached")
	cmd := s.goCommand(ctx, "list", "-deps", "-trimpath", "-tags", s.tags, "-f", "{{if .Stale}}x{{end}}", p.pkg)
	var listed, complaints bytes.Buffer
	cmd.Stdout = &listed
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		if module, ok := strings.CutPrefix(lines.Text(), "go: downloading "); ok {
			show.step("downloading " + module)
			continue
		}
		complaints.WriteString(lines.Text() + "\n")
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("listing packages: %w\n%s", err, complaints.String())
	}
	return bytes.Count(listed.Bytes(), []byte("x")), nil
}

// goCommand runs go in the set's module. An interrupt reaches it as one, so that
// it removes its own temporary files.
func (s set) goCommand(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = s.module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// lock lets one build at a time into the folder; a second one waits for it.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		fmt.Println("build: another build is under way, waiting for it")
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("locking %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
