package journal_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/probe/logs"
	"github.com/resourcestack/autohealer/internal/testkit"
)

// sample returns a file with n entries of "a" and n entries of "b".
func sample(compact bool, n int) *image {
	m := newImage(compact)
	for i := range n {
		m.say("a", fmt.Sprintf("message %d of a", i))
		m.say("b", fmt.Sprintf("message %d of b", i))
	}
	return m
}

func TestConstructedFileIsRead(t *testing.T) {
	for _, compact := range []bool{false, true} {
		m := sample(compact, 100)
		for identifier, want := range map[string]int{"a": 100, "b": 100, "": 200, "c": 0} {
			texts, records, lost, err := journal.Read(m.b, identifier)
			testkit.Check(t, err == nil && lost == 0 && len(texts) == want,
				"compact %t, identifier %q: %d entries, lost %d, %v; want %d", compact, identifier, len(texts), lost, err, want)
			for i, r := range records {
				if i > 0 && r.Number <= records[i-1].Number {
					t.Errorf("number %d comes after %d", r.Number, records[i-1].Number)
				}
				if identifier != "" && !strings.HasSuffix(texts[i], " of "+identifier) {
					t.Errorf("of %s: %q", identifier, texts[i])
				}
			}
		}
	}
}

func TestKernelFacilityRequiresTheKernelTransport(t *testing.T) {
	m := newImage(true)
	zero, kernel := m.datum("SYSLOG_FACILITY=0"), m.datum("SYSLOG_IDENTIFIER=kernel")
	m.entry(m.datum("MESSAGE=of the kernel"), zero, kernel, m.datum("_TRANSPORT=kernel"))
	m.entry(m.datum("MESSAGE=a lie"), zero, kernel, m.datum("_TRANSPORT=journal"))
	m.entry(m.datum("MESSAGE=half a lie"), zero, kernel, m.datum("_TRANSPORT=kernels"))
	m.entry(m.datum("MESSAGE=by way of the kernel"), m.datum("SYSLOG_FACILITY=3"), kernel, m.datum("_TRANSPORT=kernel"))
	_, records, _, err := journal.Read(m.b, "kernel")
	var got []int16
	for _, r := range records {
		got = append(got, r.Facility)
	}
	want := []int16{logs.Kernel, logs.NoPriority, logs.NoPriority, 3}
	testkit.Check(t, err == nil && slices.Equal(got, want), "facilities %v, %v; want %v", got, err, want)
}

func TestOnlyTheWantedUnitIsRead(t *testing.T) {
	m := newImage(true)
	for i := range 20 {
		m.entry(m.datum(fmt.Sprintf("MESSAGE=message %d", i)), m.datum("SYSLOG_IDENTIFIER=kubelet"), m.datum(fmt.Sprintf("_SYSTEMD_UNIT=%c.service", 'a'+i%2)))
	}
	path := filepath.Join(t.TempDir(), "system.journal")
	testkit.Must(t, os.WriteFile(path, m.b, 0o644))
	f := follow(t, journal.Config{Path: path, Unit: "b.service"})
	var want []string
	for i := 1; i < 20; i += 2 {
		want = append(want, fmt.Sprintf("message %d", i))
	}
	f.expect(want)
	f.quiet()
	_, err := journal.Open(journal.Config{Identifier: "kubelet", Unit: "b.service"})
	testkit.Check(t, err != nil, "an identifier together with a unit was accepted")
}

func TestEntryInTwoFilesIsReadOnce(t *testing.T) {
	folder := t.TempDir()
	write := func(name string, m *image, id byte) {
		m.b[24], m.b[72] = id, id // the IDs of the file and of the sequence
		testkit.Must(t, os.MkdirAll(filepath.Join(folder, name), 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(folder, name, "system.journal"), m.b, 0o644))
	}
	write(strings.Repeat("a", 32), sample(true, 20), 'a')
	write(strings.Repeat("b", 32), sample(false, 30), 'b')
	write("no-machine", sample(false, 99), 'c')
	f := follow(t, journal.Config{Path: folder, Identifier: "a"})
	want := messages(30, "message %d of a")
	f.expect(want)
	f.quiet()
}

