// Package deploy holds the manifests that install Autohealer: crds/ first, then
// controller/ and agent/, each in the order of its names, and one of the folders in
// agent/, which are two ways to run it. It promises that they are the very files that
// `kubectl apply -f deploy/crds -f deploy/controller -f deploy/agent -f
// deploy/agent/kmsg` reads. It refuses to apply them: whoever does so has a client of
// their own. The sets in defaults/ are for users to choose and belong to no
// installation.
package deploy

import "embed"

// Manifests are the files, by their paths from this folder.
//
//go:embed crds/*.yaml controller/*.yaml agent/*.yaml agent/*/*.yaml
var Manifests embed.FS
