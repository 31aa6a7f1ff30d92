package check

import (
	"context"
	"net"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// KubernetesService is a name that every cluster resolves.
const KubernetesService = "kubernetes.default"

// DNS checks whether a name can be resolved.
func DNS(name string) periodic.Check {
	resolver := &net.Resolver{PreferGo: true}
	return func(ctx context.Context) periodic.Result {
		asking, cancel, limit := answerContext(ctx)
		defer cancel()
		_, err := resolver.LookupHost(asking, name)
		switch {
		case err == nil:
			return healthy("%s can be resolved", name)
		case late(asking):
			return unhealthy("%s cannot be resolved within %s", name, formatLimit(limit))
		case ctx.Err() != nil:
			return unknown(stopped, "the check was stopped before the name was resolved: %v", ctx.Err())
		}
		return unhealthy("%s cannot be resolved: %s", name, firstLine(withoutSource(err.Error())))
	}
}
