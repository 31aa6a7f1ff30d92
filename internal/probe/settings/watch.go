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
	// settle is how long Watch waits after a notification, so that it does not read a file that is
	// half written.
	settle = 100 * time.Millisecond
	// slowLook is how often Watch reads all files. It finds changes without a notification: link
	// targets elsewhere, network filesystems, and changes between two watches.
	slowLook = 30 * time.Second
)

// Watch reads the files whenever they change and passes the changes to told, until ctx ends. Only
// told may use the Store meanwhile.
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
		// The watches come before the read: later changes cause a notification, earlier ones are
		// read.
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
			// The wait starts with the first notification, so that a busy folder cannot delay it
			// forever.
			if base := filepath.Base(notice.Name); settled == nil && notice.Op != fsnotify.Chmod && (names[base] || strings.HasPrefix(base, "..")) {
				settled = time.After(settle)
			}
		case err := <-complaints(watcher):
			s.cfg.Logger.Warn("a notification of a changed file was missed", "err", err)
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

// arrange watches exactly the folders that contain the files or will contain them. It returns the
// file names whose notifications matter, besides those of mounted ConfigMaps, which begin with two
// dots.
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
				_ = watcher.Remove(folder) // the kernel may have removed it already
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
		// Repeat: a folder may have been created between the lookup and the watch.
	}
}

// wanted returns the folders to watch and the names that matter there: those of the files, of
// missing folders on their paths, and of the existing folders, which may be deleted.
func (s *Store) wanted() (names, folders map[string]bool) {
	names, folders = map[string]bool{}, map[string]bool{}
	want := func(path string) {
		for { // ends at the root, which always exists
			names[filepath.Base(path)] = true
			parent := filepath.Dir(path)
			if info, err := os.Stat(parent); err == nil && info.IsDir() {
				// The kernel has a single watch for a folder, whatever links lead to it.
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
