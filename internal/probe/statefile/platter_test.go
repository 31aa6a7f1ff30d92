package statefile

import (
	"bytes"
	"errors"
	"maps"
	"sync"
)

// platter is a folder on a disk that can lose its power at any step. What has not been
// synced is then there, or not, or in parts, as real disks have it.
type platter struct {
	stuck chan struct{} // holds up every change until it is closed; set before anybody writes

	mu     sync.Mutex
	names  map[string]*inode // as the process sees them
	synced map[string]*inode // as they are on the disk for sure

	writes  int // states that were put in place
	steps   int
	dieAt   int   // step at which the power goes, 0 for never
	dead    bool  // nothing has an effect any more
	trouble error // of every step, while the power is on
}

type inode struct{ data, synced []byte }

var errPower = errors.New("the power is gone")

func newPlatter() *platter {
	return &platter{names: map[string]*inode{}, synced: map[string]*inode{}}
}

// step makes one change.
func (p *platter) step(change func()) error {
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
	if p.trouble == nil {
		change()
	}
	return p.trouble
}

// beset makes every step fail, or none.
func (p *platter) beset(trouble error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trouble = trouble
}

// unplug ends the power now, or after so many steps.
func (p *platter) unplug(steps int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = p.dead || steps == 0
	p.dieAt = p.steps + steps
}

// tally returns how many states were put in place, in how many steps, and whether the
// power is gone.
func (p *platter) tally() (writes, steps int, dead bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.writes, p.steps, p.dead
}

// after returns what the next process finds. Each choice is of one that can be made
// for something that was not synced.
func (p *platter) after(choose func(options int) int) *platter {
	p.mu.Lock()
	defer p.mu.Unlock()
	names := p.synced
	if choose(2) == 1 {
		names = p.names
	}
	found := newPlatter()
	for name, node := range names {
		data := node.synced
		if !bytes.Equal(node.data, node.synced) {
			switch choose(4) {
			case 0:
				data = node.data
			case 1:
				data = node.data[:choose(len(node.data)+1)]
			case 2:
				data = make([]byte, len(node.data)) // the length came, and the data did not
			}
		}
		node := &inode{data: bytes.Clone(data), synced: bytes.Clone(data)}
		found.names[name], found.synced[name] = node, node
	}
	return found
}

func (p *platter) Lock() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.trouble != nil {
		p.steps++
	}
	return p.trouble
}

func (p *platter) Unlock() error { return nil }

func (p *platter) Lasts() error { return nil }

func (p *platter) Read(name string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if node, ok := p.names[name]; ok {
		return append([]byte{}, node.data...), nil
	}
	return nil, nil
}

func (p *platter) Create(name string) (file, error) {
	h := &handle{on: p}
	return h, p.step(func() {
		if p.names[name] == nil {
			p.names[name] = &inode{}
		}
		h.node = p.names[name]
		h.node.data = nil
	})
}

func (p *platter) Rename(from, to string) error {
	return p.step(func() {
		p.names[to] = p.names[from]
		delete(p.names, from)
		if to == stateFile {
			p.writes++
		}
	})
}

func (p *platter) Remove(name string) error {
	return p.step(func() { delete(p.names, name) })
}

func (p *platter) Sync() error {
	return p.step(func() { p.synced = maps.Clone(p.names) })
}

type handle struct {
	on   *platter
	node *inode
}

func (h *handle) Write(text []byte) (int, error) {
	return len(text), h.on.step(func() { h.node.data = append(h.node.data, text...) })
}

func (h *handle) Sync() error {
	return h.on.step(func() { h.node.synced = bytes.Clone(h.node.data) })
}

func (h *handle) Close() error { return nil }
