// Command generate writes the reference pages that list names from the code: the fields of the
// CRDs, the flags, the metrics and the Events.
//
// The same code always gives the same pages, byte for byte, so that a test can detect stale
// pages. If the command does not understand the code, it names the file and the line and
// writes nothing. It does not explain: other pages do.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) != 2 {
		return errors.New("want two arguments, the repository, and the folder that has deploy/chart/crds and docs/reference")
	}
	return write(args[0], args[1])
}

// write writes the pages below a folder. The CRDs are read from there, because they are
// generated too, and the rest from the repository.
func write(repository, folder string) error {
	pages := map[string]string{}
	var err error
	if pages["crds.md"], err = crdPage(filepath.Join(folder, "deploy", "chart", "crds")); err != nil {
		return err
	}
	if pages["flags.md"], err = flagPage(repository); err != nil {
		return err
	}
	if pages["metrics.md"], err = metricPage(repository); err != nil {
		return err
	}
	pages["events.md"] = eventPage()
	for name, text := range pages {
		if err := os.WriteFile(filepath.Join(folder, "docs", "reference", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}
