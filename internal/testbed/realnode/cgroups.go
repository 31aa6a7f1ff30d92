package realnode

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// groupPrefix is the prefix of control group names. The process ID of the creator follows.
const groupPrefix = "autohealer-nodes-"

// hierarchies returns the folders of control groups: one, or one per controller with
// version 1.
func hierarchies() ([]string, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("finding control groups: %w", err)
	}
	defer mounts.Close()
	var found []string
	lines := bufio.NewScanner(mounts)
	for lines.Scan() {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && strings.HasPrefix(fields[2], "cgroup") && !slices.Contains(found, fields[1]) {
			found = append(found, fields[1])
		}
	}
	if len(found) == 0 {
		return nil, errors.Join(errors.New("finding control groups: there are none"), lines.Err())
	}
	return found, lines.Err()
}

// members returns the processes in a control group and its children.
func members(name string) ([]int, error) {
	roots, err := hierarchies()
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, root := range roots {
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // groups come and go with their containers
			}
			if err != nil || entry.Name() != "cgroup.procs" {
				return err
			}
			list, err := os.ReadFile(path)
			for _, word := range strings.Fields(string(list)) {
				pid, _ := strconv.Atoi(word)
				pids = append(pids, pid)
			}
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
				return nil
			}
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("reading the processes of control group %s: %w", name, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// makeGroup creates a control group in all hierarchies.
func makeGroup(name string) error {
	roots, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		if err := passOn(root); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			return fmt.Errorf("creating a control group: %w", err)
		}
	}
	return nil
}

// passOn enables all controllers for the children of a version 2 hierarchy, like every
// container engine. Version 1 does not need it.
func passOn(root string) error {
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, controller := range strings.Fields(string(controllers)) {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+controller), 0o600))
	}
	if err != nil {
		return fmt.Errorf("enabling controllers of control groups: %w", err)
	}
	return nil
}

// removeGroup removes a control group and its children in all hierarchies. It must have no
// processes.
func removeGroup(name string) error {
	roots, err := hierarchies()
	for _, root := range roots {
		err = errors.Join(err, removeTree(filepath.Join(root, name)))
	}
	return err
}

// removeTree removes a folder and its subfolders. The kernel removes the files.
func removeTree(folder string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range entries {
		if entry.IsDir() {
			err = errors.Join(err, removeTree(filepath.Join(folder, entry.Name())))
		}
	}
	if removed := syscall.Rmdir(folder); removed != nil {
		err = errors.Join(err, fmt.Errorf("removing control group %s: %w", folder, removed))
	}
	return err
}

// sweep removes the control groups of killed processes. Their nodes ended with them.
func sweep() error {
	roots, err := hierarchies()
	for _, root := range roots {
		left, _ := filepath.Glob(filepath.Join(root, groupPrefix+"*"))
		for _, folder := range left {
			owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), groupPrefix), "-")
			pid, parsed := strconv.Atoi(owner)
			if parsed == nil && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
				err = errors.Join(err, removeTree(folder))
			}
		}
	}
	return err
}
