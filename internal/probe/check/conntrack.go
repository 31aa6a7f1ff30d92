package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/resourcestack/autohealer/internal/probe/checkresult"
)

// Proc is where the kernel tells about itself.
const Proc = "/proc"

// Conntrack examines the kernel's table of connections, which is full at so many percent
// of what it may hold. A node without such a table cannot run out of it. Each network has
// its own: that of a pod is not looked at where it is known to be one.
func Conntrack(proc string, percent int) checkresult.Check {
	return func(context.Context) checkresult.Result {
		if apart(proc, "net") {
			return unknown(notFound, "the table of connections is that of the pod and not of the node; set hostNetwork")
		}
		count, limit, err := readConntrack(proc)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return well("there is no table of connections")
		case errors.Is(err, fs.ErrPermission):
			return unknown(notAllowed, "%v", err)
		case err != nil:
			return unknown(notFound, "%v", err)
		}
		return judgeConntrack(count, limit, percent)
	}
}

func readConntrack(proc string) (count, limit uint64, err error) {
	folder := filepath.Join(proc, "sys/net/netfilter")
	if count, err = readNumber(filepath.Join(folder, "nf_conntrack_count")); err != nil {
		return 0, 0, err
	}
	limit, err = readNumber(filepath.Join(folder, "nf_conntrack_max"))
	return count, limit, err
}

func readNumber(path string) (uint64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading the table of connections: %w", err)
	}
	number, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the table of connections: %s holds no number: %w", path, err)
	}
	return number, nil
}

// judgeConntrack compares without multiplying, which might overflow. A limit of zero is
// none.
func judgeConntrack(count, limit uint64, percent int) checkresult.Result {
	if limit > 0 && float64(count) >= float64(limit)*float64(percent)/100 {
		return sick("the table of connections is full: %d of %d", count, limit)
	}
	return well("the table of connections has room: %d of %d", count, limit)
}
