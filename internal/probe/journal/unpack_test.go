package journal_test

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/resourcestack/autohealer/internal/probe/journal"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func allBytes() string {
	b := make([]byte, 256)
	for i := range b {
		b[i] = byte(i)
	}
	return string(b)
}

func squares(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%d ", i*i)
	}
	return b.String()
}

func decode(tb testing.TB, text string) string {
	tb.Helper()
	b := testkit.Value(base64.StdEncoding.DecodeString(text)).Must(tb)
	return string(b)
}

// withLength puts the length before a block, like journald does.
func withLength(n int, block string) string {
	return string(binary.LittleEndian.AppendUint64(nil, uint64(n))) + block
}

// Current versions of journald compress with zstd, older ones with LZ4. These LZ4 blocks
// of MESSAGE= and the text were made with liblz4 1.9.
var lz4Blocks = []struct{ name, text, block string }{
	{"short", "abc", "sE1FU1NBR0U9YWJj"},
	{"repeated", strings.Repeat("all work and no play ", 40), "/w5NRVNTQUdFPWFsbCB3b3JrIGFuZCBubyBwbGF5IBUA////HlBwbGF5IA=="},
	{"bytes", strings.Repeat(allBytes(), 3), "//lNRVNTQUdFPQABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4fICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj9AQUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVpbXF1eX2BhYmNkZWZnaGlqa2xtbm9wcXJzdHV2d3h5ent8fX5/gIGCg4SFhoeIiYqLjI2Oj5CRkpOUlZaXmJmam5ydnp+goaKjpKWmp6ipqqusra6vsLGys7S1tre4ubq7vL2+v8DBwsPExcbHyMnKy8zNzs/Q0dLT1NXW19jZ2tvc3d7f4OHi4+Tl5ufo6err7O3u7/Dx8vP09fb3+Pn6+/z9/v8AAf/pUPv8/f7/"},
	{"one letter", strings.Repeat("a", 70000), "n01FU1NBR0U9YQEA/////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////////2lQYWFhYWE="},
	{"numbers", squares(60), "8GlNRVNTQUdFPTAgMSA0IDkgMTYgMjUgMzYgNDkgNjQgODEgMTAwIDEyMSAxNDQgMTY5IDE5NiAyMjUgMjU2IDI4OSAzMjQgMzYxIDQwMCA0NDEgNDg0IDUyOSA1NzYgNjI1IDY3NiA3MjkgNzg0IDg0MSA5MDAgOTZYAOAyNCAxMDg5IDExNTYgMVQAcDEyOTYgMTNmABA0bwAQNXgAEDaBABA2igBwNzY0IDE4NIQAUDM2IDIwhgAQMbIA8AYyMDkgMjMwNCAyNDAxIDI1MDAgMjYKABA3FAAQOB4AUDkxNiAzMgBAMzEzNrUAwDkgMzM2NCAzNDgxIA=="},
}

// MESSAGE= and forty times "all work and no play ".
const (
	xzBlock   = "/Td6WFoAAAD/EtlBAgAhARYAAAB0L+Wj4ANPACddACaRRsDRlFfkkuvYm2a+SkyompW/KwQs2FEYdFuvKtAZFehI9A1uwAAAAAE70AYAAAA2A3YBqAAK/AIAAAAAAFla"
	zstdBlock = "KLUv/WBQAi0BAOhNRVNTQUdFPWFsbCB3b3JrIGFuZCBubyBwbGF5IAEAwcRqOgE="
)

const (
	flagXZ   = 1
	flagLZ4  = 2
	flagZSTD = 4
)

func TestLZ4MessagesAreRead(t *testing.T) {
	for _, c := range lz4Blocks {
		for _, compact := range []bool{false, true} {
			m := newImage(compact)
			packed := withLength(len("MESSAGE=")+len(c.text), decode(t, c.block))
			m.entry(m.packed("MESSAGE", flagLZ4, packed), m.datum("SYSLOG_IDENTIFIER=a"))
			want := strings.TrimSpace(c.text[:min(len(c.text), journal.MaxMessage)])
			texts, _, lost, err := journal.Read(m.b, "a")
			testkit.Check(t, err == nil && lost == 0 && len(texts) == 1 && texts[0] == want,
				"%s (compact %t): read %.200q, lost %d, %v", c.name, compact, texts, lost, err)
		}
	}
}

