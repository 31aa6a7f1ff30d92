// Command testlog prints what `go test -json` writes so that people can read it:
// `go test -json ./... | testlog`.
//
// It prints the result of each package when the package ends, each test that took long
// when the test ends, and of all output only that of failed tests. At the end it lists the
// slowest packages and tests. It exits with 1 if anything failed or the input ends within
// a package. Lines that are not JSON pass unchanged. It does not run tests.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"
)

const (
	// long is how long a test takes to be printed although it has passed: it shows
	// progress while packages run for minutes.
	long = 10 * time.Second
	// listed is how many packages and tests the lists at the end have.
	listed = 10
)

func main() {
	signal.Ignore(os.Interrupt) // go test gets it as well, and ends its output
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "testlog:", err)
		os.Exit(1)
	}
}

// event is a line of `go test -json`, see `go doc test2json`.
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64 // in seconds
}

// duration is how long a package or a test took.
type duration struct {
	name string
	took time.Duration
}

// reader is the state between two lines.
type reader struct {
	out io.Writer
	// output has the output of each package that has not ended, by test. The empty test
	// is the package itself.
	output          map[string]map[string]*bytes.Buffer
	packages, tests []duration
	failed          int // packages
}

func run(in io.Reader, out io.Writer) error {
	r := reader{out: out, output: map[string]map[string]*bytes.Buffer{}}
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		r.line(line)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err != nil {
			break
		}
	}
	unended := slices.Sorted(maps.Keys(r.output))
	for _, name := range unended {
		r.end(name)
		fmt.Fprintf(out, "FAIL\t%s\tdid not end\n", name)
	}
	r.list("packages", r.packages)
	r.list("tests", r.tests)
	if failed := r.failed + len(unended); failed > 0 {
		return fmt.Errorf("%d packages failed", failed)
	}
	return nil
}

func (r *reader) line(line []byte) {
	var e event
	if !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &e) != nil || e.Action == "" {
		_, _ = r.out.Write(line)
		return
	}
	switch {
	case e.Action == "build-output":
		fmt.Fprint(r.out, e.Output)
	case e.Package == "": // build-fail: the packages that need it fail as well
	case e.Action == "output":
		r.keep(e)
	case e.Action == "start":
		r.of(e.Package)
	case e.Action != "pass" && e.Action != "fail" && e.Action != "skip":
	case e.Test != "":
		r.endTest(e)
	default:
		r.endPackage(e)
	}
}

func (r *reader) of(name string) map[string]*bytes.Buffer {
	if r.output[name] == nil {
		r.output[name] = map[string]*bytes.Buffer{}
	}
	return r.output[name]
}

// keep keeps output until its test or package ends.
func (r *reader) keep(e event) {
	for _, progress := range []string{"=== RUN", "=== PAUSE", "=== CONT", "=== NAME"} {
		if strings.HasPrefix(e.Output, progress) {
			return
		}
	}
	kept := r.of(e.Package)
	if kept[e.Test] == nil {
		kept[e.Test] = &bytes.Buffer{}
	}
	kept[e.Test].WriteString(e.Output)
}

func (r *reader) endTest(e event) {
	if e.Action == "fail" {
		r.print(e.Package, e.Test)
	}
	delete(r.of(e.Package), e.Test)
	if strings.Contains(e.Test, "/") {
		return // its time is part of that of its test
	}
	d := duration{e.Package + " " + e.Test, seconds(e.Elapsed)}
	r.tests = append(r.tests, d)
	if e.Action == "pass" && d.took >= long {
		fmt.Fprintf(r.out, "--- PASS: %s (%s) in %s\n", e.Test, d.took, e.Package)
	}
}

func (r *reader) endPackage(e event) {
	r.packages = append(r.packages, duration{e.Package, seconds(e.Elapsed)})
	if e.Action == "fail" {
		r.failed++
		r.end(e.Package)
		return
	}
	// The last line is the result. What a package prints that passes is left out.
	if kept := r.of(e.Package)[""]; kept != nil {
		text := strings.TrimSuffix(kept.String(), "\n")
		fmt.Fprintln(r.out, text[strings.LastIndex(text, "\n")+1:])
	}
	delete(r.output, e.Package)
}

// end prints the output of a package that has failed, after that of the tests that did not
// end: one of them panicked, or was running when the time was up.
func (r *reader) end(name string) {
	for _, test := range slices.Sorted(maps.Keys(r.of(name))) {
		if test != "" {
			r.print(name, test)
		}
	}
	r.print(name, "")
	delete(r.output, name)
}

func (r *reader) print(name, test string) {
	if kept := r.of(name)[test]; kept != nil {
		_, _ = r.out.Write(kept.Bytes())
	}
}

// list prints the slowest.
func (r *reader) list(what string, all []duration) {
	if len(all) == 0 {
		return
	}
	slices.SortFunc(all, func(a, b duration) int {
		return cmp.Or(cmp.Compare(b.took, a.took), cmp.Compare(a.name, b.name))
	})
	fmt.Fprintf(r.out, "the slowest of %d %s:\n", len(all), what)
	for _, d := range all[:min(listed, len(all))] {
		fmt.Fprintf(r.out, "%8.1fs  %s\n", d.took.Seconds(), d.name)
	}
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(10 * time.Millisecond)
}
