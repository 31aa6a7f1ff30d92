package finding

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// ID returns a hash of the parts. The same parts always give the same hash.
func ID(parts ...string) string {
	sum := sha256.New()
	var length [8]byte
	for _, part := range parts {
		// The lengths keep "ab", "c" apart from "a", "bc".
		binary.BigEndian.PutUint64(length[:], uint64(len(part)))
		sum.Write(length[:])
		sum.Write([]byte(part))
	}
	return hex.EncodeToString(sum.Sum(nil)[:16])
}
