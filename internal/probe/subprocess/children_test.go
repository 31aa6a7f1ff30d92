package subprocess_test

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/resourcestack/autohealer/internal/probe/subprocess"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestMain(m *testing.M) {
	if subprocess.Become() {
		return
	}
	// Otherwise a process whose exec fails takes a second longer to report it.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0"); err != nil {
		panic(err)
	}
	m.Run()
}

// script writes a shell script.
func script(t *testing.T, lines string) string {
	t.Helper()
	return write(t, "#!/bin/bash\n"+lines+"\n", 0o700)
}

func write(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "check.sh")
	testkit.Must(t, os.WriteFile(path, []byte(text), mode))
	return path
}

// read returns the number that a script has written to a file.
func read(t *testing.T, path string) int {
	t.Helper()
	var pid int
	testkit.Until(t, "number in "+path, func() bool {
		text, err := os.ReadFile(path)
		if err != nil || !strings.HasSuffix(string(text), "\n") {
			return false
		}
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	})
	return pid
}

// state returns the state letter of a process and its parent, empty if the process does not exist.
func state(pid int) (letter string, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", 0
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	if _, err := fmt.Sscan(rest, &letter, &parent); err != nil {
		return "", 0
	}
	return letter, parent
}

// isGone says whether a process has ended. A child of this process must also be reaped.
func isGone(pid int) func() bool {
	return func() bool {
		letter, parent := state(pid)
		return letter == "" || letter == "Z" && parent != os.Getpid()
	}
}

// run fails the test if Run waits for a program that does not end, also on a busy machine. The
// test ends after the program, so that no process is left behind.
func run(t *testing.T, c *subprocess.Children, s subprocess.Spec) subprocess.Result {
	t.Helper()
	done := make(chan subprocess.Result, 1)
	var running sync.WaitGroup
	running.Go(func() { done <- c.Run(t.Context(), s) })
	t.Cleanup(running.Wait)
	select {
	case r := <-done:
		return r
	case <-time.After(30 * time.Second):
		t.Fatal("Run has not returned")
		return subprocess.Result{}
	}
}

func TestRunReturnsCodeAndOutput(t *testing.T) {
	for name, test := range map[string]struct {
		lines             string
		args              []string
		code              int
		output, complaint string
	}{
		"exit code 0":                         {lines: "exit 0"},
		"exit code 1":                         {lines: "exit 1", code: 1},
		"exit code 255":                       {lines: "exit 255", code: 255},
		"stdout and stderr":                   {lines: "echo fine; echo odd >&2", output: "fine\n", complaint: "odd\n"},
		"arguments":                           {lines: `echo "$#: $1, $2"`, args: []string{"a b", ""}, output: "2: a b, \n"},
		"empty stdin":                         {lines: "read line; echo $?", output: "1\n"},
		"output of a tee after the end":       {lines: "exec > >(/bin/sleep 0.05; cat)\necho late", output: "late\n"},
		"a background process that writes on": {lines: "yes >/dev/null & echo well", output: "well\n"},
	} {
		t.Run(name, func(t *testing.T) {
			// More than once, because a busy machine may not run the tee within its 200 ms.
			testkit.Eventually(t, "the code and the output", func() error {
				r := run(t, subprocess.New(), subprocess.Spec{Path: script(t, test.lines), Args: test.args, Timeout: 20 * time.Second})
				if r.Fault != "" || r.Code != test.code || r.Output != test.output || r.Complaint != test.complaint {
					return fmt.Errorf("unexpected result: %+v", r)
				}
				return nil
			})
		})
	}
}

func TestRelativePathStartsAtTheWorkingDirectory(t *testing.T) {
	t.Chdir(filepath.Dir(script(t, "echo here")))
	testkit.Same(t, subprocess.New().Run(t.Context(), subprocess.Spec{Path: "./check.sh"}).Output, "here\n", "the output")
	r := subprocess.New().Run(t.Context(), subprocess.Spec{Path: "./config/plugin/check_ntp.sh"})
	if folder, _ := os.Getwd(); r.Fault != subprocess.Missing || !strings.Contains(r.Err.Error(), folder) {
		t.Errorf("a missing program gives %+v, want the directory in the message", r)
	}
}

