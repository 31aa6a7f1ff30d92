//go:build !race

package install

const raced = false
