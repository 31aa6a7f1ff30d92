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

// groupPrefix begins the names of control groups, which go on with the process that
// made them.
const groupPrefix = "autohealer-nodes-"

// hierarchies returns where control groups are: one folder, or with version 1 one for
// each controller.
func hierarchies() ([]string, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("looking for control groups: %w", err)
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
		return nil, errors.Join(errors.New("looking for control groups: there are none"), lines.Err())
	}
	return found, lines.Err()
}

// members returns the processes in a control group and those in it.
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
			return nil, fmt.Errorf("reading who is in control group %s: %w", name, err)
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids), nil
}

// makeGroup makes a control group everywhere.
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
			return fmt.Errorf("making a control group: %w", err)
		}
	}
	return nil
}

// passOn has all controllers count in the groups of a hierarchy of version 2 as well, as
// every engine of containers has it. Version 1 has nothing of the kind.
func passOn(root string) error {
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, controller := range strings.Fields(string(controllers)) {
		err = errors.Join(err, os.WriteFile(filepath.Join(root, "cgroup.subtree_control"), []byte("+"+controller), 0o600))
	}
	if err != nil {
		return fmt.Errorf("having controllers count in control groups: %w", err)
	}
	return nil
}

// removeGroup removes a control group and what is in it, everywhere. No process may be
// in there.
func removeGroup(name string) error {
	roots, err := hierarchies()
	for _, root := range roots {
		err = errors.Join(err, removeTree(filepath.Join(root, name)))
	}
	return err
}

// removeTree removes a folder and those in it. The files in there are the kernel's and
// go by themselves.
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

// sweep removes the control groups of those who were killed before they could. Their
// nodes are gone: those end with them.
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
