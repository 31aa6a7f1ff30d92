// Package mountinfo reads the kernel's table of mounts as it is written, with whatever
// somebody has put into the name of a folder.
//
// It refuses to look at what is mounted: a filesystem that hangs holds up nobody here.
package mountinfo
