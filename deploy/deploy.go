// Package deploy holds the manifests that install Autohealer: crds/ first, then
// controller/, each in the order of its names. It promises that they are the
// very files that `kubectl apply -f deploy/crds -f deploy/controller` reads. It
// refuses to apply them: whoever does so has a client of their own. The sets in
// defaults/ are for users to choose and belong to no installation.
package deploy

import "embed"

// Manifests are the files, by their paths from this folder.
//
//go:embed crds/*.yaml controller/*.yaml
var Manifests embed.FS
