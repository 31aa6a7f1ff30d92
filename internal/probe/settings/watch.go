package settings

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// settle is how long an edit may take: who writes a file in two steps is not read
	// in between.
	settle = 100 * time.Millisecond
	// slowLook finds what no notice comes of: links to elsewhere, file systems that
	// others change, and what happens between two watches.
	slowLook = 30 * time.Second
)

// Watch reads the files whenever they change, and hands over the changes, until ctx
// ends. It is the only user of the shelf meanwhile, beside told.
func (s *Store) Watch(ctx context.Context, told func([]Change)) {
	var notices <-chan fsnotify.Event
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		defer watcher.Close()
		notices = watcher.Events
	} else {
		s.cfg.Logger.Warn("edits of configuration files are noticed late", "every", slowLook, "err", err)
	}
	slow := time.NewTicker(slowLook)
	defer slow.Stop()
	var settled <-chan time.Time
	var names map[string]bool
	look := func() {
		// The watches come first: what happens after them is noticed, and what has
		// happened before is read.
		if watcher != nil {
			names = s.arrange(watcher)
		}
		if changes := s.Read(); len(changes) > 0 {
			told(changes)
		}
	}
	look()
	for {
		select {
		case <-ctx.Done():
			return
		case notice := <-notices:
			// A noisy folder must not put off for ever what was noticed first, so the
			// time runs from the first notice on.
			if base := filepath.Base(notice.Name); settled == nil && notice.Op != fsnotify.Chmod && (names[base] || strings.HasPrefix(base, "..")) {
				settled = time.After(settle)
			}
		case err := <-complaints(watcher):
			s.cfg.Logger.Warn("a notice of a changed file was missed", "err", err)
			settled = time.After(settle)
		case <-settled:
			settled = nil
			look()
		case <-slow.C:
			look()
		case <-s.cfg.Nudges:
			look()
		}
	}
}

func complaints(watcher *fsnotify.Watcher) <-chan error {
	if watcher == nil {
		return nil
	}
	return watcher.Errors
}

// arrange watches the folders in which the files are, or will be, and nothing else. It
// returns the names that matter in what is noticed, beside those of mounted
// ConfigMaps, which begin with two dots.
func (s *Store) arrange(watcher *fsnotify.Watcher) map[string]bool {
	for before := map[string]bool(nil); ; {
		names, folders := s.wanted()
		if maps.Equal(folders, before) {
			return names
		}
		before = folders
		missing := slices.Collect(maps.Keys(folders))
		for _, folder := range watcher.WatchList() {
			if !folders[folder] {
				_ = watcher.Remove(folder) // it may be gone by itself
			}
			missing = slices.DeleteFunc(missing, func(m string) bool { return m == folder })
		}
		for _, folder := range missing {
			err := watcher.Add(folder)
			if was := s.unwatched[folder]; err != nil && !was {
				s.cfg.Logger.Warn("edits of configuration files are noticed late", "folder", folder, "every", slowLook, "err", err)
			}
			s.unwatched[folder] = err != nil
		}
		// A folder that came between the look and the watch is one to be watched.
	}
}

// wanted returns the folders to be watched, and the names that matter there: those of
// the files, of folders on the way to them that are not there yet, and of the folders
// that are, which may go.
func (s *Store) wanted() (names, folders map[string]bool) {
	names, folders = map[string]bool{}, map[string]bool{}
	want := func(path string) {
		for { // up to the root at most, which is always there
			names[filepath.Base(path)] = true
			parent := filepath.Dir(path)
			if info, err := os.Stat(parent); err == nil && info.IsDir() {
				// The kernel has one watch for a folder, whatever links lead there.
				if target, err := filepath.EvalSymlinks(parent); err == nil {
					parent = target
				}
				names[filepath.Base(parent)], folders[parent] = true, true
				return
			}
			path = parent
		}
	}
	for i := range s.held {
		path := filepath.Clean(s.held[i].Path)
		want(path)
		if target, err := filepath.EvalSymlinks(path); err == nil && target != path {
			want(target)
		}
	}
	return names, folders
}
