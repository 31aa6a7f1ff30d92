package main

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// releasePages returns the program's memory pages to the kernel. Of 19 MB, 12 are pages of
// the program, and 4 MB of these are never used again. The kernel loads needed pages again
// from its page cache.
func releasePages(log *slog.Logger) {
	if err := releaseProgramPages(); err != nil {
		log.Debug("releasing pages of the program failed", "err", err)
	}
}

func releaseProgramPages() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	table, err := os.Open("/proc/self/smaps")
	if err != nil {
		return err
	}
	defer table.Close()
	for _, part := range unmodifiedMappings(table, program) {
		if _, _, code := unix.Syscall(unix.SYS_MADVISE, part.start, part.end-part.start, unix.MADV_DONTNEED); code != 0 {
			return fmt.Errorf("releasing %x-%x: %w", part.start, part.end, code)
		}
	}
	return nil
}

// mapping is an address range of the process.
type mapping struct{ start, end uintptr }

// unmodifiedMappings returns the mappings of a file that are read-only and were never
// written, for example by a loader. Releasing a modified page would lose its content.
func unmodifiedMappings(smaps io.Reader, file string) (parts []mapping) {
	var last mapping
	for lines := bufio.NewScanner(smaps); lines.Scan(); {
		line := lines.Text()
		words := strings.Fields(line)
		var p mapping
		if n, _ := fmt.Sscanf(line, "%x-%x ", &p.start, &p.end); n == 2 && len(words) > 1 {
			if last = (mapping{}); strings.HasPrefix(words[1], "r-") && strings.HasSuffix(line, " "+file) {
				last = p
			}
		} else if len(words) == 3 && words[0] == "Anonymous:" && words[1] == "0" && last != (mapping{}) {
			parts = append(parts, last)
		}
	}
	return parts
}