func TestXZMessagesAreCountedAsLost(t *testing.T) {
	m := newImage(true)
	m.entry(m.packed("MESSAGE", flagXZ, decode(t, xzBlock)))
	m.entry(m.packed("NOTE", flagXZ, decode(t, xzBlock)), m.datum("MESSAGE=beside a note"))
	texts, _, lost, err := journal.Read(m.b, "")
	testkit.Check(t, err != nil && strings.Contains(err.Error(), "xz") && lost == 1 && len(texts) == 1 && texts[0] == "beside a note",
		"read %q, lost %d, %v", texts, lost, err)
}

func TestInvalidCompressedDataAreCounted(t *testing.T) {
	for name, packed := range map[string]struct {
		flags byte
		text  string
	}{
		"lz4, cut":          {flagLZ4, withLength(848, decode(t, lz4Blocks[1].block))[:30]},
		"lz4, no length":    {flagLZ4, "abc"},
		"lz4, empty":        {flagLZ4, withLength(848, "")},
		"lz4, looks before": {flagLZ4, withLength(100, "\x0f\x01\x00\x00")},
		"zstd, cut":         {flagZSTD, decode(t, zstdBlock)[:20]},
		"zstd, empty":       {flagZSTD, ""},
		"zstd, something":   {flagZSTD, "something else"},
		"in two ways":       {flagZSTD | flagLZ4, decode(t, zstdBlock)},
	} {
		m := newImage(false)
		m.entry(m.packed("MESSAGE", packed.flags, packed.text))
		m.say("a", "after it")
		m.entry(m.packed("MESSAGE", flagZSTD, decode(t, zstdBlock)))
		texts, _, lost, err := journal.Read(m.b, "")
		testkit.Check(t, err != nil && lost == 1 && slices.Equal(texts, []string{"after it", strings.TrimSpace(lz4Blocks[1].text)}),
			"%s: read %q, lost %d, %v", name, texts, lost, err)
	}
}

// The test builds an LZ4 block from random steps, so its content is known.
func TestRandomLZ4BlocksAreDecompressed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := func(n int) []byte { // a length that does not fit in four bits
			if n < 15 {
				return nil
			}
			b := make([]byte, (n-15)/255, (n-15)/255+1)
			for i := range b {
				b[i] = 255
			}
			return append(b, byte((n-15)%255))
		}
		text, block := []byte("MESSAGE="), []byte("\x80MESSAGE=")
		token := 0 // start of the last step
		steps := rapid.IntRange(0, 20).Draw(t, "steps")
		for range steps {
			back := rapid.IntRange(1, len(text)).Draw(t, "back")
			again := rapid.IntRange(4, 400).Draw(t, "again")
			block[token] |= byte(min(again-4, 15))
			block = binary.LittleEndian.AppendUint16(block, uint16(back))
			block = append(block, length(again-4)...)
			for range again {
				text = append(text, text[len(text)-back])
			}
			literals := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "literals")
			token = len(block)
			block = append(block, byte(min(len(literals), 15))<<4)
			block = append(block, length(len(literals))...)
			block = append(block, literals...)
			text = append(text, literals...)
		}
		m := newImage(true)
		m.entry(m.packed("MESSAGE", flagLZ4, withLength(len(text), string(block))))
		texts, _, lost, err := journal.Read(m.b, "")
		want := strings.TrimSpace(string(text[len("MESSAGE="):]))
		testkit.Require(t, err == nil && lost == 0 && len(texts) == 1 && texts[0] == want, "read %q, lost %d, %v, want %q", texts, lost, err, want)
	})
}