func TestFaultsOfFilesThatCannotBeRun(t *testing.T) {
	folder := t.TempDir()
	fifo := filepath.Join(folder, "fifo")
	testkit.Must(t, unix.Mkfifo(fifo, 0o700))
	dangling := filepath.Join(folder, "dangling")
	testkit.Must(t, os.Symlink("nowhere", dangling))
	for name, test := range map[string]struct {
		path  string
		fault subprocess.Fault
		says  string
	}{
		"no file":                        {filepath.Join(folder, "none"), subprocess.Missing, "mount it"},
		"a link to nothing":              {dangling, subprocess.Missing, "mount it"},
		"a file in place of a directory": {filepath.Join(write(t, "", 0o600), "x"), subprocess.Missing, "mount it"},
		"a directory":                    {folder, subprocess.Folder, "configure the path of a program"},
		"not executable":                 {write(t, "#!/bin/sh\n", 0o644), subprocess.NotExecutable, "chmod +x"},
		"a pipe":                         {fifo, subprocess.NotAProgram, "configure the path of a program"},
		"no shebang":                     {write(t, "echo no interpreter is named", 0o700), subprocess.NotAProgram, "#!"},
		"an empty file":                  {write(t, "", 0o700), subprocess.NotAProgram, "#!"},
		"no interpreter":                 {write(t, "#!/no/such/shell -e\n", 0o700), subprocess.Missing, "/no/such/shell"},
	} {
		t.Run(name, func(t *testing.T) {
			r := subprocess.New().Run(t.Context(), subprocess.Spec{Path: test.path, Timeout: time.Second})
			testkit.Check(t, r.Fault == test.fault && r.Err != nil && strings.Contains(r.Err.Error(), test.says) && strings.Contains(r.Err.Error(), test.path),
				"the fault is %q (%v), want %q with %q", r.Fault, r.Err, test.fault, test.says)
		})
	}
}

func TestRemovedProgramIsMissing(t *testing.T) {
	c, path := subprocess.New(), script(t, "exit 0")
	testkit.MustBeSame(t, c.Run(t.Context(), subprocess.Spec{Path: path}).Fault, "", "the fault")
	testkit.Must(t, os.Remove(path))
	testkit.Same(t, c.Run(t.Context(), subprocess.Spec{Path: path}).Fault, subprocess.Missing, "the fault")
}

func TestProgramKilledByASignal(t *testing.T) {
	r := subprocess.New().Run(t.Context(), subprocess.Spec{Path: script(t, "echo last words; kill -SEGV $$")})
	testkit.Check(t, r.Fault == subprocess.Killed && r.Output == "last words\n", "unexpected result: %+v", r)
}

func TestLargeOutputIsDiscardedCheaply(t *testing.T) {
	const megabytes = 256
	s := subprocess.Spec{Path: script(t, fmt.Sprintf("head -c %dM /dev/zero || exit 2; head -c 1M /dev/zero >&2 || exit 3; exit 1", megabytes)), Timeout: 30 * time.Second}
	c := subprocess.New()
	var before, after runtime.MemStats
	var costBefore, costAfter unix.Rusage
	runtime.ReadMemStats(&before)
	testkit.Must(t, unix.Getrusage(unix.RUSAGE_SELF, &costBefore))
	r := c.Run(t.Context(), s)
	testkit.Must(t, unix.Getrusage(unix.RUSAGE_SELF, &costAfter))
	runtime.ReadMemStats(&after)
	testkit.Check(t, r.Code == 1 && len(r.Output) == subprocess.MaxOutput && len(r.Complaint) == subprocess.MaxOutput,
		"the fault is %q, the code %d, and the outputs have %d and %d bytes", r.Fault, r.Code, len(r.Output), len(r.Complaint))
	testkit.Between(t, after.TotalAlloc-before.TotalAlloc, 0, 1<<20, "bytes that were allocated for %d MB", megabytes)
	spent := time.Duration(costAfter.Utime.Nano() + costAfter.Stime.Nano() - costBefore.Utime.Nano() - costBefore.Stime.Nano())
	t.Logf("%d MB cost %s of a core, %s each", megabytes, spent, spent/megabytes)
}

func TestBackgroundProcessesAreKilled(t *testing.T) {
	note := filepath.Join(t.TempDir(), "pid")
	c := subprocess.New()
	r := run(t, c, subprocess.Spec{Path: script(t, "sleep 1000 &\necho $! >"+note+"; echo done; exit 1"), Timeout: 10 * time.Second})
	testkit.Check(t, r.Fault == "" && r.Code == 1 && r.Output == "done\n", "unexpected result: %+v", r)
	testkit.Until(t, "end of the background process", isGone(read(t, note)))
	testkit.Same(t, c.Abandoned(), 0, "abandoned programs")
}

func TestTimeoutKillsTheGroup(t *testing.T) {
	folder := t.TempDir()
	fork, self := filepath.Join(folder, "fork"), filepath.Join(folder, "self")
	r := run(t, subprocess.New(), subprocess.Spec{
		Path:    script(t, "trap '' TERM INT HUP\necho $$ >"+self+"\necho begun; sleep 1000 &\necho $! >"+fork+"; wait"),
		Timeout: 2 * time.Second, // more than it needs to begin
	})
	testkit.Check(t, r.Fault == subprocess.Timeout && r.Output == "begun\n", "unexpected result: %+v", r)
	testkit.Until(t, "end of the program", isGone(read(t, self)))
	testkit.Until(t, "end of its fork", isGone(read(t, fork)))
}

