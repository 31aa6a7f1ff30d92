package check

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/resourcestack/autohealer/internal/probe/periodic"
)

// ContainerdSocket is where containerd listens on most nodes.
const ContainerdSocket = "unix:///run/containerd/containerd.sock"

// Runtime checks the container runtime that serves CRI on a socket: it must report that it is
// ready. It ignores NetworkReady, which the kubelet reports as part of Ready.
//
// Each check opens its own connection. A runtime that serves existing connections but accepts no
// new ones is unhealthy.
func Runtime(socket string) periodic.Check {
	path := strings.TrimPrefix(socket, "unix://")
	return func(ctx context.Context) periodic.Result {
		asking, cancel, limit := answerContext(ctx)
		defer cancel()
		reply, dialled, err := askRuntime(asking, path)
		return judgeRuntime(path, limit, reply, dialled, err, late(asking), ctx.Err())
	}
}

// askRuntime requests the status. dialErr is the reason if the connection failed.
func askRuntime(ctx context.Context, path string) (reply *cri.StatusResponse, dialErr, err error) {
	// A missing socket is an answer too, so there is no retry.
	var dialer net.Dialer
	probe, err := dialer.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err, err
	}
	// gRPC gets the connection once. If it breaks, that is the answer.
	first := make(chan net.Conn, 1)
	first <- probe
	connection, err := grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-first:
				return c, nil
			default:
				return nil, errors.New("the connection was closed")
			}
		}),
		grpc.WithReadBufferSize(4<<10), grpc.WithWriteBufferSize(4<<10),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	)
	if err != nil {
		return nil, nil, errors.Join(err, probe.Close())
	}
	defer probe.Close()
	defer connection.Close()
	reply, err = cri.NewRuntimeServiceClient(connection).Status(ctx, &cri.StatusRequest{})
	return reply, nil, err
}

func judgeRuntime(path string, limit time.Duration, reply *cri.StatusResponse, dialErr, err error, late bool, ended error) periodic.Result {
	switch {
	case err == nil:
		return judgeStatus(path, reply)
	case late, ended == nil && status.Code(err) == codes.DeadlineExceeded: // the runtime knows the deadline and may report it first
		return unhealthy("the container runtime does not answer on %s within %s", path, formatLimit(limit))
	case ended != nil:
		return unknown(stopped, "the check was stopped before the container runtime answered: %v", ended)
	case errors.Is(dialErr, fs.ErrPermission):
		return unknown(notAllowed, "asking the container runtime: %v", dialErr)
	case errors.Is(dialErr, fs.ErrNotExist) && isNotMounted(path):
		return notMounted("the container runtime", path)
	case dialErr != nil:
		return unhealthy("the container runtime does not answer: %v", dialErr)
	case status.Code(err) == codes.Unimplemented:
		return unhealthy("the server on %s does not implement CRI v1", path)
	}
	return unhealthy("the container runtime answers on %s: %s", path, firstLine(status.Convert(err).Message()))
}

// judgeStatus treats a runtime without a RuntimeReady condition as not ready, as the kubelet does.
func judgeStatus(path string, reply *cri.StatusResponse) periodic.Result {
	for _, c := range reply.GetStatus().GetConditions() {
		switch {
		case c.GetType() != cri.RuntimeReady:
		case !c.GetStatus():
			return unhealthy("the container runtime on %s is not ready: %s: %s", path, firstLine(c.GetReason()), firstLine(c.GetMessage()))
		default:
			return healthy("the container runtime is well")
		}
	}
	return unhealthy("the container runtime on %s does not say whether it is ready (%s)", path, cri.RuntimeReady)
}
