// Command etcd is the real etcd server. Upstream keeps its main package in a
// module whose own replace directives stop others from building it, so this
// entry point stands in for it.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