func TestCancelKillsTheProgram(t *testing.T) {
	note := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(t.Context())
	path := script(t, "echo $$ >"+note+"; exec sleep 1000")
	done := make(chan subprocess.Result, 1)
	var running sync.WaitGroup
	running.Go(func() { done <- subprocess.New().Run(ctx, subprocess.Spec{Path: path, Timeout: time.Hour}) })
	t.Cleanup(running.Wait)
	pid := read(t, note)
	cancel()
	testkit.Same(t, (<-done).Fault, subprocess.Cancelled, "the fault")
	testkit.Until(t, "end of the program", isGone(pid))
}

// Different processes can hang in the kernel: the program itself, a process that it runs
// (like the df of a script), and exec, which reads its file, interpreter and loader.
func TestUnkillableProgramIsAbandonedAndNotRestarted(t *testing.T) {
	for name, lines := range map[string]string{
		"the program itself": "echo $$ >NOTE; exec cat DEAF/file",
		"its child":          "echo before; cat DEAF/file & echo $! >NOTE; wait",
		"its orphan":         "cat DEAF/file </dev/null >/dev/null 2>&1 & echo $! >NOTE; until grep -q wait_answer /proc/$!/wchan; do :; done; exit 1",
		"its file":           "",
		"its interpreter":    "",
		"its loader":         "",
	} {
		t.Run(name, func(t *testing.T) {
			folder, wake := hangingFS(t)
			note := filepath.Join(t.TempDir(), "pid")
			path := script(t, strings.NewReplacer("DEAF", folder, "NOTE", note).Replace(lines))
			switch name {
			case "its file":
				path = filepath.Join(folder, "check.sh")
			case "its interpreter":
				path = write(t, "#!"+filepath.Join(folder, "bash")+"\nexit 0\n", 0o700)
			case "its loader":
				path = loadedBy(t, filepath.Join(folder, "ld.so"))
			}
			c := subprocess.New()
			leaves := name == "its orphan"
			s := subprocess.Spec{Path: path, Timeout: 2 * time.Second}
			if leaves {
				s.Timeout = 10 * time.Second // more than it needs
			}
			r := run(t, c, s)
			want := subprocess.Timeout
			if name == "its file" {
				want = subprocess.NotStarted
			}
			testkit.Check(t, (!leaves || r.Fault == "" && r.Code == 1) && (leaves || r.Fault == want), "unexpected result: %+v", r)
			testkit.Until(t, "abandoned program", func() bool { return c.Abandoned() == 1 })
			pid := 0
			if lines != "" {
				pid = read(t, note)
				letter, _ := state(pid)
				testkit.Require(t, letter == "D", "the process is in state %q, want D: the test is ineffective", letter)
			}
			runtime.GC() // waits for all threads, but must not wait for the hanging one
			for range 3 {
				r := run(t, c, s)
				testkit.Check(t, r.Fault == subprocess.Hangs && strings.Contains(r.Err.Error(), path), "the next run gives %+v", r)
			}
			testkit.Same(t, c.Abandoned(), 1, "abandoned programs")
			other := subprocess.Spec{Path: script(t, "echo fine"), Timeout: 30 * time.Second}
			testkit.Same(t, c.Run(t.Context(), other).Output, "fine\n", "the output of another program")
			wake()
			testkit.Until(t, "end of the abandoned program", func() bool { return c.Abandoned() == 0 })
			if pid != 0 {
				testkit.Until(t, "end of the process", isGone(pid))
			}
			r = c.Run(t.Context(), s)
			testkit.Check(t, r.Fault != subprocess.Hangs, "after it has ended, the next run still gives %+v", r)
		})
	}
}

