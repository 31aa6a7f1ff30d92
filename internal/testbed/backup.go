package testbed

import (
	"context"
	"os"
)

// Backup copies everything that etcd stores, and returns a function that restores the copy.
// Both stop and restart the API server and etcd.
func (c *Cluster) Backup(ctx context.Context) (restore func(context.Context) error, err error) {
	data, err := os.MkdirTemp(c.folder.path, "backup-")
	if err != nil {
		return nil, err
	}
	var recorded Recording
	var revision int64
	if err := c.whileStopped(ctx, func(all Recording, now int64) error {
		recorded, revision = all, now
		return os.CopyFS(data, os.DirFS(c.folder.at("etcd")))
	}); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		return c.whileStopped(ctx, func(all Recording, _ int64) error {
			if err := os.RemoveAll(c.folder.at("etcd")); err != nil {
				return err
			}
			if c.recorder != nil {
				c.recorder.rewind(recorded, all, revision)
			}
			return os.CopyFS(c.folder.at("etcd"), os.DirFS(data))
		})
	}, nil
}

// whileStopped runs a function while no process uses the data. The function gets the recording
// and etcd's revision.
func (c *Cluster) whileStopped(ctx context.Context, do func(Recording, int64) error) error {
	if err := c.APIServer.Stop(ctx); err != nil {
		return err
	}
	var recorded Recording
	var revision int64
	if c.recorder != nil {
		var err error
		if recorded, err = c.recorder.read(ctx); err != nil {
			return err
		}
		if revision, err = c.recorder.etcd.revision(ctx); err != nil {
			return err
		}
	}
	if err := c.Etcd.Stop(ctx); err != nil {
		return err
	}
	if err := do(recorded, revision); err != nil {
		return err
	}
	if err := c.Etcd.Restart(ctx); err != nil {
		return err
	}
	return c.APIServer.Restart(ctx)
}