// Each case corrupts one part of a file. Lost entries are counted, and the rest is read.
func TestCorruptedEntriesAreCountedAndTheRestIsRead(t *testing.T) {
	const n = 50
	build := func() (*image, []uint64) {
		m := newImage(true)
		entries := make([]uint64, n)
		for i := range entries {
			entries[i] = m.say("a", fmt.Sprintf("message %d", i))
		}
		return m, entries
	}
	// The second array of all entries has 8 slots, from the fourth entry on.
	second := func(m *image) uint64 { return m.get(m.get(176) + 16) }
	for name, c := range map[string]struct {
		spoil func(m *image, entries []uint64)
		read  int
		lost  uint64
	}{
		"nothing":                {func(*image, []uint64) {}, n, 0},
		"an entry is no entry":   {func(m *image, e []uint64) { m.b[e[20]] = 1 }, n - 1, 1},
		"an entry has no size":   {func(m *image, e []uint64) { m.put(e[20]+8, 3) }, n - 1, 1},
		"an entry is too large":  {func(m *image, e []uint64) { m.put(e[20]+8, 1<<40) }, n - 1, 1},
		"a slot is empty":        {func(m *image, _ []uint64) { binary.LittleEndian.PutUint32(m.b[second(m)+24:], 0) }, n - 1, 1},
		"a slot leads nowhere":   {func(m *image, _ []uint64) { binary.LittleEndian.PutUint32(m.b[second(m)+24:], 1<<31) }, n - 1, 1},
		"a slot leads back":      {func(m *image, e []uint64) { binary.LittleEndian.PutUint32(m.b[second(m)+24:], uint32(e[1])) }, n - 1, 1},
		"an array ends early":    {func(m *image, _ []uint64) { m.put(second(m)+16, 0) }, 4 + 8, n - 4 - 8},
		"arrays are a circle":    {func(m *image, _ []uint64) { m.put(second(m)+16, m.get(176)) }, 4 + 8, n - 4 - 8},
		"an array is its next":   {func(m *image, _ []uint64) { m.put(second(m)+16, second(m)) }, 4 + 8, n - 4 - 8},
		"an array is none":       {func(m *image, _ []uint64) { m.b[second(m)] = 3 }, 4, n - 4},
		"an array has no size":   {func(m *image, _ []uint64) { m.put(second(m)+8, 24) }, 4, n - 4},
		"a message is none":      {func(m *image, _ []uint64) { m.b[m.data["MESSAGE=message 7"]] = 2 }, n - 1, 1},
		"a message has no end":   {func(m *image, _ []uint64) { m.put(m.data["MESSAGE=message 7"]+8, 1<<39) }, n - 1, 1},
		"the file is cut short":  {func(m *image, e []uint64) { m.b = m.b[:e[30]] }, 30, n - 30},
		"a field leads nowhere":  {func(m *image, e []uint64) { binary.LittleEndian.PutUint32(m.b[e[9]+64+8:], 1<<31) }, n, 0},
		"an entry has odd items": {func(m *image, e []uint64) { m.put(e[9]+8, m.get(e[9]+8)-2) }, n, 0},
	} {
		m, entries := build()
		c.spoil(m, entries)
		texts, _, lost, err := journal.Read(m.b, "")
		testkit.Check(t, len(texts) == c.read && lost == c.lost && (err != nil) == (c.lost > 0),
			"%s: %d read and %d lost (%v), want %d and %d", name, len(texts), lost, err, c.read, c.lost)
	}
}

func TestUnreadableFileIsRejected(t *testing.T) {
	for name, spoil := range map[string]func(m *image){
		"it is something else":         func(m *image) { m.b[0] = 'x' },
		"its format is of the future":  func(m *image) { m.b[12] |= 1 << 5 },
		"its header has no size":       func(m *image) { m.put(88, 0) },
		"its header is too small":      func(m *image) { m.put(88, 100) },
		"it has no bytes":              func(m *image) { m.b = nil },
		"it has only zeros":            func(m *image) { clear(m.b) },
		"its header is cut":            func(m *image) { m.b = m.b[:150] },
		"too many entries":             func(m *image) { m.put(m.data["SYSLOG_IDENTIFIER=a"]+56, 1<<60) },
		"too many fields":              func(m *image) { m.put(128, 1<<60) },
		"its fields are elsewhere":     func(m *image) { m.put(120, 1<<40) },
		"its fields are a circle":      func(m *image) { m.put(m.fields["MESSAGE"]+24, m.fields["MESSAGE"]) },
		"the identifiers are a circle": func(m *image) { m.put(m.data["SYSLOG_IDENTIFIER=b"]+32, m.data["SYSLOG_IDENTIFIER=b"]) },
		"the identifier is elsewhere":  func(m *image) { m.put(m.fields["SYSLOG_IDENTIFIER"]+32, 1<<40) },
	} {
		m := newImage(false)
		m.say("a", "one")
		m.entry(m.datum("PRIORIT1=same bucket"))
		m.say("b", "two")
		spoil(m)
		texts, _, _, err := journal.Read(m.b, "a")
		testkit.Check(t, err != nil, "%s: read %q", name, texts)
	}
}

// FuzzFile corrupts and truncates files. Two bytes of the input give an offset and the
// third a value. Reading must end, and must not return more than the file contains.
func FuzzFile(f *testing.F) {
	var files [][]byte
	for _, compact := range []bool{false, true} {
		m := newImage(compact)
		m.entry(m.packed("MESSAGE", flagLZ4, withLength(848, decode(f, lz4Blocks[1].block))), m.datum("SYSLOG_IDENTIFIER=a"))
		m.entry(m.packed("MESSAGE", flagZSTD, decode(f, zstdBlock)), m.datum("SYSLOG_IDENTIFIER=a"))
		m.entry(m.packed("MESSAGE", flagXZ, decode(f, xzBlock)), m.datum("SYSLOG_IDENTIFIER=a"))
		files = append(files, sample(compact, 12).b, m.b)
	}
	for i, file := range files {
		f.Add(uint8(i), uint16(len(file)), []byte{})
		f.Add(uint8(i), uint16(len(file)-100), []byte{152, 0, 255, 176, 0, 255})
	}
	f.Fuzz(func(t *testing.T, which uint8, length uint16, spoilt []byte) {
		b := bytes.Clone(files[int(which)%len(files)])
		for ; len(spoilt) >= 3; spoilt = spoilt[3:] {
			b[int(binary.LittleEndian.Uint16(spoilt))%len(b)] = spoilt[2]
		}
		b = b[:min(len(b), int(length))]
		for _, identifier := range []string{"", "a"} {
			texts, records, _, _ := journal.Read(b, identifier)
			// Entries may overlap in a corrupted file, but each has its own offset.
			testkit.Check(t, len(texts) <= len(b)/8 && len(texts) == len(records), "%d messages of %d entries in %d bytes", len(texts), len(records), len(b))
			for i, text := range texts {
				testkit.Check(t, len(text) <= journal.MaxMessage, "message %d has %d bytes", i, len(text))
			}
		}
	})
}
