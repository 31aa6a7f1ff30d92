package statefile

import (
	"bytes"
	"errors"
	"maps"
	"sync"
)

// fakeDisk is a storage that can lose power at any step. Data that was not synced may then
// be present, missing or partial, as on real disks.
type fakeDisk struct {
	stuck chan struct{} // blocks every change until it is closed; set before the first write

	mu     sync.Mutex
	names  map[string]*inode // as the process sees them
	synced map[string]*inode // as they surely are on the disk

	writes int // number of replaced state files
	steps  int
	dieAt  int   // step at which the power fails, 0 for never
	dead   bool  // no step has an effect any more
	err    error // returned by every step while the power is on
}

type inode struct{ data, synced []byte }

var errPower = errors.New("power failure")

func newFakeDisk() *fakeDisk {
	return &fakeDisk{names: map[string]*inode{}, synced: map[string]*inode{}}
}

// step makes a change.
func (p *fakeDisk) step(change func()) error {
	if p.stuck != nil {
		<-p.stuck
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps++
	if p.steps == p.dieAt {
		p.dead = true
	}
	if p.dead {
		return errPower
	}
	if p.err == nil {
		change()
	}
	return p.err
}

// failWith makes every step fail with err, or none if err is nil.
func (p *fakeDisk) failWith(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// cutPower ends the power now, or after this many steps.
func (p *fakeDisk) cutPower(steps int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = p.dead || steps == 0
	p.dieAt = p.steps + steps
}

// tally returns the number of replaced state files, the number of steps, and whether the
// power has failed.
func (p *fakeDisk) tally() (writes, steps int, dead bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writes, p.steps, p.dead
}

// after returns the disk that the next process finds. choose selects what happened to data
// that was not synced.
func (p *fakeDisk) after(choose func(options int) int) *fakeDisk {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := p.synced
	if choose(2) == 1 {
		names = p.names
	}
	found := newFakeDisk()
	for name, node := range names {
		data := node.synced
		if !bytes.Equal(node.data, node.synced) {
			switch choose(4) {
			case 0:
				data = node.data
			case 1:
				data = node.data[:choose(len(node.data)+1)]
			case 2:
				data = make([]byte, len(node.data)) // the length reached the disk, the data did not
			}
		}
		node := &inode{data: bytes.Clone(data), synced: bytes.Clone(data)}
		found.names[name], found.synced[name] = node, node
	}
	return found
}

func (p *fakeDisk) Lock() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		p.steps++
	}
	return p.err
}

func (p *fakeDisk) Unlock() error { return nil }

func (p *fakeDisk) CheckPersistent() error { return nil }

func (p *fakeDisk) Read(name string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if node, ok := p.names[name]; ok {
		return append([]byte{}, node.data...), nil
	}
	return nil, nil
}

func (p *fakeDisk) Create(name string) (file, error) {
	h := &handle{on: p}
	return h, p.step(func() {
		if p.names[name] == nil {
			p.names[name] = &inode{}
		}
		h.node = p.names[name]
		h.node.data = nil
	})
}

func (p *fakeDisk) Rename(from, to string) error {
	return p.step(func() {
		p.names[to] = p.names[from]
		delete(p.names, from)
		if to == stateFile {
			p.writes++
		}
	})
}

func (p *fakeDisk) Remove(name string) error {
	return p.step(func() { delete(p.names, name) })
}

func (p *fakeDisk) Sync() error {
	return p.step(func() { p.synced = maps.Clone(p.names) })
}

type handle struct {
	on   *fakeDisk
	node *inode
}

func (h *handle) Write(text []byte) (int, error) {
	return len(text), h.on.step(func() { h.node.data = append(h.node.data, text...) })
}

func (h *handle) Sync() error {
	return h.on.step(func() { h.node.synced = bytes.Clone(h.node.data) })
}

func (h *handle) Close() error { return nil }
