// Package mountinfo parses the kernel's mount table (/proc/PID/mountinfo). It returns paths exactly
// as they are on disk, including spaces and control characters.
//
// The package never accesses a mounted filesystem, so a filesystem that hangs cannot block it.
package mountinfo
