package testbed

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// modulePath is the module whose root has bin/testbed. The folder testbed/ in it is another
// module.
const modulePath = "github.com/resourcestack/autohealer"

// findProgram returns the path of a control-plane binary.
func (c Config) findProgram(name string) (string, error) {
	var folders []string
	if c.Assets != "" {
		folders = append(folders, c.Assets)
	} else {
		if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
			folders = append(folders, assets)
		}
		if root, err := moduleRoot(); err == nil {
			folders = append(folders, filepath.Join(root, "bin", "testbed"))
		}
	}
	for _, folder := range folders {
		path, err := filepath.Abs(filepath.Join(folder, name))
		if err != nil {
			return "", fmt.Errorf("looking for %s: %w", name, err)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	where := "in no folder: $KUBEBUILDER_ASSETS is not set and the working directory is outside " + modulePath
	if len(folders) > 0 {
		where = "in " + strings.Join(folders, " or ")
	}
	return "", fmt.Errorf("%s not found %s; `make testbed` builds it", name, where)
}

// moduleRoot searches upwards from the working directory.
func moduleRoot() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if declaresModule(filepath.Join(folder, "go.mod")) {
			return folder, nil
		}
		parent := filepath.Dir(folder)
		if parent == folder {
			return "", errors.New("no go.mod of " + modulePath + " above the working directory")
		}
		folder = parent
	}
}

func declaresModule(gomod string) bool {
	f, err := os.Open(gomod)
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if slices.Equal(strings.Fields(lines.Text()), []string{"module", modulePath}) {
			return true
		}
	}
	return false
}
