// Command generate writes the files that are generated from the catalog: the default ConditionSets
// in deploy/defaults, and the tables in docs/reference/conditions.md.
//
// The same catalog always gives the same files, byte for byte, so that a test can detect stale
// files. In the page, the command changes only the text between its markers.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/resourcestack/autohealer/catalog"
)

func main() {
	if err := command(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func command(args []string) error {
	if len(args) != 1 {
		return errors.New("want one argument, the folder that has deploy and docs")
	}
	return write(args[0])
}

// write writes the files below a folder, which must already contain the page.
func write(root string) error {
	sets := filepath.Join(root, "deploy", "defaults", "conditionsets.yaml")
	if err := os.MkdirAll(filepath.Dir(sets), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(sets, []byte(conditionSets(catalog.Conditions())), 0o644); err != nil {
		return err
	}
	page := filepath.Join(root, "docs", "reference", "conditions.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	filled := string(text)
	for _, table := range []struct{ name, rows string }{
		{"Kubernetes", nativeTable(catalog.Conditions())},
		{"monitors", defaultTable(catalog.Conditions())},
		{"Events", eventTable(catalog.Events())},
	} {
		if filled, err = fill(filled, table.name, table.rows); err != nil {
			return fmt.Errorf("filling %s: %w", page, err)
		}
	}
	return os.WriteFile(page, []byte(filled), 0o644)
}
