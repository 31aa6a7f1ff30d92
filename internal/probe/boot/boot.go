package boot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Boot is one boot of a machine.
type Boot struct {
	// ID is made by the kernel, and is another at each boot.
	ID string
	// Time at which it began, in whole seconds.
	//
	// It is the kernel's difference of the clock and the time since the boot. NTP speeds
	// up and slows down both alike, so that it moves only when the clock is set, and by
	// as much. Who subtracts the two himself gets another value each time he asks, and
	// whatever is stamped by it another stamp after each restart.
	Time time.Time
}

// Read asks the kernel of the machine whose proc file system is mounted at proc, which
// is /proc if empty.
func Read(proc string) (Boot, error) {
	if proc == "" {
		proc = "/proc"
	}
	path := filepath.Join(proc, "sys/kernel/random/boot_id")
	id, err := os.ReadFile(path)
	if err != nil {
		return Boot{}, fmt.Errorf("reading the boot's id: %w", err)
	}
	id = bytes.TrimSpace(id)
	if len(id) == 0 {
		return Boot{}, fmt.Errorf("reading the boot's id: %s is empty", path)
	}
	path = filepath.Join(proc, "stat")
	stat, err := os.ReadFile(path)
	if err != nil {
		return Boot{}, fmt.Errorf("reading the boot's time: %w", err)
	}
	at, err := began(stat)
	if err != nil {
		return Boot{}, fmt.Errorf("reading the boot's time in %s: %w", path, err)
	}
	return Boot{ID: string(id), Time: at}, nil
}

// began finds the time of the boot in /proc/stat.
func began(stat []byte) (time.Time, error) {
	for line := range bytes.Lines(stat) {
		if value, ok := bytes.CutPrefix(line, []byte("btime ")); ok {
			seconds, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			if err != nil {
				return time.Time{}, fmt.Errorf("btime: %w", err)
			}
			return time.Unix(seconds, 0), nil
		}
	}
	return time.Time{}, errors.New("there is no line that begins with btime")
}
