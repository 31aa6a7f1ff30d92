// Package subprocess runs external programs and never blocks on them.
//
// Run returns within a second after the program's timeout. This holds if the program hangs
// in the kernel where no signal reaches it, forks and detaches, writes without end, or
// cannot start because its file system does not respond. Each program runs in its own
// process group, and Run kills the whole group. If a program cannot be killed, the package
// abandons it, counts it, and reaps it when it ends. It does not start that program again
// before then, so hanging programs do not accumulate.
//
// The package does not interpret exit codes. It does not kill processes that left the
// group with setsid: they were meant to stay. If the agent is process 1 of its container,
// these processes become its children, and [Children.Reap] reaps them. So no other code of
// the agent may start programs.
//
// # Design
//
// The kernel may reuse a process ID as soon as the process is reaped. So the package waits
// for the end of a program without reaping it, kills the group while the ID still belongs
// to it, and reaps the program last.
//
// Go starts a program with vfork, under a lock, on a thread that the scheduler cannot take
// back. If exec hangs because the program's file, interpreter or loader is on an
// unresponsive file system, the next garbage collection would stop the whole agent. So the
// agent only starts its own executable, which it has open, and that process executes the
// program ([Become], first in main). If it hangs there, it is a child that cannot be
// killed, and is handled as above. This costs 4 ms of CPU time per start. A goroutine
// checks the file beforehand, because that check gives a more precise error than exec
// does.
//
// The package does not use PDEATHSIG to end programs together with the agent. That signal
// follows the thread that started the program, and Go ends threads at any time. The agent
// cancels the contexts before it exits.
package subprocess
