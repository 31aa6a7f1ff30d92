// Package config holds the configuration files that come with the agent, under the
// names that DaemonSets of node-problem-detector have. It promises that they are the
// very files that stand in /config of the image. It refuses to read them: what they mean
// is internal/probe/config's to say.
package config

import "embed"

// Files are the files, by their names.
//
//go:embed *.json
var Files embed.FS
