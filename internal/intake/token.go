package intake

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// digest is all that is kept of a token.
type digest [sha256.Size]byte

// shortestToken is what cannot be guessed by trying.
const shortestToken = 16

// readToken reads the file of a token.
func readToken(path string) (digest, error) {
	file, err := os.Open(path)
	if err != nil {
		return digest{}, fmt.Errorf("reading a token: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, 4<<10))
	if err != nil {
		return digest{}, fmt.Errorf("reading a token: %w", err)
	}
	sum, err := parseToken(string(text))
	if err != nil {
		return digest{}, fmt.Errorf("reading the token in %s: %w", path, err)
	}
	return sum, nil
}

func parseToken(text string) (digest, error) {
	text = strings.TrimSpace(text)
	if written, ok := strings.CutPrefix(text, "sha256:"); ok {
		sum, err := hex.DecodeString(written)
		if err != nil || len(sum) != sha256.Size {
			return digest{}, errors.New("what follows sha256: is no sum; write 64 hexadecimal digits")
		}
		return digest(sum), nil
	}
	if len(text) < shortestToken {
		return digest{}, fmt.Errorf("it has %d letters; write at least %d, at random", len(text), shortestToken)
	}
	return sha256.Sum256([]byte(text)), nil
}

// is says whether a token is the one, in a time that does not tell how nearly it is.
func (d *digest) is(sum digest) bool {
	return d != nil && subtle.ConstantTimeCompare(d[:], sum[:]) == 1
}
