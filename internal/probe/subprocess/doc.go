// Package subprocess runs other people's programs, and is never held up by one.
//
// It promises that Run returns within a second of the time that a program has, whatever
// the program does: hangs in the kernel where no signal reaches it, forks and leaves,
// writes without end, or cannot be started because its file system does not answer. A
// program runs in a process group of its own, and nothing of that group outlives it. One
// that does not die is abandoned and counted, is reaped when it ends at last, and is not
// started again while it is there, so that they do not pile up.
//
// It refuses to judge: what an exit code means is not its business. And it does not go
// after processes that have left the group (setsid): those were meant to stay. Where
// they become children of the agent, because it is process 1 of its container, they are
// reaped when they end. Hence nobody else in the process may start programs.
//
// # Why it is done this way
//
// The number of a process is free for others as soon as the process is reaped. So the end
// of a program is awaited without reaping it, its group is killed while the number is
// still its own, and then it is reaped.
//
// Go starts a program with vfork, under a lock, on a thread that the scheduler cannot
// take back: an exec that hangs, as its file, its interpreter or its loader is on a file
// system that does not answer, would stop the whole agent at the next garbage collection.
// So the agent only ever starts itself, whose file it has open, and that process becomes
// the program ([Become], first in main): where it hangs it is a child that does not die,
// like others. It costs 4 ms of a core each time. The file is looked at beforehand, on a
// goroutine, as a look tells more than a refusal does.
//
// Programs are not tied to the life of the agent by a signal (PDEATHSIG): that follows
// the thread that has started them, and Go ends threads as it likes. Whoever stops the
// agent ends the contexts first.
package subprocess