// loadedBy returns a program with this loader.
func loadedBy(t *testing.T, loader string) string {
	t.Helper()
	program := testkit.Value(elf.Open("/bin/true")).Must(t)
	defer program.Close()
	text := testkit.Value(os.ReadFile("/bin/true")).Must(t)
	at := slices.IndexFunc(program.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	testkit.Require(t, at >= 0, "/bin/true has no loader: this test needs a dynamically linked program")
	// The path must fit in the space of the original path, so a short link points to the loader.
	folder := testkit.Value(os.MkdirTemp("/tmp", "ld")).Must(t)
	t.Cleanup(func() { os.RemoveAll(folder) })
	link := filepath.Join(folder, "l")
	testkit.Must(t, os.Symlink(loader, link))
	room := text[program.Progs[at].Off:][:program.Progs[at].Filesz]
	clear(room)
	testkit.Require(t, copy(room[:len(room)-1], link) >= len(link), "%s is longer than the available %d bytes", link, len(room))
	return write(t, string(text), 0o700)
}

// The intermediate process is invisible: the program has its own name and no other open
// files.
func TestIntermediateProcessIsInvisible(t *testing.T) {
	r := run(t, subprocess.New(), subprocess.Spec{Path: script(t, `tr '\0' ' ' </proc/$$/cmdline; echo; [ -e /proc/$$/fd/3 ] || echo closed; ps -o pgid= -p $$ | grep -qw $$ && echo alone`), Args: []string{"a"}})
	testkit.Check(t, strings.HasSuffix(r.Output, "/check.sh a \nclosed\nalone\n"), "unexpected result: %+v", r)
}

// If the agent is process 1 of its container, orphaned processes become its children.
func TestReapReapsOnlyOrphans(t *testing.T) {
	testkit.Must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
	defer func() {
		testkit.Must(t, unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0))
	}()
	c := subprocess.New()
	ctx, cancel := context.WithCancel(t.Context())
	var reaper sync.WaitGroup
	reaper.Go(func() { c.Reap(ctx) })
	defer reaper.Wait()
	defer cancel()

	folder := t.TempDir()
	// Each program leaves two processes: one in its group, which Run kills, and one outside it,
	// which ends a moment later.
	path := script(t, `(setsid bash -c 'echo $$ >'$1'; sleep 0.0'$2 </dev/null >/dev/null 2>&1 &)
sleep 1000 </dev/null >/dev/null 2>&1 &
until [ -s $1 ]; do sleep 0.01; done
exit $2`)
	const rounds, side = 15, 4
	var all sync.WaitGroup
	for worker := range side {
		all.Go(func() {
			for i := range rounds {
				code := 1 + (worker*rounds+i)%9
				note := filepath.Join(folder, fmt.Sprintf("%d-%d", worker, i))
				// The exit code would be lost if Reap had reaped the program.
				r := c.Run(t.Context(), subprocess.Spec{Path: path, Args: []string{note, strconv.Itoa(code)}, Timeout: 10 * time.Second})
				testkit.Check(t, r.Fault == "" && r.Code == code, "want code %d, got %+v", code, r)
			}
		})
	}
	all.Wait()
	inherited := 0
	for worker := range side {
		for i := range rounds {
			pid := read(t, filepath.Join(folder, fmt.Sprintf("%d-%d", worker, i)))
			testkit.Until(t, "end of an inherited process", isGone(pid))
			inherited++
		}
	}
	testkit.Until(t, "end of all children", func() bool {
		return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil) == unix.ECHILD
	})
	t.Logf("%d inherited processes were reaped", inherited)
}

func TestNothingLeaks(t *testing.T) {
	// A garbage collection would close leaked files.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	c := subprocess.New()
	specs := []subprocess.Spec{
		{Path: script(t, "exit 0")}, {Path: script(t, "yes")}, {Path: script(t, "sleep 100 & exit 2")}, {Path: "/none"}, {Path: "/"},
		{Path: script(t, "exec sleep 100")}, {Path: write(t, "", 0o700)}, {Path: script(t, "exec >&- 2>&-; exit 1")},
		{Path: script(t, "(setsid sleep 0.3 &)")},
	}
	run := func() {
		var all sync.WaitGroup
		for _, s := range specs {
			s.Timeout = 100 * time.Millisecond
			all.Go(func() { c.Run(t.Context(), s) })
		}
		all.Wait()
	}
	run() // opens what stays open
	open := func() int {
		names := testkit.Value(os.ReadDir("/proc/self/fd")).Must(t)
		return len(names)
	}
	settled := func() bool { return c.Abandoned() == 0 }
	testkit.Until(t, "end of abandoned programs", settled)
	files, goroutines := open(), runtime.NumGoroutine()
	for range 5 {
		run()
	}
	testkit.Until(t, "end of abandoned programs", settled)
	testkit.Until(t, "end of the goroutines", func() bool { return runtime.NumGoroutine() <= goroutines })
	testkit.Until(t, "end of the open files", func() bool { return open() <= files })
}

// BenchmarkRun starts /bin/true and waits for its end.
func BenchmarkRun(b *testing.B) {
	c := subprocess.New()
	b.ReportAllocs()
	for b.Loop() {
		r := c.Run(b.Context(), subprocess.Spec{Path: "/bin/true", Timeout: time.Minute})
		testkit.Require(b, r.Fault == "" && r.Code == 0, "%v", r)
	}
}
