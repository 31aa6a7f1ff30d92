package kmsg

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/resourcestack/autohealer/internal/format/golden"
	"github.com/resourcestack/autohealer/internal/testkit"
)

func TestParse(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want string // empty if the text is not a record
	}{
		"a line of the kernel":       {"6,339,5140900,-;NET: Registered protocol family 10\n", `6 0 339 5.1409s "NET: Registered protocol family 10"`},
		"of a user":                  {"30,340,5690716,-;udevd[80]: starting version 181\n", `6 3 340 5.690716s "udevd[80]: starting version 181"`},
		"a dictionary is not text":   {"3,7,1,-;I/O error, dev sda\n SUBSYSTEM=block\n DEVICE=b8:0\n", `3 0 7 1µs "I/O error, dev sda"`},
		"no newline":                 {"3,7,1,-;cut", `3 0 7 1µs "cut"`},
		"blanks around it":           {"3,7,1,-;  wide \t\n", `3 0 7 1µs "wide"`},
		"a semicolon in the message": {"3,7,1,-;a;b\n", `3 0 7 1µs "a;b"`},
		"escapes stay":               {`3,7,1,-;a\x0ab\x5c` + "\n", `3 0 7 1µs "a\\x0ab\\x5c"`},
		"a fragment":                 {"4,7,1,c;part\n", `4 0 7 1µs "part"`},
		"a kernel that says more":    {"4,7,1,-,caller=T123,new=1;text\n", `4 0 7 1µs "text"`},
		"no message":                 {"4,7,1,-;\n", `4 0 7 1µs ""`},
		"the greatest numbers":       {"262143,18446744073709551615,9223372036854775,-;x\n", `7 32767 18446744073709551615 2562047h47m16.854775s "x"`},
		"nothing":                    {"", ""},
		"no semicolon":               {"6,1,2,-", ""},
		"too few fields":             {"6,1;x\n", ""},
		"no flags":                   {"6,1,2;x\n", ""},
		"a letter":                   {"6,1a,2,-;x\n", ""},
		"a sign":                     {"-6,1,2,-;x\n", ""},
		"an empty field":             {",1,2,-;x\n", ""},
		"a priority that is none":    {"262144,1,2,-;x\n", ""},
		"a number too many":          {"6,18446744073709551616,2,-;x\n", ""},
		"a stamp beyond all times":   {"6,1,9223372036854776,-;x\n", ""},
		"a line of a file":           {"Feb  3 04:05:06 host kernel: x; y\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if r, ok := parse([]byte(test.text)); ok {
				got = fmt.Sprintf("%d %d %d %s %q", r.priority, r.facility, r.number, r.stamp, r.message)
			}
			testkit.Same(t, got, test.want, "%q", test.text)
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("6,339,5140900,-;NET: Registered protocol family 10\n"))
	f.Add([]byte("30,340,5690716,c,caller=T1;a;b \n SUBSYSTEM=block\n DEVICE=b8:0\n"))
	f.Add([]byte("262143,18446744073709551615,9223372036854775,-;\n"))
	f.Add([]byte(",,,;"))
	f.Fuzz(func(t *testing.T, text []byte) {
		before := bytes.Clone(text)
		got, ok := parse(text)
		testkit.MustBeSame(t, text, before, "the record does not change when its buffer is reused")
		if !ok {
			return
		}
		testkit.Require(t, got.priority >= 0 && got.priority <= 7 && got.facility >= 0 && got.stamp >= 0, "%q has the values %+v", text, got)
		testkit.Require(t, !bytes.ContainsRune(got.message, '\n') && bytes.Contains(text, got.message), "%q has the message %q", text, got.message)
		// A parsed record can be written, and parsing it again gives the same record.
		again := fmt.Appendf(nil, "%d,%d,%d,-;%s\n KEY=value\n", int(got.facility)<<3|int(got.priority), got.number, got.stamp/time.Microsecond, got.message)
		second, ok := parse(again)
		if !ok || second.priority != got.priority || second.facility != got.facility || second.number != got.number ||
			second.stamp != got.stamp || !bytes.Equal(second.message, got.message) {
			t.Fatalf("%q is %+v, and %q is %+v", text, got, again, second)
		}
	})
}

// The agent's state file contains the position. This is version 1 of its format.
func TestStoredFormatIsUnchanged(t *testing.T) {
	golden.Check(t, "testdata/position-v1.json", &position{})
}
