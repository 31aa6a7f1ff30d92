package journal

import "encoding/binary"

// list is a list of entries: all entries of a file, or those that contain certain data.
type list struct {
	first  uint64 // offset of an entry before the arrays; 0 if there is none
	arrays uint64 // offset of the first array
	length uint64
}

// slotsRead is the number of offsets of an array that are read at once.
const slotsRead = 64

// cursor iterates over a list. It caches the current array and some of its offsets.
type cursor struct {
	index uint64 // index of the next entry

	array    uint64 // offset of the current array; 0 before the first
	end      uint64 // end of the array in the file
	base     uint64 // number of entries before the array
	capacity uint64 // capacity of the array
	next     uint64 // offset of the following array

	slots []uint64
	from  uint64 // index of slots[0]
	bytes [slotsRead * 8]byte
}

// find returns the offset of the entry at an index of the list. The index must not
// decrease between calls, except within an array.
func (f *file) find(index uint64) (uint64, error) {
	c := &f.cursor
	if f.list.first != 0 {
		if index == 0 {
			return f.list.first, nil
		}
		index--
	}
	for c.array == 0 || index >= c.base+c.capacity {
		if err := f.nextArray(); err != nil {
			return 0, err
		}
	}
	if index < c.from || index >= c.from+uint64(len(c.slots)) {
		if err := f.readSlots(index); err != nil {
			return 0, err
		}
	}
	return c.slots[index-c.from], nil
}

// nextArray moves to the following array. Journald appends arrays, so an array that is not
// behind its predecessor is invalid.
func (f *file) nextArray() error {
	c := &f.cursor
	at := f.list.arrays
	if c.array != 0 {
		at = c.next
		if at == 0 { // did not exist when the array was read
			head, err := f.window.bytes(c.array, arrayHead)
			if err != nil {
				return err
			}
			at = binary.LittleEndian.Uint64(head[16:])
		}
	}
	if at < c.end || at < f.header.size {
		return corrupted("an array of entries is out of order", at)
	}
	head, err := f.window.bytes(at, arrayHead)
	if err != nil {
		return err
	}
	o := parseObject(head)
	if o.kind != typeEntryArray || o.size < arrayHead+f.slotSize() || o.size > 1<<40 {
		return corrupted("an object is not a valid array of entries", at)
	}
	c.base += c.capacity
	c.array, c.end, c.capacity = at, at+o.size, (o.size-arrayHead)/f.slotSize()
	c.next = binary.LittleEndian.Uint64(head[16:])
	c.slots = c.slots[:0]
	return nil
}

func (f *file) slotSize() uint64 {
	if f.header.compact {
		return 4
	}
	return 8
}

// readSlots reads offsets of the array from an index on, up to the end of the list.
func (f *file) readSlots(index uint64) error {
	c, size := &f.cursor, f.slotSize()
	length := f.list.length
	if f.list.first != 0 {
		length--
	}
	n := min(c.base+c.capacity, length, index+slotsRead) - index
	b := c.bytes[:n*size]
	c.slots = c.slots[:0]
	if err := f.read(b, c.array+arrayHead+(index-c.base)*size); err != nil {
		return err
	}
	for ; len(b) > 0; b = b[size:] {
		if size == 4 {
			c.slots = append(c.slots, uint64(binary.LittleEndian.Uint32(b)))
		} else {
			c.slots = append(c.slots, binary.LittleEndian.Uint64(b))
		}
	}
	c.from = index
	return nil
}

// seek moves the cursor behind the last entry for which passed returns true. All these
// entries are at the start of the list. It returns that entry. It ignores read errors; the
// following reads report them.
func (f *file) seek(passed func(*entry) bool) (last entry) {
	// Find the first array whose last entry is not passed.
	for f.cursor.index < f.list.length {
		end := f.lastOfArray()
		e, err := f.entryAt(end)
		if err != nil || !passed(&e) {
			break
		}
		last, f.cursor.index = e, end+1
	}
	// Find the entry in this array.
	for low, high := f.cursor.index, f.lastOfArray(); low < high; {
		middle := low + (high-low)/2
		e, err := f.entryAt(middle)
		if err != nil || !passed(&e) {
			high = middle
			continue
		}
		last, low = e, middle+1
		f.cursor.index = low
	}
	return last
}

// lastOfArray returns the index of the last entry in the array of the next entry.
func (f *file) lastOfArray() uint64 {
	if f.cursor.index >= f.list.length {
		return f.cursor.index
	}
	if _, err := f.find(f.cursor.index); err != nil {
		return f.cursor.index
	}
	end := f.cursor.base + f.cursor.capacity
	if f.list.first != 0 {
		if f.cursor.index == 0 {
			return 0
		}
		end++
	}
	return min(end, f.list.length) - 1
}

// entryAt reads the entry at an index of the list.
func (f *file) entryAt(index uint64) (entry, error) {
	at, err := f.find(index)
	if err != nil {
		return entry{}, err
	}
	return f.entry(at)
}
