package testbed

import (
	"context"
	"errors"
	"os"
)

// Backup copies everything that etcd stores, and returns a function that restores the copy.
// Both stop and restart the API server and etcd.
func (c *Cluster) Backup(ctx context.Context) (restore func(context.Context) error, err error) {
	data, err := os.MkdirTemp(c.folder.path, "backup-")
	if err != nil {
		return nil, err
	}
	if err := c.whileStopped(ctx, func() error { return os.CopyFS(data, os.DirFS(c.folder.at("etcd"))) }); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return c.whileStopped(ctx, func() error {
			if err := os.RemoveAll(c.folder.at("etcd")); err != nil {
				return err
			}
			return os.CopyFS(c.folder.at("etcd"), os.DirFS(data))
		})
	}, nil
}

// whileStopped runs a function while no process uses the data.
func (c *Cluster) whileStopped(ctx context.Context, do func() error) error {
	if err := errors.Join(c.APIServer.Stop(ctx), c.Etcd.Stop(ctx)); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	if err := c.Etcd.Restart(ctx); err != nil {
		return err
	}
	return c.APIServer.Restart(ctx)
}
