package stats

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// usage is the usage of a filesystem in bytes.
type usage struct {
	used, free float64
}

// measure asks the kernel for the usage of the filesystem at a path.
func measure(path string) (usage, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return usage{}, fmt.Errorf("asking how full %s is: %w", path, err)
	}
	block := float64(s.Bsize)
	return usage{used: float64(s.Blocks-s.Bfree) * block, free: float64(s.Bavail) * block}, nil
}

// asker measures filesystems with a time limit. A filesystem that hangs occupies a thread of the
// agent that cannot be ended. It is therefore not asked again until it answers.
type asker struct {
	measure func(path string) (usage, error)
	mu      sync.Mutex
	asked   map[string]bool // without an answer yet
}

type answer struct {
	path  string
	usage usage
	err   error
}

// ask returns the usage of the filesystems that answer in time, by path, and the errors of the
// others.
func (a *asker) ask(paths []string, within time.Duration) (map[string]usage, []error) {
	// The buffer lets late answers finish although no one reads them.
	answers := make(chan answer, len(paths))
	open := 0
	for _, path := range paths {
		if a.begin(path) {
			open++
			go func() {
				u, err := a.measure(path)
				a.end(path)
				answers <- answer{path, u, err}
			}()
		}
	}
	got, failed := map[string]usage{}, map[string]error{}
	late := time.NewTimer(within)
	defer late.Stop()
	for open > 0 {
		select {
		case one := <-answers:
			open--
			if one.err != nil {
				failed[one.path] = one.err
			} else {
				got[one.path] = one.usage
			}
		case <-late.C:
			open = 0
		}
	}
	for _, path := range a.waiting(paths) {
		failed[path] = fmt.Errorf("asking how full %s is: no answer within %s", path, within)
	}
	// A fixed order: errors are logged when they change.
	wrong := make([]error, 0, len(failed))
	for _, path := range slices.Sorted(maps.Keys(failed)) {
		wrong = append(wrong, failed[path])
	}
	return got, wrong
}

// begin marks a filesystem as asked. It returns false if it already is.
func (a *asker) begin(path string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.asked[path] {
		return false
	}
	a.asked[path] = true
	return true
}

func (a *asker) end(path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.asked, path)
}

// waiting returns the paths that have not answered.
func (a *asker) waiting(paths []string) []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var late []string
	for _, path := range paths {
		if a.asked[path] {
			late = append(late, path)
		}
	}
	return late
}
