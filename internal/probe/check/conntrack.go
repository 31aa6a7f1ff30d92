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

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// Proc is where the proc file system is mounted.
const Proc = "/proc"

// Conntrack checks the kernel's connection tracking table. The table counts as full above this
// percentage of its limit, and without a free entry. A node without the table is healthy. Each network namespace has its own
// table, so the result is Unknown if the agent is known to be in a pod's namespace.
func Conntrack(proc string, percent int) periodic.Check {
	return func(context.Context) periodic.Result {
		if isOtherNamespace(proc, "net") {
			return unknown(notFound, "the connection table belongs to the pod, not to the node; set hostNetwork")
		}
		count, limit, err := readConntrack(proc)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return healthy("there is no connection table")
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
		return 0, fmt.Errorf("reading the connection table: %w", err)
	}
	number, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading the connection table: %s does not contain a number: %w", path, err)
	}
	return number, nil
}

// judgeConntrack computes with floats, because a product of integers might overflow. A limit of
// zero means no limit.
func judgeConntrack(count, limit uint64, percent int) periodic.Result {
	if limit > 0 && (count >= limit || float64(count) > float64(limit)*float64(percent)/100) {
		return unhealthy("the connection table has %d of at most %d entries, and the alarm begins above %d%%; raise net.netfilter.nf_conntrack_max, or find what opens so many connections", count, limit, percent)
	}
	return healthy("the connection table has room: %d of %d", count, limit)
}
