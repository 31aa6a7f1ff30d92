// Package stats shows figures of the machine as metrics: how busy its processors, disks
// and networks are, how full its memory and filesystems, and what its kernel can do. The
// names, labels and kinds are those under which node-problem-detector shows them, so that
// whoever draws them need not notice the change.
//
// It promises that showing figures waits for nothing: they are read every invokeInterval,
// and a scrape gets those that were read last. Nor does reading wait for a filesystem that
// hangs: only those on block devices of the machine are asked, each by a goroutine of its
// own that is left behind if it does not come back, and not asked again until it does. A
// figure that cannot be read is absent, and not zero; the log says so once.
//
// It refuses to judge: a full disk is a figure here, and no problem of the node. And it
// runs no program, whatever the fields are called.
package stats
